package dlqweb

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// pipes is a listener without a network, whose deadlines are those of a test's clock.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// upload is a request whose body comes bit by bit.
type upload struct {
	net.Conn
	answer chan *http.Response
}

func (p *pipes) begin(t *testing.T, path, user, kind string, length int) *upload {
	t.Helper()
	client, server := net.Pipe()
	p.accept <- server
	u := &upload{client, make(chan *http.Response, 1)}
	t.Cleanup(func() { _ = client.Close() })
	go func() {
		if response, err := http.ReadResponse(bufio.NewReader(client), nil); err == nil {
			u.answer <- response
			_, _ = io.Copy(io.Discard, client) // until the server closes the connection
		}
		close(u.answer)
	}()
	_, err := fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: x\r\nX-User: %s\r\nContent-Type: %s\r\n"+
		"Content-Length: %d\r\n\r\n", path, user, kind, length)
	require.NoError(t, err)

	return u
}

// sends gives data piece by piece, with a pause before each, and returns how the server answers.
func (u *upload) sends(t *testing.T, pieces, size int, pause time.Duration) *http.Response {
	t.Helper()
	for range pieces {
		select {
		case response := <-u.answer:
			return response
		case <-time.After(pause):
		}
		if _, err := u.Write([]byte(strings.Repeat("\n", size))); err != nil {
			break // it has answered
		}
	}

	return <-u.answer
}

func withoutBroker(t *testing.T) (*Console, *pipes) {
	t.Helper()
	console, err := New(Config{Broker: dlq.Config{URI: "amqp://127.0.0.1:1"}, Queues: []string{"orders"},
		Folder: t.TempDir(), Audit: slog.DiscardHandler, Authorize: func(r *http.Request) (User, Role, error) {
			return User(r.Header.Get("X-User")), RoleDelete, nil
		}})
	require.NoError(t, err)
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: console, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(p) }()
	t.Cleanup(func() {
		_ = server.Close()
		_ = console.Close()
		<-time.After(time.Second) // the server closes connections a little later
	})

	return console, p
}

const (
	formType = "application/x-www-form-urlencoded"
	imports  = "/api/v1/queues/orders.dlq/imports"
)

// A body that comes too slowly is given up, whatever it is, and whether or not somebody reads it.
func TestSlowBodies(t *testing.T) {
	for name, test := range map[string]struct {
		path, kind string
		status     int
	}{
		"a form":           {"/plan", formType, http.StatusRequestTimeout},
		"JSON":             {"/api/v1/runs", "application/json", http.StatusRequestTimeout},
		"a file of a form": {"/plan", "multipart/form-data; boundary=x", http.StatusRequestTimeout},
		"a file":           {imports, "application/jsonl", http.StatusRequestTimeout},
		"nobody reads it":  {"/api/v1/runs/none/confirm", "application/json", http.StatusNotFound},
		"no such page":     {"/nothing", formType, http.StatusNotFound},
		"refused":          {imports, "text/plain", http.StatusUnsupportedMediaType},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				console, p := withoutBroker(t)
				began := time.Now()
				u := p.begin(t, test.path, "ada", test.kind, 100<<10)
				response := u.sends(t, 1000, 10, time.Second)
				assert.Equal(t, test.status, response.StatusCode)
				for open := true; open; { // until the connection is closed
					_, open = <-u.answer
				}
				assert.LessOrEqual(t, time.Since(began), readTime+2*time.Second)
				assert.Zero(t, console.uploads.all)
			})
		})
	}
}

// A large file may take as long as it does, as long as it comes.
func TestLongUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, p := withoutBroker(t)
		const pieces, size = 20, leastRead
		u := p.begin(t, imports, "ada", "application/jsonl", pieces*size)
		assert.Equal(t, http.StatusCreated, u.sends(t, pieces, size, readTime-time.Second).StatusCode)
		assert.Zero(t, console.uploads.all)

		u = p.begin(t, imports, "ada", "application/jsonl", pieces*size)
		assert.Equal(t, http.StatusRequestTimeout, u.sends(t, 20*pieces, size/20, 2*time.Second).StatusCode)
		assert.Len(t, console.runs.list(), 1)
	})
}

// Few bodies are read at a time, so that one user is not in the way of others.
func TestParallelUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, p := withoutBroker(t)
		begin := func(user string) *upload { return p.begin(t, "/plan", user, formType, 10) }
		reading := func(user string, n int) (all []*upload) {
			for range n {
				all = append(all, begin(user))
			}
			synctest.Wait()
			return all
		}
		slow := reading("ada", mostUploadsOfUser)
		assert.Equal(t, mostUploadsOfUser, console.uploads.all)
		began := time.Now()
		refused := <-begin("ada").answer
		assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
		assert.Equal(t, "5", refused.Header.Get("Retry-After"))
		assert.Equal(t, 2*uploadWait, time.Since(began), "it has not sent the rest")

		bob := begin("bob")
		assert.Equal(t, http.StatusBadRequest, bob.sends(t, 1, 10, 0).StatusCode, "read, and not understood")
		waits := begin("ada")
		synctest.Wait()
		assert.Equal(t, http.StatusBadRequest, slow[0].sends(t, 1, 10, 0).StatusCode)
		assert.Equal(t, http.StatusBadRequest, waits.sends(t, 1, 10, 0).StatusCode, "it was its turn")

		for i := range 3 {
			reading(fmt.Sprint(i), mostUploadsOfUser)
		}
		reading("eve", 1)
		assert.Equal(t, mostUploads, console.uploads.all)
		assert.Equal(t, http.StatusTooManyRequests, (<-begin("bob").answer).StatusCode)
	})
}
