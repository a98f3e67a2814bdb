package transport

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// idleAcker has no channel and no goroutine: batches are taken by hand.
func idleAcker() *acker {
	return &acker{settled: []tags{{0, 0}}, wake: make(chan struct{}, 1)}
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
