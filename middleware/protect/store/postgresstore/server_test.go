package postgresstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"              // the driver postgres
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/postgresstore"
)

const (
	script = "../../../../scripts/postgres"
	soon   = 30 * time.Second
	often  = 10 * time.Millisecond
	lease  = time.Hour
)

// serverURI is that of the server that these tests share.
func serverURI(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("POSTGRES_URI")
	require.NotEmpty(t, uri, "POSTGRES_URI is not set: run the tests with scripts/postgres run go test ./...")

	return uri
}

// connect opens a pool, with settings of PostgreSQL for each of its connections.
func connect(t testing.TB, driver, uri string, settings map[string]string) *sql.DB {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	query := u.Query()
	for name, value := range settings {
		query.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	db, err := sql.Open(driver, u.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)

	return db
}

// open makes a store, and its tables if they are not there.
func open(t testing.TB, db *sql.DB, c postgresstore.Config) *postgresstore.Store {
	t.Helper()
	s, err := postgresstore.New(db, c)
	require.NoError(t, err)
	require.NoError(t, s.CreateTables(context.Background()))

	return s
}

// tables are a test's own, removed with it.
func tables(t testing.TB, db *sql.DB) postgresstore.Config {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name+"_inbox, "+name+"_values")
		require.NoError(t, err)
	})

	return postgresstore.Config{Table: name + "_inbox", ValuesTable: name + "_values"}
}

// server is one of a test's own, to be killed.
type server struct {
	t   *testing.T
	dir string
	uri string
}

func startServer(t *testing.T) *server {
	t.Helper()
	parent := os.Getenv("POSTGRES_DIR")
	require.NotEmpty(t, parent, "POSTGRES_DIR is not set: run the tests with scripts/postgres run go test ./...")
	s := &server{t: t, dir: filepath.Join(parent, rand.Text())}
	t.Cleanup(func() { s.run("rm") })
	s.start()

	return s
}

func (s *server) start() { s.uri = strings.TrimSpace(s.run("start")) }
func (s *server) kill()  { s.run("kill") }

func (s *server) run(verb string) string {
	s.t.Helper()
	command := exec.Command(script, verb, s.dir)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	require.NoError(s.t, err, said.String())

	return string(out)
}
