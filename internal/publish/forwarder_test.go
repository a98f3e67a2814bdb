package publish

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// testBroker is a scripted broker, with what the forwarder has told of it.
type testBroker struct {
	*fakebroker.Scripted

	writes atomic.Int64 // to it

	mu      sync.Mutex
	emitted []retry.Event
}

// Dial connects to it, and counts what is written.
func (b *testBroker) Dial(network, address string) (net.Conn, error) {
	conn, err := b.Scripted.Dial(network, address)
	return countedWrites{conn, &b.writes}, err
}

type countedWrites struct {
	net.Conn
	count *atomic.Int64
}

func (c countedWrites) Write(b []byte) (int, error) {
	c.count.Add(1)
	return c.Conn.Write(b)
}

func newTestBroker(onPublish func(*fakebroker.Publish)) *testBroker {
	return &testBroker{Scripted: fakebroker.NewScripted(onPublish)}
}

// Events are what was emitted of a kind.
func (b *testBroker) Events(kind retry.EventKind) []retry.Event {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.DeleteFunc(slices.Clone(b.emitted), func(e retry.Event) bool { return e.Kind != kind })
}

// newTestForwarder returns a forwarder that publishes to the broker until the test ends.
func newTestForwarder(t *testing.T, b *testBroker) *Forwarder {
	t.Helper()
	settings := testSettings(b.Dial).Connection
	settings.Emit = func(e retry.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.emitted = append(b.emitted, e)
	}
	f := NewForwarder(ForwarderSettings{Connection: settings, Logger: watermill.NopLogger{},
		HoldWarning: 30 * time.Second, Redeclare: true})
	t.Cleanup(func() { f.Close(time.Now().Add(time.Second)) })

	return f
}

// testQueue forwards the copies of a queue.
type testQueue struct{ *QueueForwarder }

// forward returns the forwarder of a queue "q".
func (b *testBroker) forward(t *testing.T, policy config.Policy) testQueue {
	t.Helper()
	return testQueue{newTestForwarder(t, b).ForQueue(scriptedPlan(t, policy))}
}

// forward waits until the copy of a delivery is confirmed.
func (q testQueue) forward(t *testing.T, o *codec.CopyRequest) {
	t.Helper()
	_, err := q.Forward(t.Context(), o, isThere)
	assert.NoError(t, err)
}

// begin publishes a copy that nobody waits for.
func (q testQueue) begin(ctx context.Context) {
	q.Begin(ctx, *failure(), isThere, func(*wire.State, error) {})
}

// answer lets act answer what carries a text, and rest everything else.
func answer(text string, act, rest func(*fakebroker.Publish)) func(*fakebroker.Publish) {
	return func(u *fakebroker.Publish) {
		if u.Carries(text) {
			act(u)
		} else {
			rest(u)
		}
	}
}

func silent(*fakebroker.Publish) {}

func ackAfter(d time.Duration) func(*fakebroker.Publish) {
	return func(u *fakebroker.Publish) { time.AfterFunc(d, u.Ack) }
}

// pass lets time pass, in a bubble of synctest.
func pass(d time.Duration) { <-time.After(d) }

// scriptedPlan is that of a queue "q" with one retry.
func scriptedPlan(t *testing.T, policy config.Policy) topology.Plan {
	t.Helper()
	return planOf(t, "q", policy)
}

func planOf(t *testing.T, queue string, policy config.Policy) topology.Plan {
	t.Helper()
	plan, err := topology.New(queue, policy, topology.Names{})
	require.NoError(t, err)

	return plan
}

// failure is a delivery that has failed once and waits for a second.
func failure() *codec.CopyRequest { return waiting("1s") }

// waiting is a delivery that has failed once and waits for a delay.
func waiting(delay string) *codec.CopyRequest {
	return &codec.CopyRequest{
		Delivery: &amqp091.Delivery{Body: []byte("body")}, State: wire.State{Queue: "q", Count: 1, Delay: delay},
	}
}

// isThere says that the channel of a delivery is there.
func isThere() bool { return false }
