package sqlstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Store implements [store.Inbox], [store.TxInbox] and [store.Values] with two tables of a database.
// It is safe for concurrent use, by any number of processes.
type Store struct {
	db      *sql.DB
	config  Config
	dialect dialect
	sql     statements
}

var (
	_ store.Inbox          = (*Store)(nil)
	_ store.TxInbox        = (*Store)(nil)
	_ store.Values         = (*Store)(nil)
	_ store.ConflictTeller = (*Store)(nil)
)

// Postgres makes a Store in a PostgreSQL database. It validates db and c, and reports all errors at
// once. It does not connect. The caller closes db. The tables must exist before the first message:
// see [Store.CreateTables].
//
// The errors of the driver need the method SQLState, which those of pgx and lib/pq have.
func Postgres(db *sql.DB, c Config) (*Store, error) { return newStore(db, c, postgres) }

// MySQL does for MariaDB and MySQL what [Postgres] does for PostgreSQL. The driver is
// go-sql-driver/mysql.
func MySQL(db *sql.DB, c Config) (*Store, error) { return newStore(db, c, mysql) }

func newStore(db *sql.DB, c Config, d dialect) (*Store, error) {
	err := c.Validate()
	if db == nil {
		err = errors.Join(errors.New("cannot make a store: db is nil; open one with sql.Open"), err)
	}
	if err != nil {
		return nil, err
	}
	c = c.withDefaults()

	return &Store{db: db, config: c, dialect: d, sql: newStatements(c, d)}, nil
}

// Schema returns the statements that make the tables, for a migration. They change nothing that
// exists.
func (s *Store) Schema() []string {
	table, index := s.config.Table, s.config.Table+"_stamp"
	index = index[strings.Index(index, ".")+1:] // it is in the schema of its table

	return s.dialect.schema(s.dialect.quoted(table), s.dialect.quoted(index), s.dialect.quoted(s.config.ValuesTable))
}

// CreateTables makes the tables if they do not exist. Several instances may call it at the same
// time.
func (s *Store) CreateTables(ctx context.Context) error {
	err := s.again(ctx, func() error { return s.createTables(ctx) }, s.dialect.creating...)
	if err != nil {
		return fmt.Errorf("cannot create the tables %q and %q: %w; or create them with the statements of Schema",
			s.config.Table, s.config.ValuesTable, err)
	}

	return nil
}

func (s *Store) createTables(ctx context.Context) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, statement := range append(s.dialect.alone(s.config.Table), s.Schema()...) {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}

		return nil
	})
}

// inTx commits what do has done, unless do fails. With READ COMMITTED a transaction locks no gaps
// between rows, in which others insert theirs.
func (s *Store) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // without effect after the commit
	if err := do(tx); err != nil {
		return err
	}

	return tx.Commit()
}

const (
	maxKey = 255 // bytes that a key may have and be stored as it is
	hashed = "sha256:"
)

// column returns what the table holds for a handler, a key or a name: the bytes themselves, or
// their SHA-256 when there are too many for an index. Keys that look like such a hash are hashed as
// well, so that the two never meet.
func column(s string) []byte {
	if len(s) <= maxKey && !strings.HasPrefix(s, hashed) {
		return []byte(s)
	}
	sum := sha256.Sum256([]byte(s))

	return append([]byte(hashed), hex.EncodeToString(sum[:])...)
}
