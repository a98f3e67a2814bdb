package mysqlstore_test

import (
	"database/sql"
	"testing"
)

// What differs between the tests of stores of different servers.
const (
	product = "MariaDB or MySQL"
	old     = "UTC_TIMESTAMP(6) - INTERVAL 864000 + 1728000 * RAND() SECOND"
	text    = "message_key"
	bytes   = ""
)

func connectFor(t testing.TB, uri string) *sql.DB {
	t.Helper()

	return connect(t, uri)
}
