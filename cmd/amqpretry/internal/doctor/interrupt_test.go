package doctor

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// link is a way to the broker for one run of doctor, on which something happens once the client has
// sent enough.
type link struct {
	uri   string
	sent  atomic.Int64
	ends  int64 // 0 is never
	event chan struct{}
	once  sync.Once
}

// link begins one that passes on nothing after so many bytes of the client. With cut, its
// connections are closed then.
func (l *lab) link(ends int64, cut bool) *link {
	u, err := url.Parse(l.uri)
	require.NoError(l.t, err)
	broker := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = listener.Close() })
	u.Host = listener.Addr().String()
	way := &link{uri: u.String(), ends: ends, event: make(chan struct{})}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", broker)
			if err != nil {
				_ = client.Close()
				return
			}
			closing := func() { _, _ = client.Close(), server.Close() }
			if cut {
				go func() { <-way.event; closing() }()
			}
			go func() { _, _ = io.Copy(client, server); closing() }()
			go func() {
				_, err := io.Copy(&counted{server, way}, client)
				if err == nil { // the client has closed it
					closing()
				}
			}()
		}
	}()
	return way
}

// counted is the way from the client to the broker.
type counted struct {
	io.Writer
	way *link
}

func (c *counted) Write(b []byte) (int, error) {
	if sent := c.way.sent.Add(int64(len(b))); c.way.ends > 0 && sent >= c.way.ends {
		c.way.once.Do(func() { close(c.way.event) })
		return 0, io.ErrClosedPipe
	}
	return c.Writer.Write(b)
}

// Wherever the connection is cut, doctor prints what it has found until then and says so, and does
// not panic.
func testCutConnections(l *lab) {
	l.protected("orders")
	l.full("orders") // which waits for statistics
	whole := l.link(0, true)
	env := map[string]string{cli.EnvURI: whole.uri, cli.EnvManagement: l.api}
	v := l.doctor(env, "--policies", l.policies, "orders")
	require.Equal(l.t, cli.ExitOK, v.code, v.err)

	const times = 40
	printed := 0
	for i := range int64(times) {
		way := l.link(1+i*whole.sent.Load()/times, true)
		env := map[string]string{cli.EnvURI: way.uri, cli.EnvManagement: l.api}
		v := l.doctor(env, "--policies", l.policies, "orders")
		assert.Equal(l.t, cli.ExitFailed, v.code, "cut after %d bytes: %s%s", way.ends, v.out, v.err)
		assert.NotContains(l.t, v.out, "all checks are complete")
		if v.out == "" {
			assert.Contains(l.t, v.err, "cannot connect to RabbitMQ")
			continue
		}
		printed++
		assert.Contains(l.t, v.err, "cannot finish the checks: the connection to the broker was lost: ")
		assert.Contains(l.t, v.out, "\nIncomplete: the connection to the broker was lost: ")
		assert.NotContains(l.t, v.out, "problem,", "nothing is wrong with the queues")
	}
	assert.Greater(l.t, printed, times/2)
}

// Whenever it is interrupted, doctor ends at once, also when the broker does not answer: with what
// it has found until then, and with a code of its own.
func testInterrupts(l *lab) {
	l.protected("orders")
	l.publish("orders.dlq")
	l.full("orders") // which waits for statistics
	whole := l.link(0, false)
	run := func(way *link) (code int, out, errs string) {
		cmd := exec.Command(filepath.Join(l.bin, "amqpretry"), "doctor", "--policies", l.policies, "orders")
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		cmd.Env = append(os.Environ(), cli.EnvURI+"="+way.uri, cli.EnvManagement+"="+l.api)
		require.NoError(l.t, cmd.Start())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }()
		if way.ends > 0 {
			await.Closed(l.t, way.event, "the moment of the interrupt")
			began := time.Now()
			require.NoError(l.t, cmd.Process.Signal(syscall.SIGINT))
			await.Closed(l.t, ended, "the end")
			assert.Less(l.t, time.Since(began), inspect.PublisherTimeout, "after %d bytes", way.ends)
		}
		await.Closed(l.t, ended, "the end")
		return cmd.ProcessState.ExitCode(), o.String(), e.String()
	}
	code, out, errs := run(whole)
	require.Equal(l.t, cli.ExitFound, code, "%s%s", out, errs)

	const times = 30
	printed, letters := 0, 0
	for i := range int64(times) {
		way := l.link(1+i*whole.sent.Load()/times, false)
		code, out, errs := run(way)
		assert.Equal(l.t, cli.ExitInterrupted, code, "interrupted after %d bytes: %s%s", way.ends, out, errs)
		assert.Contains(l.t, errs, "amqpretry: interrupted")
		assert.NotContains(l.t, out, "all checks are complete")
		if out == "" { // before it was connected
			continue
		}
		printed++
		assert.Contains(l.t, out, "\nIncomplete: interrupted. ")
		if bytes.Contains([]byte(out), []byte("warning, dead-letters: 1 message")) {
			letters++
		}
	}
	assert.Greater(l.t, printed, times/2)
	assert.Greater(l.t, letters, 3, "what was found until then is printed")
}
