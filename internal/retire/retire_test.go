package retire

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// What the API does not say is not 0: of a queue whose node is down it says nothing.
func TestEmptyNeedsNumbers(t *testing.T) {
	zero, one := int64(0), int64(1)
	classic := httpapi.Queue{Messages: &zero, Ready: &zero, Unacked: &zero}
	quorum := httpapi.Queue{Messages: &zero, Ready: &zero, Unacked: &zero, Undeliverable: &zero}
	assert.True(t, empty(classic))
	assert.True(t, empty(quorum))
	for _, field := range []func(*httpapi.Queue) **int64{
		func(q *httpapi.Queue) **int64 { return &q.Messages },
		func(q *httpapi.Queue) **int64 { return &q.Ready },
		func(q *httpapi.Queue) **int64 { return &q.Unacked },
	} {
		missing, some := quorum, quorum
		*field(&missing), *field(&some) = nil, &one
		assert.False(t, empty(missing))
		assert.False(t, empty(some))
	}
	stuck := quorum
	stuck.Undeliverable = &one
	assert.False(t, empty(stuck))
	held := quorum
	held.Delayed = &one
	assert.False(t, empty(held), "held back until its x-opt-delivery-time")
}

// Whatever somebody makes by hand: only a retry queue is touched. There is no broker at this
// address.
func TestRetireRefusesWhatIsNoRetryQueue(t *testing.T) {
	api, err := httpapi.New("http://127.0.0.1:1", "/", nil)
	require.NoError(t, err)
	for name, queue := range map[string]topology.Queue{
		"main queue":        {Name: "orders"},
		"dead-letter queue": {Name: "orders.dlq", Arguments: amqp.Table{"x-queue-type": "quorum"}},
		"another delay": {Name: "orders.retry.1s", Delay: time.Second,
			Arguments: amqp.Table{amqp.QueueMessageTTLArg: int64(60000)}},
	} {
		t.Run(name, func(t *testing.T) {
			var refused *Error
			require.ErrorAs(t, Delete(t.Context(), api, Queue{Queue: queue}), &refused)
			assert.Equal(t, queue.Name, refused.Queue)
			assert.True(t, refused.InUse)
		})
	}
}

// Statistics may still count consumers that have ended, so a queue with some is not empty yet.
func TestEmptyHasNoConsumers(t *testing.T) {
	zero, one := int64(0), int64(1)
	q := httpapi.Queue{Messages: &zero, Ready: &zero, Unacked: &zero}
	assert.True(t, empty(q))
	q.Consumers = &zero
	assert.True(t, empty(q))
	q.Consumers = &one
	assert.False(t, empty(q))
}

func TestNotInTimeSaysWhatIsThere(t *testing.T) {
	zero, two, three := int64(0), int64(2), int64(3)
	queue := Queue{Queue: topology.Queue{Name: "orders.retry.30s", Delay: 30 * time.Second,
		Arguments: amqp.Table{"x-dead-letter-routing-key": "orders"}}}
	for want, last := range map[string]httpapi.Queue{
		`queue "orders.retry.30s" was not deleted: the API does not show its messages (state "down"); start its nodes, or wait until a broker that was just started has statistics (context deadline exceeded)`:                                          {State: "down"},
		`queue "orders.retry.30s" was not deleted: waiting messages: 3; give it more time than its delay of 30s (context deadline exceeded)`:                                                                                                             {Messages: &three, Undeliverable: &zero},
		`queue "orders.retry.30s" was not deleted: messages in it: 3; not accepted by "orders", where they return to: 2; if that queue is missing, declare it again, and they return within 3 minutes; or move them by hand (context deadline exceeded)`: {Messages: &three, Undeliverable: &two},
		`queue "orders.retry.30s" was not deleted: consumers on it: 2; end them (context deadline exceeded)`:                                                                                                                                             {Messages: &zero, Consumers: &two},
		`queue "orders.retry.30s" was not deleted: no statistics yet that are new enough to prove it empty; give it half a minute (context deadline exceeded)`:                                                                                           {Messages: &zero, Members: []string{"a"}, Online: []string{"a"}},
		`queue "orders.retry.30s" was not deleted: of its members [a b] only [b] are online, so messages may still be on their way to it; start its nodes (context deadline exceeded)`:                                                                   {Messages: &zero, Members: []string{"a", "b"}, Online: []string{"b"}},
		`queue "orders.retry.30s" was not deleted: messages in it: 3; held by the broker until their x-opt-delivery-time: 2; wait until then (context deadline exceeded)`:                                                                                {Messages: &three, Delayed: &two},
	} {
		err := (&retirement{queue: queue, last: last}).notInTime(context.DeadlineExceeded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualError(t, err, want)
	}
}

// Bindings of this library go, and a foreign one keeps the queue.
func TestUnbind(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		var unbound []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			all := []map[string]any{}
			for _, source := range []string{"q.retry", "q.retry.classic", "foreign"} {
				if source != "foreign" || foreign {
					all = append(all, map[string]any{"source": source, "vhost": "/", "destination": "q.dlq",
						"destination_type": "queue", "properties_key": "~"})
				}
			}
			switch r.Method {
			case http.MethodGet:
				_ = json.NewEncoder(w).Encode(all)
			case http.MethodDelete:
				unbound = append(unbound, strings.Split(r.URL.Path, "/")[6])
				w.WriteHeader(http.StatusNoContent)
			default:
				w.WriteHeader(http.StatusCreated)
			}
		}))
		client, err := httpapi.New(strings.Replace(server.URL, "//", "//user@", 1), "/", nil)
		require.NoError(t, err)
		r := &retirement{client: client, queue: Queue{Queue: topology.Queue{Name: "q.dlq"}, RetryExchange: "q.retry",
			Others: []string{"q.retry.classic"}, Whole: true}}
		err = r.unbind(t.Context())
		server.Close()
		if foreign {
			require.ErrorContains(t, err, `it is bound to exchange "foreign"`)
			assert.Empty(t, unbound)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []string{"q.retry", "q.retry.classic"}, unbound)
	}
}
