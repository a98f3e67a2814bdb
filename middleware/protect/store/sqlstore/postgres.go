package sqlstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var postgres = dialect{
	quote:      `"`,
	parameters: numbered,

	now:    `clock_timestamp()`,
	epoch:  `timestamptz 'epoch'`,
	step:   `?::bigint * interval '1 microsecond'`,
	micros: `(extract(epoch FROM %[2]s - %[1]s) * 1000000)::bigint`,

	skip: ` ON CONFLICT (handler, message_key) DO NOTHING`,
	keep: ` ON CONFLICT (name) DO UPDATE SET name = excluded.name`,
	lock: `(SELECT value, expires FROM %s WHERE name = ? FOR UPDATE) AS locked`,

	setWait: func(d time.Duration) string {
		return fmt.Sprintf(`WITH old AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value)
			SELECT set_config('amqpretry.lock_timeout', value, true), set_config('lock_timeout', '%dms', true)
			FROM old`, max(1, d.Milliseconds()))
	},
	resetWait: `SELECT set_config('lock_timeout', current_setting('amqpretry.lock_timeout'), true)`,

	doomed: func(table, columns, condition string) string {
		return `DELETE FROM ` + table + ` WHERE ctid = ANY (ARRAY (SELECT ctid FROM ` + table + ` WHERE ` + condition +
			` FOR UPDATE SKIP LOCKED)) RETURNING ` + columns
	},
	batch: 1000,

	// IF NOT EXISTS alone fails when two create the same table at the same time.
	alone: func(table string) []string {
		return []string{`SELECT pg_advisory_xact_lock(hashtext('amqpretry'), hashtext('` + table + `'))`}
	},
	schema: postgresSchema,

	code:        sqlState,
	conflicts:   []string{"40001", "40P01"}, // serialization failure, deadlock
	lockTimeout: "55P03",
	creating:    []string{"23505", "42P07"}, // unique violation, duplicate table
}

func postgresSchema(table, index, values string) []string {
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + table + ` (
	handler     bytea       NOT NULL,
	message_key bytea       NOT NULL,
	owner       bytea       NOT NULL, -- token of the claim; empty when it was part of a transaction
	done        boolean     NOT NULL, -- false: claimed; true: handled
	stamp       timestamptz NOT NULL, -- claimed: when the lease runs out; handled: when it was handled
	PRIMARY KEY (handler, message_key)
)`,
		`CREATE INDEX IF NOT EXISTS ` + index + ` ON ` + table + ` (stamp)`,
		`CREATE TABLE IF NOT EXISTS ` + values + ` (
	name    bytea       NOT NULL PRIMARY KEY,
	value   bytea,
	expires timestamptz NOT NULL
) WITH (fillfactor = 50)`, // room for new versions of the few rows, which change all the time
	}
}

// numbered replaces each ? by $1, $2 and so on.
func numbered(text string) string {
	parts := strings.Split(text, "?")
	for i := range parts[1:] {
		parts[i] += "$" + strconv.Itoa(i+1)
	}

	return strings.Join(parts, "")
}

// sqlState returns the SQLSTATE of an error. The drivers pgx and lib/pq have errors with this
// method.
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}

	return ""
}
