package publish

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// testBroker is a scripted broker, with what the forwarder has told of it.
type testBroker struct {
	*fakebroker.Scripted

	mu      sync.Mutex
	emitted []retry.Event
}

func newTestBroker() *testBroker { return &testBroker{Scripted: fakebroker.NewScripted()} }

// Events are what was emitted of a kind.
func (b *testBroker) Events(kind retry.EventKind) []retry.Event {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.DeleteFunc(slices.Clone(b.emitted), func(e retry.Event) bool { return e.Kind != kind })
}

// newTestForwarder returns a forwarder that publishes to the broker until the test ends.
func newTestForwarder(t *testing.T, b *testBroker) *Forwarder {
	t.Helper()
	f := NewForwarder(ForwarderSettings{
		Connection: connection.Settings{
			URI: "amqp://guest:guest@broker/", AMQP: &amqp091.Config{Dial: b.Dial}, Emit: func(e retry.Event) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.emitted = append(b.emitted, e)
			},
		},
		Logger: watermill.NopLogger{}, HoldWarning: 30 * time.Second, Redeclare: true,
	})
	t.Cleanup(func() { f.Close(time.Now().Add(time.Second)) })

	return f
}

// pass lets time pass, in a bubble of synctest.
func pass(d time.Duration) { <-time.After(d) }

// scriptedPlan is that of a queue "q" with one retry.
func scriptedPlan(t *testing.T, policy config.Policy) topology.Plan {
	t.Helper()
	plan, err := topology.New("q", policy, topology.Names{})
	require.NoError(t, err)

	return plan
}

// failure is a delivery that has failed once and waits for a second.
func failure() *codec.CopyRequest {
	d := amqp091.Delivery{Body: []byte("body")}
	return &codec.CopyRequest{
		Delivery: &d, State: wire.State{Queue: "q", Count: 1, Delay: "1s"},
	}
}

// isThere says that the channel of a delivery is there.
func isThere() bool { return false }
