package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Store implements [store.Inbox], [store.TxInbox] and [store.Values] with two tables of a MariaDB
// or MySQL database. It is safe for concurrent use, by any number of processes.
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
	handler     VARBINARY(255) NOT NULL,
	message_key VARBINARY(255) NOT NULL,
	owner       VARBINARY(32)  NOT NULL COMMENT 'token of the claim; empty when it was part of a transaction',
	done        BOOLEAN        NOT NULL COMMENT '0: claimed; 1: handled',
	stamp       DATETIME(6)    NOT NULL COMMENT 'UTC. claimed: when the lease runs out; handled: when it was handled',
	PRIMARY KEY (handler, message_key),
	INDEX by_stamp (stamp)
) ENGINE=InnoDB`,
		`CREATE TABLE IF NOT EXISTS ` + quoted(s.config.ValuesTable) + ` (
	name    VARBINARY(255) NOT NULL PRIMARY KEY,
	value   MEDIUMBLOB,
	expires DATETIME(6)    NOT NULL COMMENT 'UTC'
) ENGINE=InnoDB`,
	}
}

// CreateTables makes the tables if they do not exist. Several instances may call it at the same
// time.
func (s *Store) CreateTables(ctx context.Context) error {
	for _, statement := range s.Schema() {
		err := again(ctx, func() error {
			_, err := s.db.ExecContext(ctx, statement)

			return err
		})
		if err != nil {
			return fmt.Errorf("cannot create the tables %q and %q: %w; or create them with the statements of Schema",
				s.config.Table, s.config.ValuesTable, err)
		}
	}

	return nil
}

// statements are the texts of all statements, made once.
type statements struct {
	claim, look, take, renew, commit, release string
	claimTx, lookTx, takeTx                   string
	lock, place, read, change                 string
	clean, remove, cleanValues, removeValues  string
}

func newStatements(c Config) statements {
	table, values := quoted(c.Table), quoted(c.ValuesTable)
	const message = ` WHERE handler = ? AND message_key = ?`
	const mine = message + ` AND owner = ?`
	const until = `UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND`
	// The time at which a statement began to wait for the row is good enough here: it is too early,
	// so that a lease which was renewed meanwhile has not run out.
	const ranOut = message + ` AND NOT done AND stamp <= UTC_TIMESTAMP(6)`
	look := `SELECT done, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), stamp) FROM ` + table + message

	return statements{
		claim: `INSERT INTO ` + table + ` (handler, message_key, owner, done, stamp)
			VALUES (?, ?, ?, 0, ` + until + `)`,
		look:    look,
		take:    `UPDATE ` + table + ` SET owner = ?, stamp = ` + until + ranOut,
		renew:   `UPDATE ` + table + ` SET stamp = ` + until + mine + ` AND NOT done`,
		commit:  `UPDATE ` + table + ` SET done = 1, stamp = UTC_TIMESTAMP(6)` + mine,
		release: `DELETE FROM ` + table + mine + ` AND NOT done`,

		claimTx: `INSERT INTO ` + table + ` (handler, message_key, owner, done, stamp)
			VALUES (?, ?, '', 1, UTC_TIMESTAMP(6))`,
		// A transaction with REPEATABLE READ does not see what was committed after it began, unless
		// it locks it. MariaDB does not know FOR SHARE.
		lookTx: look + ` LOCK IN SHARE MODE`,
		takeTx: `UPDATE ` + table + ` SET owner = '', done = 1, stamp = UTC_TIMESTAMP(6)` + ranOut,

		lock: `SELECT 1 FROM ` + values + ` WHERE name = ? FOR UPDATE`,
		place: `INSERT INTO ` + values + ` (name, value, expires) VALUES (?, NULL, UTC_TIMESTAMP(6))
			ON DUPLICATE KEY UPDATE name = name`,
		read: `SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
			TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires), value FROM ` + values + ` WHERE name = ? FOR UPDATE`,
		change: `UPDATE ` + values + ` SET value = ?, expires = ` + until + ` WHERE name = ?`,

		clean: `SELECT handler, message_key, CAST(stamp AS CHAR) FROM ` + table + `
			WHERE stamp >= CAST(? AS DATETIME(6)) AND stamp < CAST(? AS DATETIME(6))
			ORDER BY stamp LIMIT ? FOR UPDATE SKIP LOCKED`,
		cleanValues:  `SELECT name FROM ` + values + ` WHERE expires < UTC_TIMESTAMP(6) LIMIT ? FOR UPDATE SKIP LOCKED`,
		remove:       removal(table, "handler", "message_key"),
		removeValues: removal(values, "name"),
	}
}

// removal returns the format of a statement that deletes rows by their primary keys, which are a
// derived table, one SELECT for each. With a list of conditions instead the server may read all
// rows of a handler, and wait for those that others have locked.
func removal(table string, columns ...string) string {
	on := make([]string, len(columns))
	for i, column := range columns {
		on[i] = "old." + column + " = gone." + column
	}

	return "DELETE old FROM (%s) AS gone STRAIGHT_JOIN " + table + " AS old FORCE INDEX (PRIMARY) ON " +
		strings.Join(on, " AND ")
}
