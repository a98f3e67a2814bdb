package tests

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// topologyBroker declares plans on a real broker and removes their objects when the test ends.
type topologyBroker struct {
	*rabbit.Client
	t    *testing.T
	conn *amqp.Connection
}

func newTopologyBroker(t *testing.T, uri string) *topologyBroker {
	t.Helper()
	client := rabbit.New(t, uri)
	return &topologyBroker{Client: client, t: t, conn: client.Dial()}
}

// channel is a new one each time, since the broker closes a channel with every error.
func (b *topologyBroker) channel() *amqp.Channel {
	b.t.Helper()
	ch := must(b.conn.Channel())(b.t)
	b.t.Cleanup(func() { _ = ch.Close() })
	return ch
}

// plan makes a plan and its main queue, under a name that no other test has.
func (b *topologyBroker) plan(policy config.Policy) topology.Plan {
	b.t.Helper()
	// Short, as the broker cuts its error texts at 255 bytes.
	queue := fmt.Sprintf("topology-%d", time.Now().UnixNano())
	plan := must(topology.New(queue, policy, topology.Names{}))(b.t)
	b.Declare(queue, nil)
	b.t.Cleanup(func() { b.RemovePlan(plan) })
	return plan
}

var topologyPolicies = map[string]config.Policy{
	"quorum":      {Delays: []time.Duration{300 * time.Millisecond, time.Hour, config.MaxDelay}},
	"classic":     {Delays: []time.Duration{300 * time.Millisecond, time.Hour}, ClassicQueues: true},
	"dead-letter": {Mode: config.ModeDeadLetter},
	"off":         {Mode: config.ModeOff},
}

func TestTopologyDeclareIsIdempotent(t *testing.T) {
	for name, policy := range topologyPolicies {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(policy)
			require.NoError(t, plan.Declare(b.channel()))
			require.NoError(t, plan.Declare(b.channel()))
		})
	}
}

// The broker compares the arguments of a second declaration with those it has stored, so leaving
// out or changing any one of them must be refused with exactly that argument: it is there, and with
// that value.
func TestTopologyBrokerHoldsEveryArgument(t *testing.T) {
	for _, name := range []string{"quorum", "classic", "dead-letter"} {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(topologyPolicies[name])
			require.NoError(t, plan.Declare(b.channel()))
			for _, queue := range plan.Queues {
				for argument, value := range queue.Arguments {
					if argument == amqp.QueueTypeArg {
						continue // a queue of another type would be refused for other arguments first
					}
					changed := plan
					without := maps.Clone(queue.Arguments)
					delete(without, argument)
					changed.Queues = []topology.Queue{{Name: queue.Name, Arguments: without}}
					err := changed.Declare(b.channel())
					conflict := errorAs[*topology.ConflictError](t, err, "%s without %s", queue.Name, argument)
					found := fmt.Sprint(value)
					if value == "" {
						found = `""`
					}
					assert.Equal(t, topology.ConflictError{Kind: "queue", Name: queue.Name, Argument: argument,
						Wanted: "none", Found: found, Err: conflict.Err}, *conflict)
				}
			}
		})
	}
}

