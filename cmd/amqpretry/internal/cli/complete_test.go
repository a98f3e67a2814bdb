package cli

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func TestMainQueues(t *testing.T) {
	ladder := topology.Ladder{Config: config.ScheduleLadder()}
	queues := []string{"orders", "orders.retry.1s", "retry.1s", "orders.dlq", "orders.dlq.lock", "orders.landing",
		"events.exchange.paid.landing", "v1.100ms.10x6", "orders.v1.3x4"}
	for _, q := range slices.Concat(ladder.Shared().Queues, topology.Ladder{}.Shared().Queues) {
		queues = append(queues, q.Name)
	}
	assert.Equal(t, []string{"orders", "v1.100ms.10x6", "orders.v1.3x4"}, MainQueues(queues))
}

func TestCompleteLadder(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"page_count":1,"items":[{"name":"orders","vhost":"/"},{"name":"orders.unroutable",
			"vhost":"/"},{"name":"own.v1.1s.10x3.unroutable","vhost":"/"},{"name":"own.v1.1s.10x3.1s","vhost":"/"},
			{"name":"amqpretry.delay.v1.100ms.10x6.unroutable","vhost":"/"},
			{"name":"$(reboot).v1.1s.10x3.unroutable","vhost":"/"}]}`))
	}))
	t.Cleanup(api.Close)
	completed := func(typed string) string {
		w := newWorld(map[string]string{EnvManagement: api.URL})
		code := w.run(t, func(s *Session) *cobra.Command {
			cmd := command(nothing)(s)
			s.LadderFlag(cmd, "")

			return cmd
		}, "__complete", "do", "--ladder", typed)
		require.Equal(t, ExitOK, code)
		names, _, _ := strings.Cut(w.out.String(), ":4\n") // no files

		return names
	}
	assert.Equal(t, "own.v1.1s.10x3\namqpretry.delay.v1.100ms.10x6\n", completed(""))
	assert.Equal(t, "own.v1.1s.10x3\n", completed("own"))
}

func TestCompleteQueues(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"page_count":1,"items":[{"name":"orders","vhost":"/"},{"name":"orders.dlq","vhost":"/"},
			{"name":"orders.retry.1s","vhost":"/"},{"name":"payments","vhost":"/"},
			{"name":"two words","vhost":"/"},{"name":"$(reboot)","vhost":"/"},{"name":"a\u001b[2J","vhost":"/"}]}`))
	}))
	t.Cleanup(api.Close)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hangs.CloseClientConnections)

	completed := func(t *testing.T, environ map[string]string, many bool, args ...string) string {
		t.Helper()
		w := newWorld(environ)
		code := w.run(t, func(s *Session) *cobra.Command {
			cmd := command(nothing)(s)
			cmd.Args = cobra.ArbitraryArgs
			s.CompleteQueues(cmd, many, MainQueues)

			return cmd
		}, append([]string{"__complete", "do"}, args...)...)
		require.Equal(t, ExitOK, code)
		names, _, _ := strings.Cut(w.out.String(), ":4\n") // no files

		return names
	}
	there := map[string]string{EnvManagement: api.URL}

	assert.Equal(t, "orders\npayments\n", completed(t, there, false, ""), "main queues that a shell takes as they are")
	assert.Equal(t, "payments\n", completed(t, there, false, "pay"))
	assert.Empty(t, completed(t, there, false, "orders", ""), "one is enough")
	assert.Equal(t, "payments\n", completed(t, there, true, "orders", ""), "not twice")
	assert.Equal(t, "orders\npayments\n", completed(t, nil, false, "--management-url", api.URL, ""), "by the flag")
	assert.Empty(t, completed(t, nil, false, ""), "nobody tells")
	assert.Empty(t, completed(t, map[string]string{EnvManagement: "http://127.0.0.1:1"}, false, ""), "nobody is there")
	began := time.Now()
	assert.Empty(t, completed(t, map[string]string{EnvManagement: hangs.URL}, false, "--timeout", "1h", ""),
		"it does not answer")
	assert.Less(t, time.Since(began), 30*completionTime, "as long as for names, and not for an answer")
}
