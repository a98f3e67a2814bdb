package retire_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// fakeAPI answers with these lists, and notes what is deleted.
type fakeAPI struct {
	queues, exchanges, to, from, policies, operator []map[string]any
	asked, deleted                                  []string
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api/")
	f.asked = append(f.asked, path)
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	list := func(items []map[string]any) []map[string]any {
		all := []map[string]any{}
		for _, item := range items {
			item["vhost"] = "/"
			all = append(all, item)
		}
		return all
	}
	switch {
	case r.Method == http.MethodDelete:
		f.deleted = append(f.deleted, path)
		w.WriteHeader(http.StatusNoContent)
	case strings.HasPrefix(path, "queues/"):
		answer(map[string]any{"items": list(f.queues), "page_count": 1})
	case strings.HasSuffix(path, "/bindings/destination"):
		answer(list(f.to))
	case strings.HasSuffix(path, "/bindings/source"):
		answer(list(f.from))
	case strings.HasPrefix(path, "exchanges/"):
		answer(list(f.exchanges))
	case strings.HasPrefix(path, "operator-policies/"):
		answer(list(f.operator))
	default:
		answer(list(f.policies))
	}
}

func TestObsoleteExchanges(t *testing.T) {
	const old = "orders.rejected.30s"
	type item = map[string]any
	binding := item{"source": old, "destination": "orders.dlq", "destination_type": "queue",
		"arguments": item{"x-match": "all-with-x", "x-first-death-reason": "maxlen"}}
	headers := func(name string) item { return item{"name": name, "type": "headers", "arguments": item{}} }
	for name, test := range map[string]struct {
		delay  time.Duration // of the present plan; 0: its strategy is queues
		api    fakeAPI
		found  string
		usedBy string // when it is to be deleted all the same
	}{
		"of another delay":    {time.Minute, fakeAPI{exchanges: []item{headers(old)}, from: []item{binding}}, old, ""},
		"of another strategy": {0, fakeAPI{exchanges: []item{headers(old)}}, old, ""},
		"of classic queues": {0, fakeAPI{exchanges: []item{headers("orders.rejected.1500ms.classic")}},
			"orders.rejected.1500ms.classic", ""},
		"in use":           {30 * time.Second, fakeAPI{exchanges: []item{headers(old)}}, "", ""},
		"of another queue": {0, fakeAPI{exchanges: []item{headers("payments.rejected.30s")}}, "", ""},
		"of another type":  {0, fakeAPI{exchanges: []item{{"name": old, "type": "fanout"}}}, "", ""},
		"another exchange": {0, fakeAPI{exchanges: []item{headers("orders.retry"), headers("orders.rejected")}},
			"", ""},
		"still named": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, queues: []item{
			{"name": "orders", "arguments": item{"x-dead-letter-exchange": old}}}}, "", `queue "orders" ` +
			`dead-letters to it`},
		"named by another queue": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, queues: []item{
			{"name": "payments", "arguments": item{"x-dead-letter-exchange": old}}}}, "", `queue "payments"`},
		"named by a policy": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, policies: []item{
			{"name": "p", "definition": item{"dead-letter-exchange": old}}}}, "", `policy "p"`},
		"named by an operator": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, operator: []item{
			{"name": "o", "definition": item{"dead-letter-exchange": old}}}}, "", `policy "o"`},
		"alternate exchange": {time.Minute, fakeAPI{exchanges: []item{headers(old), {"name": "x", "type": "direct",
			"arguments": item{"alternate-exchange": old}}}}, "", `alternate exchange of "x"`},
		"behind another exchange": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, to: []item{
			{"source": "events", "destination": old, "destination_type": "exchange"}}}, "", `bound to the exchange ` +
			`"events"`},
		"with a foreign binding": {time.Minute, fakeAPI{exchanges: []item{headers(old)}, from: []item{binding,
			{"source": old, "destination": "mine", "destination_type": "queue", "arguments": item{"x-match": "all"}}}},
			"", `"mine" is bound to it`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&test.api)
			defer server.Close()
			api := client(t, server)
			policy := config.Policy{Delays: []time.Duration{time.Second}}
			if test.delay > 0 {
				policy = cycle()
				policy.Delays = []time.Duration{test.delay}
			}
			found, err := retire.Find(t.Context(), api, topology.Names{}, strategyPlan(t, policy,
				topology.Names{}))
			require.NoError(t, err)
			if test.found == "" {
				assert.Empty(t, found.Exchanges)
			} else {
				assert.Equal(t, []retire.Exchange{{Name: test.found, Queue: "orders"}}, found.Exchanges)
				require.NoError(t, retire.DeleteExchange(t.Context(), api, found.Exchanges[0]))
				assert.Equal(t, []string{"exchanges/%2F/" + test.found}, test.api.deleted)
			}
			if test.usedBy == "" {
				return
			}
			err = retire.DeleteExchange(t.Context(), api, retire.Exchange{Name: old, Queue: "orders"})
			var kept *retire.Error
			require.ErrorAs(t, err, &kept)
			assert.True(t, kept.InUse)
			assert.ErrorContains(t, err, `exchange "orders.rejected.30s" was not deleted`)
			assert.ErrorContains(t, err, test.usedBy)
			assert.Empty(t, test.api.deleted)
		})
	}
}

// Whoever may list queues may still do so where there is no such exchange: policies take another
// permission.
func TestNoObsoleteExchangeNeedsNoPolicies(t *testing.T) {
	api := fakeAPI{exchanges: []map[string]any{{"name": "orders.retry", "type": "headers"}}}
	server := httptest.NewServer(&api)
	defer server.Close()
	_, err := retire.Find(t.Context(), client(t, server), topology.Names{},
		strategyPlan(t, config.Policy{}, topology.Names{}))
	require.NoError(t, err)
	for _, path := range api.asked {
		assert.NotContains(t, path, "policies")
		assert.NotContains(t, path, "bindings")
	}
}

// Services with names of their own find theirs by the delays of the queues.
func TestObsoleteExchangesWithOwnNames(t *testing.T) {
	names := topology.Names{Rejected: func(p topology.RetryQueueParams) string {
		return "no-" + p.Delay + "-" + p.Queue
	}}
	api := fakeAPI{exchanges: []map[string]any{{"name": "no-7s-orders", "type": "headers"}},
		queues: []map[string]any{{"name": "x", "arguments": map[string]any{"x-message-ttl": 7000}}}}
	server := httptest.NewServer(&api)
	defer server.Close()
	found, err := retire.Find(t.Context(), client(t, server), names,
		strategyPlan(t, cycle(), names))
	require.NoError(t, err)
	assert.Equal(t, []retire.Exchange{{Name: "no-7s-orders", Queue: "orders"}}, found.Exchanges)
}

func client(t *testing.T, server *httptest.Server) *httpapi.Client {
	t.Helper()
	client, err := httpapi.New(server.URL, "/", nil)
	require.NoError(t, err)
	return client
}

func cycle() config.Policy {
	return config.Policy{Strategy: config.StrategyCycle, Delays: []time.Duration{30 * time.Second}, Retries: 3}
}

func strategyPlan(t *testing.T, policy config.Policy, names topology.Names) topology.Plan {
	t.Helper()
	plan, err := topology.New("orders", policy, names)
	require.NoError(t, err)
	return plan
}

func mustPlan(t testing.TB, queue string, policy config.Policy) topology.Plan {
	t.Helper()
	plan, err := topology.New(queue, policy, topology.Names{})
	require.NoError(t, err)
	return plan
}
