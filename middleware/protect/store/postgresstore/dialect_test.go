package postgresstore_test

import (
	"database/sql"
	"testing"
)

// What differs between the tests of stores of different servers.
const (
	product = "PostgreSQL"
	old     = "now() - interval '10 days' - random() * interval '20 days'"
	text    = "convert_from(message_key, 'UTF8')"
	bytes   = "::bytea"
)

func connectFor(t testing.TB, uri string) *sql.DB {
	t.Helper()

	return connect(t, "pgx", uri, nil)
}
