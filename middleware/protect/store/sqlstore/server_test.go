package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

const (
	soon  = 30 * time.Second
	lease = time.Hour
)

// dialect is what differs between the tests of each kind of server.
type dialect struct {
	name, product string
	open          func(*sql.DB, sqlstore.Config) (*sqlstore.Store, error)
	connect       func(t testing.TB, uri string) *sql.DB
	drivers       func(t testing.TB, uri string) map[string]*sql.DB // a pool of each
	// variants are pools with drivers and settings that change what the server gets or says.
	variants func(t testing.TB, uri string) map[string]*sql.DB

	old         string // a time in the past, for which Cleanup deletes
	text, bytes string // formats: a key as text, and text as a key
	cascade     string // after DROP SCHEMA
	killed      string // a statement that ends its own connection

	lockWait, least        time.Duration // of a test, and what it waits at least
	setWait, askWait, wait string        // statements for the server's own limit, and what they set
	// seesLater tells whether a transaction with REPEATABLE READ sees what was done after it began.
	seesLater func(t *testing.T, db *sql.DB) bool
	isolation sql.IsolationLevel // of the transactions of meet
	// meet adds 1 to both counters of a table. Transactions that do so at the same time meet.
	meet func(ctx context.Context, tx *sql.Tx, counters string, call int) error
}

// server is a kind of server, and the one of it that the tests share.
type server struct {
	dialect

	uri, dir string
}

// onEach runs a test on each server that there is.
func onEach(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	found := false
	for _, d := range []dialect{postgres, mysql} {
		variable := strings.ToUpper(d.name)
		s := server{dialect: d, uri: os.Getenv(variable + "_URI"), dir: os.Getenv(variable + "_DIR")}
		if s.uri != "" {
			found = true
			t.Run(d.name, func(t *testing.T) { test(t, s) })
		}
	}
	require.True(t, found,
		"run the tests with scripts/postgres or scripts/mysql: neither POSTGRES_URI nor MYSQL_URI is set")
}

// all is a pool, and a store with tables in it.
func (s server) all(t testing.TB) (*sql.DB, sqlstore.Config, *sqlstore.Store) {
	t.Helper()
	db := s.pool(t)
	c := tables(t, db)

	return db, c, s.store(t, db, c)
}

func (s server) pool(t testing.TB) *sql.DB {
	t.Helper()

	return s.connect(t, s.uri)
}

// limited lets many goroutines of a test use a pool.
func limited(t testing.TB, db *sql.DB) *sql.DB {
	t.Helper()
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)

	return db
}

// store makes a store, and its tables if they are not there.
func (s server) store(t testing.TB, db *sql.DB, c sqlstore.Config) *sqlstore.Store {
	t.Helper()
	made, err := s.open(db, c)
	require.NoError(t, err)
	require.NoError(t, made.CreateTables(context.Background()))

	return made
}

// tables are a test's own, removed with it.
func tables(t testing.TB, db *sql.DB) sqlstore.Config {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name+"_inbox, "+name+"_values")
		require.NoError(t, err)
	})

	return sqlstore.Config{Table: name + "_inbox", ValuesTable: name + "_values"}
}

// table makes a table of a test's own, and returns its name.
func table(t testing.TB, db *sql.DB, columns string) string {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	run(t, db, fmt.Sprintf("CREATE TABLE %s (%s)", name, columns))
	t.Cleanup(func() { run(t, db, "DROP TABLE "+name) })

	return name
}

// run runs a statement, also at the end of a test.
func run(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(context.Background(), statement)
	require.NoError(t, err)
}

// process is a server of a test's own, to be killed.
type process struct {
	t    *testing.T
	kind server
	dir  string
	uri  string
}

func (s server) startOwn(t *testing.T) *process {
	t.Helper()
	require.NotEmpty(t, s.dir, "run the tests with scripts/%s run go test ./...", s.name)
	p := &process{t: t, kind: s, dir: filepath.Join(s.dir, rand.Text())}
	t.Cleanup(func() { p.run("rm") })
	p.start()

	return p
}

func (p *process) start() { p.uri = strings.TrimSpace(p.run("start")) }
func (p *process) kill()  { p.run("kill") }

func (p *process) run(verb string) string {
	p.t.Helper()
	command := exec.Command("../../../../scripts/"+p.kind.name, verb, p.dir)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	require.NoError(p.t, err, said.String())

	return string(out)
}
