package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"              // the driver postgres
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

var postgres = dialect{
	name: "postgres", product: "PostgreSQL", open: sqlstore.Postgres,
	connect: func(t testing.TB, uri string) *sql.DB { return connectPostgres(t, "pgx", uri, "") },
	drivers: func(t testing.TB, uri string) map[string]*sql.DB {
		return map[string]*sql.DB{
			"pgx":      connectPostgres(t, "pgx", uri, ""),
			"postgres": connectPostgres(t, "postgres", uri, ""),
		}
	},
	// Every driver, with every isolation level that a server or a program may have for all its
	// transactions.
	variants: func(t testing.TB, uri string) map[string]*sql.DB {
		all := map[string]*sql.DB{}
		for _, driver := range []string{"pgx", "postgres"} {
			for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
				all[driver+" "+isolation] = connectPostgres(t, driver, uri, isolation)
			}
		}

		return all
	},
	old:     "now() - interval '10 days' - random() * interval '20 days'",
	text:    "convert_from(message_key, 'UTF8')",
	bytes:   "::bytea",
	cascade: " CASCADE",
	killed:  "SELECT pg_terminate_backend(pg_backend_pid())",

	lockWait: 500 * time.Millisecond, least: 450 * time.Millisecond,
	setWait: "SET LOCAL lock_timeout = '7min'", askWait: "SHOW lock_timeout", wait: "7min",
	seesLater: func(*testing.T, *sql.DB) bool { return false },
	isolation: sql.LevelSerializable,
	meet: func(ctx context.Context, tx *sql.Tx, counters string, _ int) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT min(n) FROM "+counters).Scan(&n); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprint("UPDATE ", counters, " SET n = ", n+1))

		return err
	},
}

// connectPostgres opens a pool with a driver and, unless it is empty, an isolation level.
func connectPostgres(t testing.TB, driver, uri, isolation string) *sql.DB {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	query := u.Query()
	if isolation != "" {
		query.Set("default_transaction_isolation", isolation)
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	db, err := sql.Open(driver, u.String())
	require.NoError(t, err)

	return limited(t, db)
}
