package consumer

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// together are writes that nothing holds back.
type together struct{}

func (together) Hold()    {}
func (together) Release() {}

// idleAcker has no channel and no goroutine: batches are taken by hand.
func idleAcker() *acker {
	return &acker{writes: together{}, settled: []tags{{0, 0}}, generations: make([]generation, 1),
		changed: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// requeued marks a delivery as requeue does once the nack is written.
func (a *acker) requeued(tag uint64) { a.settle(tag) }

func TestAckerBatches(t *testing.T) {
	for name, test := range map[string]struct {
		acked, requeued []uint64
		upTo            uint64
		single          []uint64
	}{
		"nothing":            {},
		"the first":          {acked: []uint64{1}, upTo: 1},
		"in order":           {acked: []uint64{1, 2, 3}, upTo: 3},
		"in any order":       {acked: []uint64{3, 1, 2}, upTo: 3},
		"behind a gap":       {acked: []uint64{2, 4}, single: []uint64{2, 4}},
		"around a gap":       {acked: []uint64{1, 2, 4}, upTo: 2, single: []uint64{4}},
		"requeued at first":  {acked: []uint64{2}, requeued: []uint64{1}, upTo: 2},
		"requeued at last":   {acked: []uint64{1}, requeued: []uint64{2}, upTo: 1},
		"only requeued":      {requeued: []uint64{1, 2}},
		"requeued in a gap":  {acked: []uint64{3}, requeued: []uint64{2}, single: []uint64{3}},
		"requeued in middle": {acked: []uint64{1, 3, 5}, requeued: []uint64{2}, upTo: 3, single: []uint64{5}},
	} {
		t.Run(name, func(t *testing.T) {
			a := idleAcker()
			for _, tag := range test.acked {
				a.ack(tag)
			}
			for _, tag := range test.requeued {
				a.requeued(tag)
			}

			upTo, single := a.batch()
			slices.Sort(single)
			assert.Equal(t, test.upTo, upTo)
			assert.Equal(t, test.single, single)

			upTo, single = a.batch()
			assert.Zero(t, upTo, "once is enough")
			assert.Empty(t, single)
		})
	}
}

func TestAckerAfterClose(t *testing.T) {
	a := idleAcker()
	a.closed = true
	close(a.wake)

	a.ack(1)
	upTo, single := a.batch()
	assert.Zero(t, upTo)
	assert.Empty(t, single)
}

func TestAckerWakesOnce(t *testing.T) {
	a := idleAcker()
	a.ack(1)
	a.ack(2) // must not wait for the first to be taken
	assert.Len(t, a.wake, 1)
}

// The acker against a model of the broker's channel.
func TestAckerModel(t *testing.T) {
	type status int
	const (
		inHand status = iota // delivered, being worked on
		done                 // given to the acker
		gone                 // acknowledged or requeued: the broker knows no such tag any more
	)

	rapid.Check(t, func(t *rapid.T) {
		a := idleAcker()
		broker := []status{gone} // tags count from one

		of := func(s status) (found []uint64) {
			for tag, is := range broker {
				if is == s {
					found = append(found, uint64(tag))
				}
			}

			return found
		}
		acknowledge := func(tag uint64) {
			require.Equal(t, done, broker[tag], "tag %d was acknowledged: too early, or again", tag)
			broker[tag] = gone
		}
		flush := func() {
			upTo, single := a.batch()

			if upTo > 0 {
				require.Equal(t, done, broker[upTo], "an unknown tag closes the channel")
				for tag := uint64(1); tag <= upTo; tag++ {
					if broker[tag] != gone {
						acknowledge(tag)
					}
				}
			}
			for _, tag := range single {
				acknowledge(tag)
			}
			require.Empty(t, of(done), "nothing waits for the next batch")
			require.Empty(t, a.pending)
			require.LessOrEqual(t, len(a.settled), len(of(inHand))+1, "memory is bounded by what is not settled")
		}

		t.Repeat(map[string]func(*rapid.T){
			"deliver": func(*rapid.T) { broker = append(broker, inHand) },
			"ack": func(t *rapid.T) {
				if open := of(inHand); len(open) > 0 {
					tag := rapid.SampledFrom(open).Draw(t, "tag")
					broker[tag] = done
					a.ack(tag)
				}
			},
			"requeue": func(t *rapid.T) {
				if open := of(inHand); len(open) > 0 {
					tag := rapid.SampledFrom(open).Draw(t, "tag")
					broker[tag] = gone
					a.requeued(tag)
				}
			},
			"flush": func(*rapid.T) { flush() },
		})

		for _, tag := range of(inHand) {
			broker[tag] = done
			a.ack(tag)
		}
		flush()
		require.Equal(t, []tags{{0, uint64(len(broker) - 1)}}, a.settled, "what is settled is remembered as one range")
	})
}

// A consumer is replaced only while the broker has nothing on its way to it: what is settled but
// not acknowledged yet uses up its prefetch as well, and what an earlier consumer has left does
// not.
func TestAckerIsFull(t *testing.T) {
	a := idleAcker()
	isFull := func(prefetch int) (is bool) {
		assert.Equal(t, amqp091.ErrClosed, a.hold(func() error {
			is = a.isFull(prefetch)
			return amqp091.ErrClosed
		}))

		return is
	}
	a.begin()
	assert.False(t, isFull(1))
	a.arrived(1)
	a.arrived(2)
	assert.True(t, isFull(2))
	assert.False(t, isFull(3))
	a.ack(1)
	assert.True(t, isFull(2), "not written yet")
	a.batch()
	assert.False(t, isFull(2))
	assert.True(t, isFull(1))

	a.begin()
	assert.False(t, isFull(1), "2 is another consumer's")
	assert.Equal(t, 2, a.consumers())
	a.arrived(3)
	assert.True(t, isFull(1))
	assert.True(t, a.hasOpen(1))
	a.requeued(3)
	assert.False(t, isFull(1), "given back, so the broker may deliver another")
	assert.False(t, a.hasOpen(1))
	a.ack(2)
	assert.False(t, isFull(1))
	assert.Equal(t, 1, a.consumers())
	assert.True(t, a.isIdle())
}

// slowChannel is in the middle of a nack until it may go on, and notes what is written.
type slowChannel struct {
	nacking, goOn chan struct{}

	mu      sync.Mutex
	written []string
}

func (c *slowChannel) Ack(tag uint64, multiple bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, fmt.Sprintf("ack %d %v", tag, multiple))

	return nil
}

func (c *slowChannel) Reject(tag uint64, requeue bool) error { return c.Nack(tag, false, requeue) }

func (c *slowChannel) Nack(tag uint64, _, _ bool) error {
	close(c.nacking)
	<-c.goOn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, fmt.Sprintf("nack %d", tag))

	return nil
}

