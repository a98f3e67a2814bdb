package mysqlstore_test

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

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/mysqlstore"
)

const (
	script = "../../../../scripts/mysql"
	soon   = 30 * time.Second
	often  = 10 * time.Millisecond
	lease  = time.Hour
)

// serverURI is that of the server that these tests share.
func serverURI(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("MYSQL_URI")
	require.NotEmpty(t, uri, "MYSQL_URI is not set: run the tests with scripts/mysql run go test ./...")

	return uri
}

// connect opens a pool, with settings of the driver.
func connect(t testing.TB, uri string, settings ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", u.Host, u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	for _, set := range settings {
		set(c)
	}
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)

	return db
}

// variable sets a variable of the session for each connection.
func variable(name, value string) func(*mysql.Config) {
	return func(c *mysql.Config) {
		if c.Params == nil {
			c.Params = map[string]string{}
		}
		c.Params[name] = value
	}
}

// isolation is a level that all transactions have. MariaDB calls the variable tx_isolation up to
// 11.0.
func isolation(t testing.TB, level string) func(*mysql.Config) {
	t.Helper()
	var name, value string
	err := connect(t, serverURI(t)).QueryRowContext(t.Context(),
		"SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')").Scan(&name, &value)
	require.NoError(t, err)

	return variable(name, "'"+level+"'")
}

// open makes a store, and its tables if they are not there.
func open(t testing.TB, db *sql.DB, c mysqlstore.Config) *mysqlstore.Store {
	t.Helper()
	s, err := mysqlstore.New(db, c)
	require.NoError(t, err)
	require.NoError(t, s.CreateTables(context.Background()))

	return s
}

// tables are a test's own, removed with it.
func tables(t testing.TB, db *sql.DB) mysqlstore.Config {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name+"_inbox, "+name+"_values")
		require.NoError(t, err)
	})

	return mysqlstore.Config{Table: name + "_inbox", ValuesTable: name + "_values"}
}

// server is one of a test's own, to be killed.
type server struct {
	t   *testing.T
	dir string
	uri string
}

func startServer(t *testing.T) *server {
	t.Helper()
	parent := os.Getenv("MYSQL_DIR")
	require.NotEmpty(t, parent, "MYSQL_DIR is not set: run the tests with scripts/mysql run go test ./...")
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