func TestTopologyConflictNamesAllOfIt(t *testing.T) {
	b := newTopologyBroker(t, brokertest.URI(t))
	plan := b.plan(config.Policy{Delays: []time.Duration{time.Hour}})
	require.NoError(t, plan.Declare(b.channel()))

	ttl := maps.Clone(plan.Queues[0].Arguments)
	ttl["x-message-ttl"] = int64(2000)
	typed := func(queueType string) amqp.Table { return amqp.Table{"x-queue-type": queueType} }
	long := plan.Queue + strings.Repeat("q", 255-len(plan.Queue))
	b.Declare(long, nil)
	unlimited := amqp.Table{"x-queue-type": "classic", "x-delivery-limit": int64(3)}
	for name, test := range map[string]struct {
		queue     string
		arguments amqp.Table
		want      topology.ConflictError // but for the kind and the cause
	}{
		"ttl": {plan.Queue + ".retry.1h", ttl,
			topology.ConflictError{Argument: "x-message-ttl", Wanted: "2000", Found: "3600000"}},
		"dead-letter queue type": {plan.DeadLetterQueue, typed("classic"),
			topology.ConflictError{Argument: "x-queue-type", Wanted: "classic", Found: "quorum"}},
		"invalid argument": {plan.Queue + ".bad", unlimited,
			topology.ConflictError{Argument: "x-delivery-limit", Wanted: "3"}},
		"long name": {long, amqp.Table{"x-message-ttl": int64(2000)},
			topology.ConflictError{Argument: "x-message-ttl", Wanted: "2000"}},
		// Brokers before 4.0 say none for a queue that was declared without a type, later ones its type.
		"queue type": {plan.Queue, typed("quorum"), topology.ConflictError{Argument: "x-queue-type", Wanted: "quorum",
			Found: map[bool]string{true: "classic", false: "none"}[b.AtLeast(4, 0)]}},
	} {
		t.Run(name, func(t *testing.T) {
			queues := []topology.Queue{{Name: test.queue, Arguments: test.arguments}}
			err := topology.Plan{Queues: queues}.Declare(b.channel())
			conflict := errorAs[*topology.ConflictError](t, err)
			test.want.Kind, test.want.Name, test.want.Err = "queue", test.queue, conflict.Err
			assert.Equal(t, test.want, *conflict)
			assert.Equal(t, amqp.PreconditionFailed, errorAs[*amqp.Error](t, err).Code)
		})
	}
	t.Run("exchange", func(t *testing.T) {
		fanout := topology.Exchange{Name: plan.RetryExchange, Type: "fanout", Durable: true}
		err := topology.Plan{Exchanges: []topology.Exchange{fanout}}.Declare(b.channel())
		conflict := errorAs[*topology.ConflictError](t, err)
		assert.Equal(t, topology.ConflictError{Kind: "exchange", Name: plan.RetryExchange, Argument: "type",
			Wanted: "fanout", Found: "headers", Err: conflict.Err}, *conflict)
	})
	t.Run("missing exchange", func(t *testing.T) {
		err := topology.Plan{Bindings: []topology.Binding{{Exchange: plan.Queue + ".gone", Queue: plan.Queue}}}.Declare(
			b.channel())
		declare := errorAs[*topology.DeclareError](t, err)
		assert.Equal(t, "exchange "+plan.Queue+".gone", declare.Kind+" "+declare.Name)
	})
}

// What a plan takes from the user in permissions, and what the error says when one is missing.
func TestTopologyAccessRefused_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	uri := must(url.Parse(broker.URI))(t)
	uri.User, uri.Path = url.UserPassword("worker", "secret"), "/access"
	broker.API(http.MethodPut, map[string]string{}, "vhosts", "access")
	broker.API(http.MethodPut, map[string]string{"password": "secret", "tags": ""}, "users", "worker")

	plan := must(topology.New("q", config.Policy{Delays: []time.Duration{time.Hour}}, topology.Names{}))(t)
	declare := func(configure, write, read string) error {
		broker.API(http.MethodPut, map[string]string{"configure": configure, "write": write, "read": read},
			"permissions", "access", "worker")
		// A new connection each time: a channel remembers what its user may do.
		return plan.Declare(newTopologyBroker(t, uri.String()).channel())
	}
	ours, all := `^q\.(retry|dlq)`, `^(q\.(retry|dlq).*|amq\.default)$`
	for _, test := range []struct {
		configure, write, read string
		object                 string
		permission             string
	}{
		{`^$`, all, ours, "exchange q.retry", "configure"},
		{`^q\.retry$`, all, ours, "queue q.retry.1h", "configure"},
		{ours, all, `^$`, "queue q.retry.1h", "read"},
		{ours, ours, ours, "exchange amq.default", "write"},
		{ours, `^amq\.default$`, ours, "queue q.retry.1h", "write"},
		{ours, all, `^q\.(retry\.|dlq)`, "exchange q.retry", "read"},
	} {
		err := declare(test.configure, test.write, test.read)
		access := errorAs[*topology.AccessError](t, err, "%+v", test)
		assert.Equal(t, test.object, access.Kind+" "+access.Name)
		assert.Equal(t, "worker", access.User)
		// Brokers before 4.0 do not name the permission.
		assert.Contains(t, []string{"", test.permission}, access.Permission)
		refused := errorAs[*amqp.Error](t, err)
		assert.Equal(t, amqp.AccessRefused, refused.Code)
	}
	require.NoError(t, declare(ours, all, ours), "these permissions are enough, on no object of anybody else")
}

