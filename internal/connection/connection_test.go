package connection

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/retry"
)

// newTestConnection returns a connection that tries once an hour.
func newTestConnection(t *testing.T, s Settings) *Connection {
	t.Helper()
	s.Emit = func(retry.Event) {}
	s.Reconnect = Reconnect{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 1}
	c := New(s, watermill.NopLogger{})
	t.Cleanup(func() { c.Close(time.Now().Add(time.Second)) })

	return c
}

// A caller that asks for one attempt waits for a second at most, however long the pause is that the
// last failure has begun. Any number of callers makes no more attempts than that.
func TestTryLinkShortensThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(false)
		var down atomic.Bool
		var dials atomic.Int32
		c := newTestConnection(t, Settings{
			URI: "amqp://guest:guest@broker/",
			AMQP: &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
				dials.Add(1)
				if down.Load() {
					return nil, errors.New("the broker is down")
				}

				return broker.Dial(network, address)
			}},
		})

		down.Store(true)
		began := time.Now()
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				for range 3 {
					_, err := c.TryLink(t.Context())
					assert.ErrorContains(t, err, "the broker is down")
				}
			})
		}
		callers.Wait()
		made := dials.Load()
		assert.LessOrEqual(t, made, int32(4), "a late caller may have missed the first")
		assert.Equal(t, time.Duration(made-1)*hurriedPause, time.Since(began), "the first attempt is made at once")

		down.Store(false)
		_, err := c.TryLink(t.Context())
		require.NoError(t, err)
		assert.Equal(t, made+1, dials.Load())
		assert.Equal(t, time.Duration(made)*hurriedPause, time.Since(began))
	})
}

// A broker that takes the connection and says nothing does not hold up who has given up.
func TestCloseWhileABrokerSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, uri := range []string{"amqp://guest:guest@a/", "amqps://guest:guest@a/"} {
			c := newTestConnection(t, Settings{URI: uri,
				AMQP: &amqp091.Config{Dial: func(string, string) (net.Conn, error) {
					client, server := net.Pipe()
					go func() { _, _ = io.Copy(io.Discard, server) }()
					return client, nil
				}}})
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			began := time.Now()
			_, err := c.TryLink(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			c.Close(time.Now().Add(5 * time.Second))
			assert.Equal(t, 4*time.Second, time.Since(began), uri)
			cancel()
		}
	})
}

// The URI's own bound holds, for each node.
func TestConnectionTimeoutOfTheURI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(string, string) (net.Conn, error) {
			client, _ := net.Pipe()
			return client, nil
		}
		for _, addresses := range [][]string{nil, {"b", "c"}} {
			c := newTestConnection(t, Settings{URI: "amqp://guest:guest@a/?connection_timeout=1500",
				Addresses: addresses, AMQP: &amqp091.Config{Dial: silent}})
			began := time.Now()
			_, err := c.TryLink(t.Context())
			require.ErrorContains(t, err, "within 1.5s")
			assert.Equal(t, time.Duration(1+len(addresses))*1500*time.Millisecond, time.Since(began))
		}
	})
}

// Whatever else than AMQP answers at the address, the error says so.
func TestWhatIsNotAMQP(t *testing.T) {
	t.Parallel()

	plainHTTP := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plainHTTP.Close)
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(certificate.Close)
	trusting := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a test

	says := func(words string) string {
		return listen(t, func(conn net.Conn) net.Conn { return conn }, words)
	}
	saysByTLS := func(words string) string {
		return listen(t, func(conn net.Conn) net.Conn { return tls.Server(conn, certificate.TLS) }, words)
	}
	for name, c := range map[string]struct{ uri, want string }{
		"an HTTP server": {"amqp://u:SECRET@" + says("HTTP/1.1 400 Bad Request\r\n\r\n"),
			"an HTTP server answers there, not an AMQP broker; "},
		"HTTPS": {"amqps://u:SECRET@" + saysByTLS("HTTP/1.1 400 Bad Request\r\n\r\n"),
			"an HTTP server answers there, not an AMQP broker; "},
		"HTTP by amqps": {"amqps://u:SECRET@" + strings.TrimPrefix(plainHTTP.URL, "http://"),
			"an HTTP server answers there, not an AMQP broker; "},
		"TLS, asked without": {"amqp://u:SECRET@" + says("\x15\x03\x03\x00\x02\x02\x46"), "the port speaks TLS; " +
			"use amqps://"},
		"AMQP, asked with TLS": {"amqps://u:SECRET@" + says("AMQP\x00\x00\x09\x01"), "the port speaks AMQP without " +
			"TLS; use amqp://"},
		"no TLS, no AMQP": {"amqps://u:SECRET@" + says("SSH-2.0-OpenSSH_9.2\r\n"), "the port does not speak TLS; "},
		"another version": {"amqp://u:SECRET@" + says("AMQP\x00\x01\x00\x00"), "the broker does not speak AMQP " +
			"0-9-1; "},
		"SSH": {"amqp://u:SECRET@" + says("SSH-2.0-OpenSSH_9.2\r\n"), "what answers there is not an AMQP broker; "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connection := newTestConnection(t, Settings{URI: c.uri + "/?connection_timeout=5000", TLS: trusting})
			_, err := connection.TryLink(t.Context())
			require.ErrorContains(t, err, "cannot connect to RabbitMQ: ")
			require.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "SECRET")
		})
	}
}

// serve serves each connection and closes it. It gives the address.
func serve(t *testing.T, one func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				one(conn)
			}()
		}
	}()

	return listener.Addr().String()
}

// listen says some words on each connection, once it has heard something.
func listen(t *testing.T, secure func(net.Conn) net.Conn, words string) string {
	t.Helper()
	return serve(t, func(socket net.Conn) {
		conn := secure(socket)
		defer func() { _ = conn.Close() }()
		if _, err := conn.Read(make([]byte, 1024)); err == nil {
			_, _ = conn.Write([]byte(words))
		}
	})
}

// Who cannot connect at all gets an error, and gives up: no line of the log announces a try that
// nobody makes.
func TestNoTryIsAnnouncedThatIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := watermill.NewCaptureLogger()
		c := New(Settings{URI: "amqp://guest:guest@a/", Emit: func(retry.Event) {}, AMQP: &amqp091.Config{
			Dial: func(string, string) (net.Conn, error) { return nil, errors.New("wrong password") },
		}, Reconnect: Reconnect{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 1}}, logged)
		_, err := c.TryLink(t.Context())
		require.ErrorContains(t, err, "wrong password")
		c.Close(time.Now().Add(time.Second))
		assert.Empty(t, logged.Captured()[watermill.ErrorLogLevel])
	})
}
