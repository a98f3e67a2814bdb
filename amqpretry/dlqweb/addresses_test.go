package dlqweb

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

func TestWithoutAddresses(t *testing.T) {
	t.Parallel()
	to := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 5672}
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv6loopback, Port: 4}, Addr: to,
		Err: syscall.ECONNRESET}
	lookup := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "rabbit.internal",
		Server: "10.0.0.2:53"}}
	for _, test := range []struct{ text, want string }{
		{refused.Error(), "dial tcp (address): connection refused"},
		{reset.Error(), "read tcp (address): connection reset by peer"},
		{lookup.Error(), "dial tcp: lookup (address): no such host"},
		{"management API: GET http://10.0.0.5:15672/api/queues: no answer", "management API: GET (address): no answer"},
		{"amqps://rabbit.internal, amqp://a:1/v.", "(address), (address)."},
		{"nodes 10.0.0.5:5672 and [fd00::5]:5672", "nodes (address) and (address)"},
		{"x509: certificate is valid for a.internal, b.internal, not c.internal",
			"x509: certificate is valid for other names"},
		{`Plan.To: must be another queue, got "orders.dlq"; at 12:30, 1.5 of 10`,
			`Plan.To: must be another queue, got "orders.dlq"; at 12:30, 1.5 of 10`},
	} {
		assert.Equal(t, test.want, withoutAddresses(test.text))
	}
	for status, want := range map[int]string{0: "does not answer", 401: "refused the console's user",
		500: "answered 500"} {
		p := problemOf(fmt.Errorf("x: %w", &httpapi.Error{URL: "http://10.0.0.5:15672", Status: status,
			User: "monitor", Reason: "see http://10.0.0.5"}))
		assert.Contains(t, p.Title, want)
		assert.NotContains(t, p.Title+p.Detail+p.Do, "10.0.0.5")
	}
	full := noFolder(&fs.PathError{Op: "write", Path: "/var/lib/shop/x", Err: syscall.ENOSPC})
	assert.Equal(t, "no space left on device", full.Detail)
	assert.NotContains(t, noFolder(errors.New("/var/lib/shop/x")).Detail, "shop")
}

// capture is a logger that keeps the errors.
type capture struct {
	watermill.LoggerAdapter
	mu   sync.Mutex
	text strings.Builder
}

func (c *capture) Error(_ string, err error, _ watermill.LogFields) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintln(&c.text, err)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.text.String()
}

// In an outage no page and no answer has an address; the log has them.
func TestOutageTellsNoAddresses(t *testing.T) {
	t.Parallel()
	var log capture
	log.LoggerAdapter = watermill.NopLogger{}
	console, err := New(Config{Logger: &log, Broker: dlq.Config{URI: "amqp://127.0.0.1:1",
		Management: management.API{URL: "http://monitor:secret@127.0.0.1:2"}},
		Folder: t.TempDir(), Audit: slog.DiscardHandler,
		Authorize: func(*http.Request) (User, Role, error) { return "ada", RoleDelete, nil }})
	require.NoError(t, err)
	defer func() { require.NoError(t, console.Close()) }()
	ask := func(method, path, body string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		console.ServeHTTP(w, r)
		return w.Body.String()
	}
	plan := `{"kind":"purge","queue":"orders.dlq"}`
	require.Contains(t, ask(http.MethodPost, "/api/v1/runs", plan), "counting")
	var runs string
	await.Until(t, func() bool {
		runs = ask(http.MethodGet, "/api/v1/runs", "")
		return strings.Contains(runs, "failed")
	})
	all := []string{runs, ask(http.MethodGet, "/run?id="+console.runs.list()[0].ID, "")}
	for _, path := range []string{"/", "/queue?queue=orders.dlq", "/message?queue=orders.dlq&uuid=1", "/api/v1/queues",
		"/api/v1/queues/orders.dlq", "/api/v1/queues/orders.dlq/dead-letters"} {
		all = append(all, ask(http.MethodGet, path, ""))
	}
	for _, text := range all {
		assert.NotContains(t, text, "127.0.0.1")
		assert.NotContains(t, text, "monitor:")
	}
	assert.Contains(t, log.String(), "127.0.0.1:1:")
	assert.Contains(t, log.String(), "127.0.0.1:2/")
	assert.NotContains(t, log.String(), "secret")
}