func TestTopologyRoutes(t *testing.T) {
	for _, name := range []string{"quorum", "classic"} {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(topologyPolicies[name])
			require.NoError(t, plan.Declare(b.channel()))
			// Declared again, also by the next instance, a binding must not become two.
			require.NoError(t, plan.Declare(b.channel()))

			t.Run("a delay comes back to the main queue", func(t *testing.T) {
				back := b.consume(plan.Queue)
				sent := time.Now()
				require.False(t, b.publish(plan, amqp.Table{header.Delay: "300ms", header.Count: "1"}), "returned")
				delivery := b.receive(back)
				// Quorum queues may be a fraction of a millisecond early.
				assert.GreaterOrEqual(t, time.Since(sent), 299*time.Millisecond)
				assert.Equal(t, "300ms", delivery.Headers[header.Delay])
				assert.Equal(t, plan.Queue, delivery.RoutingKey)
				b.none(back)
			})
			t.Run("the end is the dead-letter queue", func(t *testing.T) {
				dead := b.consume(plan.DeadLetterQueue)
				require.False(t, b.publish(plan, amqp.Table{header.Count: "-1"}), "returned")
				assert.Equal(t, "-1", b.receive(dead).Headers[header.Count])
				b.none(dead)
			})
			t.Run("a delay matches one queue only", func(t *testing.T) {
				require.False(t, b.publish(plan, amqp.Table{header.Delay: "1h", header.Count: "2"}), "returned")
				for _, queue := range plan.Queues {
					want := 0
					if queue.Delay == time.Hour {
						want = 1
					}
					assert.Equal(t, want, b.purge(queue.Name), queue.Name)
				}
				assert.Zero(t, b.purge(plan.Queue))
			})
			t.Run("an unknown delay is returned, not lost", func(t *testing.T) {
				assert.True(t, b.publish(plan, amqp.Table{header.Delay: "7s", header.Count: "1"}), "not returned")
			})
		})
	}
}

// publish waits for the broker's confirm and reports whether the message was returned.
func (b *topologyBroker) publish(plan topology.Plan, headers amqp.Table) (returned bool) {
	b.t.Helper()
	ch := b.channel()
	require.NoError(b.t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	ctx, cancel := context.WithTimeout(b.t.Context(), await.Bound)
	defer cancel()
	confirm := must(ch.PublishWithDeferredConfirmWithContext(ctx, plan.RetryExchange, "", true, false,
		amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent, Body: []byte("body")}))(b.t)
	acked := must(confirm.WaitContext(ctx))(b.t)
	require.True(b.t, acked)
	// A return comes before its confirm.
	select {
	case <-returns:
		return true
	default:
		return false
	}
}

func (b *topologyBroker) consume(queue string) <-chan amqp.Delivery {
	b.t.Helper()
	return rabbit.Consume(b.t, b.channel(), queue)
}

func (b *topologyBroker) receive(deliveries <-chan amqp.Delivery) amqp.Delivery {
	b.t.Helper()

	return await.Value(b.t, deliveries, "a delivery")
}

// none watches for a second copy for as long as the longest wait before the first.
func (b *topologyBroker) none(deliveries <-chan amqp.Delivery) {
	b.t.Helper()
	select {
	case delivery := <-deliveries:
		require.Fail(b.t, "delivered twice", "%v", delivery.Headers)
	case <-time.After(500 * time.Millisecond):
	}
}

// purge is how many messages were in the queue.
func (b *topologyBroker) purge(queue string) int {
	b.t.Helper()
	n := must(b.channel().QueuePurge(queue, false))(b.t)
	return n
}
