package consumer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/health"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// The broker is asked for the consumers of quiet queues only while somebody wants to know, and
// seldom. After three answers in a row that it knows of none, the queue has no leader.
func TestHealth_Leaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		broker.Consumers.Store(1)
		c := newTestConsumer(t, broker)
		const queues = 50
		for i := range queues {
			name := fmt.Sprint("q", i)
			_, err := c.Subscribe(t.Context(), Queue{Topic: name, Name: name})
			require.NoError(t, err)
		}
		probe := func(d time.Duration) (unknown int) {
			for range d / time.Second {
				<-time.After(time.Second)
				unknown = 0
				for _, s := range c.Health(time.Now()) {
					assert.Equal(t, health.Subscription{Topic: s.Topic, Queue: s.Queue, Unknown: s.Unknown}, s)
					if !s.Unknown.IsZero() {
						unknown++
					}
				}
			}
			synctest.Wait()

			return unknown
		}
		<-time.After(time.Minute)
		assert.Zero(t, broker.Looks.Load(), "nobody has asked")

		assert.Zero(t, probe(time.Minute))
		assert.InDelta(t, 6*mostLooks, broker.Looks.Load(), mostLooks)

		broker.Consumers.Store(0)
		assert.Zero(t, probe(2*lookEvery), "it can be busy")
		assert.Equal(t, mostLooks, probe(2*lookEvery))
		assert.Equal(t, queues, probe(10*lookEvery))

		broker.Consumers.Store(1)
		assert.Zero(t, probe(5*lookEvery))
	})
}

// An answer from before a message counts no more when the queue is quiet again.
func TestHealth_LeaderIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		c := newTestConsumer(t, broker)
		_, err := c.Subscribe(t.Context(), Queue{Topic: "q", Name: "q"})
		require.NoError(t, err)
		unknown := func() (since time.Time) {
			for _, s := range c.Health(time.Now()) {
				since = s.Unknown
			}
			synctest.Wait()

			return since
		}
		for range 5 {
			<-time.After(lookEvery + time.Second)
			unknown()
		}
		require.NotZero(t, unknown())

		broker.Consumers.Store(1)
		<-time.After(time.Second)
		for s := range c.subscriptions {
			s.active.now() // a message comes
		}
		assert.Zero(t, unknown())
		<-time.After(lookEvery + time.Second)
		assert.Zero(t, unknown(), "before the broker was asked again")
	})
}

// A handler that runs on counts when its delivery has been gone for a while.
func TestPace_Withdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(3)
		began := time.Now()
		first := p.withdraw()
		<-time.After(withdrawnGrace / 2)
		second := p.withdraw()
		<-time.After(withdrawnGrace / 2)
		workers, since := p.withdrawn(time.Now())
		assert.Equal(t, []any{1, began}, []any{workers, since})
		assert.Equal(t, 1, p.workers())
		<-time.After(withdrawnGrace / 2)
		workers, since = p.withdrawn(time.Now())
		assert.Equal(t, []any{2, began}, []any{workers, since})
		first()
		workers, since = p.withdrawn(time.Now())
		assert.Equal(t, []any{1, began.Add(withdrawnGrace / 2)}, []any{workers, since})
		second()
		workers, _ = p.withdrawn(time.Now())
		assert.Zero(t, workers)
	})
}
