package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

// Claims and their commits survive SIGKILL of the server: what it has said stays so.
func TestServerKilled(t *testing.T) {
	onEach(t, func(t *testing.T, on server) {
		own := on.startOwn(t)
		testFaults(t, on, own.uri, own.uri, 5, func() {
			own.kill()
			own.start()
		})
	})
}

// Connections are lost, and with them answers of the server.
func TestConnectionsCut(t *testing.T) {
	onEach(t, func(t *testing.T, on server) {
		p := startProxy(t, on.uri)
		testFaults(t, on, p.uri, on.uri, 100, p.cut)
	})
}

// fate is what a test knows of a message.
type fate int

const (
	unknown   fate = iota // an answer was lost
	claimed               // and not committed
	committed             // and the server has said so
	retryable             // claimed, while the answer of Commit was lost
)

// message is one of a test.
type message struct {
	key   string
	tx    bool
	fate  fate
	claim store.Claim
}

// testFaults works with a store while faults happen, and then compares what is there with what was
// said.
func testFaults(t *testing.T, on server, uri, direct string, faults int, fault func()) {
	db, check := on.connect(t, uri), on.connect(t, direct)
	c := tables(t, check)
	s := on.store(t, check, c)
	effects := table(t, check, "message_key varchar(100) NOT NULL")
	working, err := on.open(db, c)
	require.NoError(t, err)

	var messages sync.Map
	var answered, failed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m := &message{key: fmt.Sprint(worker, "-", i), tx: i%3 == 2}
				messages.Store(m.key, m)
				if err := handle(working, db, effects, m, i%3 == 1); err != nil {
					failed.Add(1)
					<-time.After(5 * time.Millisecond) // the processor is for the server, too
				} else {
					answered.Add(1)
				}
			}
		})
	}
	for range faults {
		before := answered.Load()
		await.Within(t, soon, func() bool { return answered.Load() >= before+50 })
		fault()
	}
	close(stop)
	wg.Wait()
	db.SetMaxIdleConns(0) // some of them were cut
	t.Logf("%d calls were answered, %d failed", answered.Load(), failed.Load())
	assert.Positive(t, failed.Load())
	messages.Range(func(_, value any) bool {
		verify(t, s, check, effects, value.(*message))

		return true
	})
}

// handle handles a message in one of three ways: it is claimed only, or committed, or handled in a
// transaction.
func handle(s *sqlstore.Store, db *sql.DB, effects string, m *message, commit bool) error {
	ctx := context.Background()
	if m.tx {
		err := handleTx(ctx, s, db, effects, m.key)
		if err == nil {
			m.fate = committed
		}

		return err
	}
	claim, err := s.Begin(ctx, "h", m.key, lease)
	if err != nil {
		return err
	}
	if claim.State() != store.New {
		return errors.New("not new")
	}
	m.claim, m.fate = claim, claimed
	if !commit {
		return nil
	}
	m.fate = retryable
	if err := claim.Commit(ctx); err != nil {
		return err
	}
	m.fate = committed

	return nil
}

func handleTx(ctx context.Context, s *sqlstore.Store, db *sql.DB, effects, key string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // without effect after the commit
	if state, err := s.BeginTx(ctx, tx, "h", key); err != nil || state != store.New {
		return errors.Join(err, errors.New(state.String()))
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO "+effects+" VALUES ('"+key+"')"); err != nil {
		return err
	}

	return tx.Commit()
}

func verify(t *testing.T, s *sqlstore.Store, db *sql.DB, effects string, m *message) {
	t.Helper()
	if m.fate == retryable {
		require.NoError(t, m.claim.Commit(t.Context()), "%s: a commit whose answer was lost", m.key)
		m.fate = committed
	}
	claim, err := s.Begin(t.Context(), "h", m.key, lease)
	require.NoError(t, err)
	switch m.fate {
	case committed:
		require.Equal(t, store.Done, claim.State(), m.key)
	case claimed:
		require.Equal(t, store.InFlight, claim.State(), m.key)
	}
	if m.tx {
		var n int
		err := db.QueryRowContext(t.Context(),
			"SELECT count(*) FROM "+effects+" WHERE message_key = '"+m.key+"'").Scan(&n)
		require.NoError(t, err)
		require.Equal(t, claim.State() == store.Done, n == 1, "%s: %d effects, %s", m.key, n, claim.State())
	}
}

// proxy stands between the pool and the server.
type proxy struct {
	uri    string
	target string
	mu     sync.Mutex
	conns  []net.Conn
}

func startProxy(t *testing.T, uri string) *proxy {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{target: u.Host}
	u.Host = "127.0.0.1:" + strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	p.uri = u.String()
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.serve(client)
		}
	}()

	return p
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()

		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = client.Close()
			_ = server.Close()
		}()
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}
