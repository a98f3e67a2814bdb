package dlq_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// fixture is a main queue with its dead-letter queue, on a broker.
type fixture struct {
	*rabbit.Client
	t      testing.TB
	main   string
	queue  *dlq.Queue
	client *dlq.Client
}

// onBroker makes empty queues on the broker that all tests share. dead are the arguments of the
// dead-letter queue; nil means ours. The main queue is a classic one, which costs the broker less
// than a quorum queue; see [onQuorumQueues].
func onBroker(t testing.TB, dead amqp091.Table) *fixture {
	t.Helper()
	return on(t, brokertest.URI(t), dead)
}

func on(t testing.TB, uri string, dead amqp091.Table) *fixture {
	t.Helper()
	return connected(t, uri).declared(classic(), dead)
}

// onQuorumQueues is [onBroker] with a main queue and a dead-letter queue as services have them.
func onQuorumQueues(t testing.TB) *fixture {
	t.Helper()
	return connected(t, brokertest.URI(t)).declared(amqp091.Table{amqp091.QueueTypeArg: "quorum"}, nil)
}

func (f *fixture) declared(main, dead amqp091.Table) *fixture {
	f.t.Helper()
	if dead == nil {
		_, dead = deadletter.Queue(f.t, f.main)
	}
	f.Declare(f.main, main)
	f.Declare(f.main+".dlq", dead)

	return f
}

// connected is a fixture whose queues are still to be declared.
func connected(t testing.TB, uri string) *fixture {
	t.Helper()
	f := &fixture{Client: rabbit.New(t, uri), t: t, main: "dlq-" + watermill.NewShortUUID()}
	client, err := dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	f.client, f.queue = client, client.Queue(f.main)

	return f
}

// countsNoBrowses tells whether the broker is RabbitMQ 4.3 or later.
func (f *fixture) countsNoBrowses() bool { f.t.Helper(); return f.AtLeast(4, 3) }

// fill puts n dead letters into the dead-letter queue.
func (f *fixture) fill(n int) {
	f.t.Helper()
	f.fillWith(n, func(i int) amqp091.Publishing { return deadletter.New(f.main, i) })
}

// fillWith puts the messages that of makes, for 0 to n-1, into the dead-letter queue.
func (f *fixture) fillWith(n int, of func(i int) amqp091.Publishing) {
	f.t.Helper()
	messages := make([]amqp091.Publishing, n)
	for i := range messages {
		messages[i] = of(i)
	}
	f.Publish(f.queue.Name(), messages...)
}

// drained takes n messages out of a queue, in their order.
func (f *fixture) drained(queue string, n int) []amqp091.Delivery {
	f.t.Helper()
	return drain.N(f.t, f.Client, queue, n)
}

func classic() amqp091.Table { return amqp091.Table{amqp091.QueueTypeArg: "classic"} }