// An acknowledgement does not overtake the nack of a delivery below it, nor does anything follow
// the close.
func TestAckerNackIsNotOvertaken(t *testing.T) {
	channel := &slowChannel{nacking: make(chan struct{}), goOn: make(chan struct{})}
	a := newAcker(channel, together{})
	nacked := make(chan error, 1)
	go func() { nacked <- a.requeue(1) }()
	<-channel.nacking
	a.ack(2)
	await.Until(t, func() bool { return len(a.wake) == 0 }, "it is about to be written")
	close(channel.goOn)
	require.NoError(t, <-nacked)

	assert.Equal(t, 2, a.close(), "commands")
	assert.Equal(t, []string{"nack 1", "ack 2 true"}, channel.written)
	require.NoError(t, a.requeue(3))
	a.ack(4)
	assert.Len(t, channel.written, 2)
}

// A nack that could not be written settles nothing: what is acknowledged up to a later delivery
// would take the message along.
func TestAckerNackFails(t *testing.T) {
	a := idleAcker()
	a.channel = brokenChannel{}
	require.Error(t, a.requeue(1))
	a.ack(2)
	upTo, single := a.batch()
	assert.Zero(t, upTo)
	assert.Equal(t, []uint64{2}, single)
}

type brokenChannel struct{}

func (brokenChannel) Ack(uint64, bool) error        { return amqp091.ErrClosed }
func (brokenChannel) Nack(uint64, bool, bool) error { return amqp091.ErrClosed }
func (brokenChannel) Reject(uint64, bool) error     { return amqp091.ErrClosed }

// Room for more is there when something is settled.
func TestAckerWaitBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := idleAcker(), make(chan struct{})
		below := func(limit int) func() int { return func() int { return limit } }
		a.arrived(1)
		a.arrived(2)
		require.True(t, a.waitBelow(below(3), stop))

		done := make(chan bool, 1)
		go func() { done <- a.waitBelow(below(2), stop) }()
		synctest.Wait()
		require.Empty(t, done)
		a.ack(1)
		require.True(t, <-done)

		limit := 1
		go func() { done <- a.waitBelow(func() int { return limit }, stop) }()
		synctest.Wait()
		limit = 2
		a.notify()
		require.True(t, <-done, "the limit has changed")

		go func() { done <- a.waitBelow(below(1), stop) }()
		synctest.Wait()
		close(stop)
		require.False(t, <-done)
	})
}
