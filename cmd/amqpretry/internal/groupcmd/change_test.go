package groupcmd

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

type item = map[string]any

// fakeAPI has these queues, exchanges, and bindings by the destination.
type fakeAPI struct {
	queues, exchanges []string
	bindings          map[string][]item
}

func (f fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	list := func(names []string) []item {
		all := []item{}
		for _, name := range names {
			all = append(all, item{"name": name, "vhost": "/", "type": "classic", "arguments": item{}})
		}
		return all
	}
	path := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/api/"), "/")
	switch {
	case path[0] == "queues" && len(path) == 2:
		answer(item{"items": list(f.queues), "page_count": 1})
	case path[0] == "queues" && len(path) == 3:
		answer(list(path[2:])[0])
	case path[0] == "queues":
		all := []item{}
		for _, b := range f.bindings[path[2]] {
			b["vhost"], b["destination"], b["destination_type"] = "/", path[2], "queue"
			all = append(all, b)
		}
		answer(all)
	case path[0] == "exchanges" && len(path) == 2:
		answer(list(f.exchanges))
	default:
		answer([]item{})
	}
}

func (f fakeAPI) run(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	api := strings.Replace(newServer(t, f), "://", "://guest:guest@", 1)
	s := &cli.Session{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Getenv: func(key string) string {
		return map[string]string{cli.EnvManagement: api}[key]
	}}
	code = cli.Run(t.Context(), s, append([]string{"group"}, args...), Command)

	return code, stdout.String(), stderr.String()
}

func TestTopics(t *testing.T) {
	for topics, wanted := range map[string]string{
		"":              "--topics: found none",
		"orders,orders": `--topics: found "orders" twice`,
	} {
		code, out, errs := fakeAPI{}.run(t, "remove", "billing", "--topics", topics)
		assert.Equal(t, cli.ExitUsage, code, out)
		assert.Contains(t, errs, wanted)
	}
}

// A queue whose name two topics and groups make is that of the topic whose exchange is bound.
func TestSimilarNames(t *testing.T) {
	f := fakeAPI{queues: []string{"orders_a_b"}, exchanges: []string{"", "orders", "orders_a"},
		bindings: map[string][]item{"orders_a_b": {{"source": "orders"}}}}
	_, out, _ := f.run(t, "list")
	assert.Regexp(t, `\na_b +orders +orders_a_b `, out)
	_, out, _ = f.run(t, "list", "b")
	assert.NotContains(t, out, "orders")

	for _, args := range [][]string{{"remove", "b"}, {"rename", "b", "c"}} {
		code, out, errs := f.run(t, append(args, "--topics", "orders_a")...)
		assert.Equal(t, cli.ExitUsage, code, out)
		assert.Contains(t, errs, `queue "orders_a_b" is bound to exchange "orders" and not to "orders_a"`)
	}
	code, _, errs := f.run(t, "remove", "a_b", "--topics", "orders")
	assert.Equal(t, cli.ExitOK, code, errs)

	f.bindings["orders_a_b"] = append(f.bindings["orders_a_b"], item{"source": "orders_a"})
	_, out, _ = f.run(t, "list")
	assert.Regexp(t, `\nb +orders_a +orders_a_b `, out)
	code, _, errs = f.run(t, "remove", "b", "--topics", "orders_a")
	assert.Equal(t, cli.ExitOK, code, errs)
}

// The bindings of this library go with their queues, and no others.
func TestBindingsOfDeletedQueues(t *testing.T) {
	const delivery = "amqpretry.delay.v1.100ms.10x6.delivery"
	f := fakeAPI{bindings: map[string][]item{
		"q.dlq": {{"source": "q.retry"}, {"source": "foreign"}, {"source": "q.retry.classic"},
			{"source": "p.retry"}, {"source": "q.rejected.1s"}},
		"q.landing": {{"source": "foreign"}, {"source": delivery}, {"source": "foreign.delivery"}},
	}}
	client, err := httpapi.New(strings.Replace(newServer(t, f), "://", "://guest:guest@", 1), "/", nil)
	require.NoError(t, err)
	c := &change{groups: &groups{}, client: client}
	dead, landing := &retire.Queue{}, &retire.Queue{}
	dead.Name, landing.Name = "q.dlq", "q.landing"
	require.NoError(t, c.bindings(t.Context(), &part{queue: "q"}, &held{dead: dead, landing: landing}))
	assert.Equal(t, "q.retry", dead.RetryExchange)
	assert.Equal(t, []string{"q.retry.classic"}, dead.Others)
	assert.Equal(t, delivery, landing.RetryExchange)
	assert.Empty(t, landing.Others)
}

// While old instances can fail messages, these can begin to wait in queues of all services.
func TestWaitBeginsAgain(t *testing.T) {
	remove, rename := &change{}, &change{to: "invoicing"}
	assert.True(t, remove.begins(1, 1, 0))
	assert.True(t, remove.begins(0, 1, 1))
	assert.False(t, remove.begins(0, 1, 0), "instances that wait to be stopped")
	assert.True(t, rename.begins(0, 1, 0))
	assert.True(t, rename.begins(0, 0, 1), "an instance that ends")
	assert.False(t, rename.begins(1, 0, 0))
}

// The new queue waits for its consumers. It is not to be deleted meanwhile.
func TestExpiringQueues(t *testing.T) {
	require.NoError(t, checkExpires("old", "new", httpapi.Arguments{"x-queue-type": "quorum"}))
	err := checkExpires("old", "new", httpapi.Arguments{"x-expires": int64(1000)})
	require.ErrorContains(t, err, `queue "old" has the argument x-expires`)
	require.ErrorContains(t, err, `declare "new" without it`)
}

// Only what this library has named after the queue is renamed with it.
func TestRenamedArguments(t *testing.T) {
	renames := map[string]string{"old": "new", "old.dlq": "new.dlq", "old.rejected.5s": "new.rejected.5s",
		"old.dlx": "old.dlx", "older": "older", "": ""}
	for from, to := range renames {
		assert.Equal(t, amqp091.Table{"x-dead-letter-exchange": to, "x-max-length": int64(3)},
			renamed(httpapi.Arguments{"x-dead-letter-exchange": from, "x-max-length": int64(3)}, "old", "new"))
	}
}
