package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

var mysql = dialect{
	name: "mysql", product: "MariaDB or MySQL", open: sqlstore.MySQL,
	connect: func(t testing.TB, uri string) *sql.DB { return connectMySQL(t, uri) },
	drivers: func(t testing.TB, uri string) map[string]*sql.DB {
		return map[string]*sql.DB{"mysql": connectMySQL(t, uri)}
	},
	variants: mysqlVariants,
	old:      "UTC_TIMESTAMP(6) - INTERVAL 864000 + 1728000 * RAND() SECOND",
	text:     "message_key",
	killed:   "KILL CONNECTION_ID()",

	lockWait: time.Second, least: time.Second / 2, // MySQL's own limit is 50 s
	setWait: "SET SESSION innodb_lock_wait_timeout = 77",
	askWait: "SELECT @@SESSION.innodb_lock_wait_timeout", wait: "77",
	seesLater: func(t *testing.T, db *sql.DB) bool {
		return mysqlVariable(t, db, "innodb_snapshot_isolation") != "ON"
	},
	// Each locks two rows, in either order.
	meet: func(ctx context.Context, tx *sql.Tx, counters string, call int) error {
		for _, id := range []int{call % 2, 1 - call%2} {
			_, err := tx.ExecContext(ctx, fmt.Sprint("UPDATE ", counters, " SET n = n + 1 WHERE id = ", id))
			if err != nil {
				return err
			}
		}

		return nil
	},
}

// mysqlVariants have every isolation level, and every option of the driver that changes what the
// server gets or says.
func mysqlVariants(t testing.TB, uri string) map[string]*sql.DB {
	byDefault := connectMySQL(t, uri)
	all := map[string]*sql.DB{
		"as by default": byDefault,
		"options": connectMySQL(t, uri, func(c *driver.Config) {
			c.InterpolateParams, c.ParseTime, c.ClientFoundRows = true, true, true
			c.Loc = time.FixedZone("", 3600)
		}, session("time_zone", "'+05:30'"), session("sql_mode", "''")),
	}
	level := "transaction_isolation" // which MariaDB calls tx_isolation up to 11.0
	if mysqlVariable(t, byDefault, level) == "" {
		level = "tx_isolation"
	}
	for _, isolation := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
		all[isolation] = connectMySQL(t, uri, session(level, "'"+isolation+"'"))
	}
	if mysqlVariable(t, byDefault, "innodb_snapshot_isolation") != "" { // of MariaDB only
		all["snapshot isolation"] = connectMySQL(t, uri, session("innodb_snapshot_isolation", "ON"))
	}

	return all
}

// mysqlVariable returns the value of a variable of the server, or "" if there is none.
func mysqlVariable(t testing.TB, db *sql.DB, name string) (value string) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), "SHOW VARIABLES LIKE '"+name+"'").Scan(&name, &value)
	if !errors.Is(err, sql.ErrNoRows) {
		require.NoError(t, err)
	}

	return value
}

// session sets a variable of the session for each connection.
func session(name, value string) func(*driver.Config) {
	return func(c *driver.Config) {
		if c.Params == nil {
			c.Params = map[string]string{}
		}
		c.Params[name] = value
	}
}

// connectMySQL opens a pool, with settings of the driver.
func connectMySQL(t testing.TB, uri string, settings ...func(*driver.Config)) *sql.DB {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	c := driver.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", u.Host, u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	for _, set := range settings {
		set(c)
	}
	connector, err := driver.NewConnector(c)
	require.NoError(t, err)

	return limited(t, sql.OpenDB(connector))
}
