package postgresstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Store implements [store.Inbox], [store.TxInbox] and [store.Values] with two tables of a
// PostgreSQL database. It is safe for concurrent use, by any number of processes.
type Store struct {
	db     *sql.DB
	config Config
	sql    statements
}

var (
	_ store.Inbox   = (*Store)(nil)
	_ store.TxInbox = (*Store)(nil)
	_ store.Values  = (*Store)(nil)
)

// New validates db and c, reports all errors at once, and makes a Store. It does not connect. The
// caller closes db. The tables must exist before the first message: see [Store.CreateTables].
func New(db *sql.DB, c Config) (*Store, error) {
	err := c.Validate()
	if db == nil {
		err = errors.Join(errors.New("cannot make a store: db is nil; open one with sql.Open"), err)
	}
	if err != nil {
		return nil, err
	}
	c = c.withDefaults()

	return &Store{db: db, config: c, sql: newStatements(c)}, nil
}

// Schema returns the statements that make the tables, for a migration. They change nothing that
// exists.
func (s *Store) Schema() []string {
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + quoted(s.config.Table) + ` (
	handler     bytea       NOT NULL,
	message_key bytea       NOT NULL,
	owner       bytea       NOT NULL, -- token of the claim; empty when it was part of a transaction
	done        boolean     NOT NULL, -- false: claimed; true: handled
	stamp       timestamptz NOT NULL, -- claimed: when the lease runs out; handled: when it was handled
	PRIMARY KEY (handler, message_key)
)`,
		`CREATE INDEX IF NOT EXISTS ` + indexName(s.config.Table) + ` ON ` + quoted(s.config.Table) + ` (stamp)`,
		`CREATE TABLE IF NOT EXISTS ` + quoted(s.config.ValuesTable) + ` (
	name    bytea       NOT NULL PRIMARY KEY,
	value   bytea,
	expires timestamptz NOT NULL
) WITH (fillfactor = 50)`, // room for new versions of the few rows, which change all the time
	}
}

// CreateTables makes the tables if they do not exist. Several instances may call it at the same
// time.
func (s *Store) CreateTables(ctx context.Context) error {
	err := again(ctx, func() error { return s.createTables(ctx) },
		uniqueViolation, duplicateTable, serializationFailure, deadlockDetected)
	if err != nil {
		return fmt.Errorf("cannot create the tables %q and %q: %w; or create them with the statements of Schema",
			s.config.Table, s.config.ValuesTable, err)
	}

	return nil
}

func (s *Store) createTables(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // without effect after the commit
	// IF NOT EXISTS alone fails when two create the same table at the same time.
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('amqpretry'), hashtext($1))`,
		s.config.Table); err != nil {
		return err
	}
	for _, statement := range s.Schema() {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}

	return tx.Commit()
}

// statements are the texts of all statements, made once.
type statements struct {
	claim, look, renew, commit, release string
	claimTx, takeTx                     string
	lock, place, change                 string
	clean, cleanValues                  string
}

func newStatements(c Config) statements {
	table, values := quoted(c.Table), quoted(c.ValuesTable)
	const mine = ` WHERE handler = $1 AND message_key = $2 AND owner = $3`
	const until = `clock_timestamp() + $4::bigint * interval '1 microsecond'`

	return statements{
		claim: `INSERT INTO ` + table + ` AS held (handler, message_key, owner, done, stamp)
			VALUES ($1, $2, $3, false, ` + until + `)
			ON CONFLICT (handler, message_key) DO UPDATE SET owner = excluded.owner, stamp = ` + until + `
			WHERE NOT held.done AND held.stamp <= clock_timestamp()`,
		look: `SELECT done, (extract(epoch FROM stamp - clock_timestamp()) * 1000000)::bigint FROM ` + table + `
			WHERE handler = $1 AND message_key = $2`,
		renew:   `UPDATE ` + table + ` SET stamp = ` + until + mine + ` AND NOT done`,
		commit:  `UPDATE ` + table + ` SET done = true, stamp = clock_timestamp()` + mine,
		release: `DELETE FROM ` + table + mine + ` AND NOT done`,

		claimTx: `INSERT INTO ` + table + ` (handler, message_key, owner, done, stamp)
			VALUES ($1, $2, '', true, clock_timestamp()) ON CONFLICT (handler, message_key) DO NOTHING`,
		takeTx: `UPDATE ` + table + ` SET owner = '', done = true, stamp = clock_timestamp()
			WHERE handler = $1 AND message_key = $2 AND NOT done AND stamp <= clock_timestamp()`,

		// The clock is read outside, after the row is locked.
		lock: `SELECT clock_timestamp(), locked.value, locked.expires FROM
			(SELECT value, expires FROM ` + values + ` WHERE name = $1 FOR UPDATE) AS locked`,
		place: `INSERT INTO ` + values + ` (name, value, expires) VALUES ($1, NULL, clock_timestamp())
			ON CONFLICT (name) DO NOTHING`,
		change: `UPDATE ` + values + ` SET value = $2,
			expires = clock_timestamp() + $3::bigint * interval '1 microsecond' WHERE name = $1`,

		clean: `WITH gone AS (DELETE FROM ` + table + ` WHERE ctid = ANY (ARRAY (SELECT ctid FROM ` + table + `
			WHERE stamp >= $1 AND stamp < $2 ORDER BY stamp LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING stamp)
			SELECT count(*), max(stamp) FROM gone`,
		cleanValues: `DELETE FROM ` + values + ` WHERE ctid = ANY (ARRAY (SELECT ctid FROM ` + values + `
			WHERE expires < clock_timestamp() LIMIT $1 FOR UPDATE SKIP LOCKED))`,
	}
}
