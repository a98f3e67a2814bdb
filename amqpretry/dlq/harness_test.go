package dlq_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// fixture is a main queue with its dead-letter queue, on a broker.
type fixture struct {
	t       testing.TB
	uri     string
	main    string
	queue   *dlq.Queue
	client  *dlq.Client
	channel *amqp091.Channel

	unconfirmed []*amqp091.DeferredConfirmation
}

// onBroker makes empty queues on the broker that all tests share. dead are the arguments of the dead-letter queue; nil
// means ours.
func onBroker(t testing.TB, dead amqp091.Table) *fixture {
	t.Helper()
	return on(t, brokertest.URI(t), dead)
}

func on(t testing.TB, uri string, dead amqp091.Table) *fixture {
	t.Helper()
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))

	client, err := dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	f := &fixture{t: t, uri: uri, main: "dlq-" + watermill.NewShortUUID(), client: client, channel: channel}
	f.queue = client.Queue(f.main)
	f.declare(f.main, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	if dead == nil {
		plan, err := topology.New(f.main, config.Policy{Mode: config.ModeDeadLetter, Scope: config.ScopeShared}, topology.Names{})
		require.NoError(t, err)
		dead = plan.Queues[0].Arguments
	}
	f.declare(f.queue.Name(), dead)

	return f
}

func (f *fixture) declare(queue string, arguments amqp091.Table) {
	f.t.Helper()
	_, err := f.channel.QueueDeclare(queue, true, false, false, false, arguments)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		if channel, err := f.client2().Channel(); err == nil {
			_, _ = channel.QueueDelete(queue, false, false, false)
		}
	})
}

// countsNoLooks tells whether the broker is RabbitMQ 4.3 or later.
func (f *fixture) countsNoLooks() bool {
	f.t.Helper()
	version, _ := f.client2().Properties["version"].(string)
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	require.NoError(f.t, err, version)

	return major > 4 || major == 4 && minor >= 3
}

// client2 is a connection for cleaning up, as the test may have lost its own.
func (f *fixture) client2() *amqp091.Connection {
	connection, err := amqp091.Dial(f.uri)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = connection.Close() })

	return connection
}

var died = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// letterOf is a message as the retrier dead-letters it.
func letterOf(queue string, n int) amqp091.Publishing {
	state := wire.State{
		Count: header.CountDead, Attempts: 4, Queue: queue, Topic: queue, Handler: "charge", Host: "host-1",
		Arrival: wire.NewArrival("events", "order.created", "", "", ""), FirstFailure: died, LastFailure: died.Add(time.Duration(n) * time.Second),
		Reason: retry.ReasonExhausted, Error: fmt.Sprintf("card %d declined", n), ErrorType: "*cards.DeclinedError",
		History: []retry.FailedAttempt{{Number: 1, At: died, Error: "timeout", Type: "*url.Error"}},
	}
	p := amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, ContentType: "application/json", Body: []byte(fmt.Sprintf(`{"n":%d}`, n)),
		Headers: amqp091.Table{"_watermill_message_uuid": "uuid-" + strconv.Itoa(n), "tenant": int64(n % 3)},
	}
	for key, value := range state.Headers(strconv.Itoa(n)) {
		p.Headers[key] = value
	}

	return p
}

// fill puts n dead letters into the dead-letter queue.
func (f *fixture) fill(n int) {
	f.t.Helper()
	for i := range n {
		f.publish(f.queue.Name(), letterOf(f.main, i))
	}
	f.confirmed()
}

func (f *fixture) publish(queue string, p amqp091.Publishing) {
	f.t.Helper()
	confirmation, err := f.channel.PublishWithDeferredConfirm("", queue, true, false, p)
	require.NoError(f.t, err)
	f.unconfirmed = append(f.unconfirmed, confirmation)
}

// confirmed waits until the broker has all that was published.
func (f *fixture) confirmed() {
	f.t.Helper()
	for _, c := range f.unconfirmed {
		require.True(f.t, c.Wait())
	}
	f.unconfirmed = nil
}

// drained takes all messages out of a queue, in their order.
func (f *fixture) drained(queue string, n int) []amqp091.Delivery {
	f.t.Helper()
	channel, err := f.client2().Channel()
	require.NoError(f.t, err)
	defer channel.Close()
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	require.NoError(f.t, err)
	var all []amqp091.Delivery
	for len(all) < n {
		select {
		case d := <-deliveries:
			all = append(all, d)
		case <-time.After(20 * time.Second):
			require.Len(f.t, all, n, "messages in %s", queue)
		}
	}

	return all
}

// depth of a queue, when it has settled.
func (f *fixture) depth(queue string, want int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		q, err := f.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(f.t, err)
		return q.Messages == want
	}, 20*time.Second, 10*time.Millisecond, "%d messages in %s", want, queue)
}

func bodies(deliveries []amqp091.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = string(d.Body)
	}

	return all
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"n":%d}`, i)
	}

	return all
}

func classic() amqp091.Table { return amqp091.Table{amqp091.QueueTypeArg: "classic"} }
