package publish

import (
	"strconv"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// at is a time of an example, in milliseconds.
func at(ms int) time.Time { return time.UnixMilli(int64(ms)) }

func TestWaits(t *testing.T) {
	type step struct {
		leaves bool
		trip   Trip
		at     int
		until  int           // of one that leaves
		pause  time.Duration // of one that is early; 0 for one that is not
		log    bool
	}
	a, b := Trip{"a", "1", 1}, Trip{"b", "2", 1}
	next := Trip{"a", "3", 2} // of a, published by another process
	again := Trip{"a", "4", 1}
	third := Trip{"a", "5", 2}
	for name, steps := range map[string][]step{
		"in time": {{leaves: true, trip: a, until: 1000}, {trip: a, at: 1000}},
		"within the tenth that a clock may differ": {
			{leaves: true, trip: a, until: 1000}, {trip: a, at: 900},
			{leaves: true, trip: a, at: 1000, until: 2000},
			{trip: a, at: 1899, pause: 101 * time.Millisecond, log: true},
		},
		"the pauses grow from round to round, within what is left": {
			{leaves: true, trip: a, until: 9000}, {leaves: true, trip: b, until: 9000},
			{trip: a, at: 10, pause: time.Second, log: true}, {trip: b, at: 20, pause: time.Second},
			{leaves: true, trip: a, at: 1010, until: 9000}, {trip: a, at: 1020, pause: 2 * time.Second},
			{leaves: true, trip: a, at: 3020, until: 9000}, {trip: a, at: 3030, pause: 4 * time.Second},
			{leaves: true, trip: a, at: 7030, until: 9000}, {trip: a, at: 7040, pause: 1960 * time.Millisecond},
		},
		"until one is in time": {
			{leaves: true, trip: a, until: 9000}, {leaves: true, trip: b, until: 9000},
			{trip: a, at: 10, pause: time.Second, log: true}, {trip: b, at: 9000},
			{leaves: true, trip: a, at: 9000, until: 19000}, {trip: a, at: 11000, pause: time.Second},
		},
		"the log tells again": {
			{leaves: true, trip: a, until: 9000}, {trip: a, at: 10, pause: time.Second, log: true},
			{leaves: true, trip: a, at: 290_000, until: 299_000}, {trip: a, at: 290_010, pause: 2 * time.Second},
			{leaves: true, trip: a, at: 310_000, until: 319_000},
			{trip: a, at: 310_011, pause: 4 * time.Second, log: true},
			{leaves: true, trip: a, at: 310_012, until: 319_000}, {trip: a, at: 310_013, pause: 4 * time.Second},
		},
		"what nobody has sent": {{trip: a, at: 1}},
		"what was sent before": {{leaves: true, trip: next, until: 1000}, {trip: a, at: 1}},
		"another's, of which one may be a duplicate": {
			{leaves: true, trip: a, until: 9000}, {trip: next, at: 10}, {trip: next, at: 20},
			{trip: next, at: 30, pause: time.Second, log: true}, {trip: next, at: 9000},
		},
		"those of which two were seen": {
			{leaves: true, trip: next, until: 9000}, {trip: a, at: 1}, {trip: third, at: 10},
			{leaves: true, trip: next, at: 10, until: 9010}, {trip: third, at: 20}, {trip: third, at: 30},
		},
		"those that left twice": {
			{leaves: true, trip: a, until: 1000}, {leaves: true, trip: again, at: 1, until: 9000},
			{leaves: true, trip: next, at: 1000, until: 9000},
			{trip: third, at: 1010}, {trip: third, at: 1020}, {trip: third, at: 1030},
		},
		"another's, which was published a moment before": {
			{leaves: true, trip: a, at: 300, until: 1300}, {trip: next, at: 1000}, {trip: next, at: 1000},
			{trip: next, at: 1000}, {trip: next, at: 1000},
		},
		"another's, when one was seen": {
			{leaves: true, trip: b, until: 9000}, {trip: b, at: 10, pause: time.Second, log: true},
			{leaves: true, trip: a, at: 10, until: 9000}, {trip: next, at: 20, pause: time.Second},
		},
		"another's, when that is long ago": {
			{leaves: true, trip: b, until: 9000}, {trip: b, at: 10, pause: time.Second, log: true},
			{leaves: true, trip: a, at: 70_000, until: 79_000}, {trip: next, at: 70_100},
		},
		"one that was sent twice": {
			{leaves: true, trip: a, until: 1000}, {leaves: true, trip: again, at: 500, until: 1500},
			{trip: a, at: 1000}, {trip: again, at: 1500},
		},
		"one that others were done with, and that fails again": {
			{leaves: true, trip: a, until: 1000}, {leaves: true, trip: again, at: 5000, until: 9000},
			{trip: again, at: 5010, pause: time.Second, log: true},
		},
		"several of which the first was not confirmed": {
			{leaves: true, trip: a, until: 1000}, {leaves: true, trip: again, at: 900, until: 1900},
			{trip: a, at: 1000}, {trip: a, at: 1001}, {trip: a, at: 1002}, {trip: a, at: 1003},
		},
		"one without an id": {{leaves: true, trip: Trip{"", "1", 1}, until: 1000}, {trip: Trip{"", "1", 1}, at: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaits()
			for i, s := range steps {
				if s.leaves {
					w.leave(s.trip, at(s.at), at(s.until))
					continue
				}
				early, log := w.back(s.trip, at(s.at))
				if s.pause == 0 {
					require.Nil(t, early, i)
					continue
				}
				require.NotNil(t, early, i)
				assert.Equal(t, s.pause, early.Pause, i)
				assert.Equal(t, s.log, log, i)
				assert.Equal(t, w.sent[s.trip.Message].due, early.Due)
			}
		})
	}
}

func TestWaitsAreBounded(t *testing.T) {
	w := newWaits()
	for i := range 3 * mostWaits {
		for range 2 { // each of them twice
			w.leave(Trip{strconv.Itoa(i), "", 1}, at(0), at(1000))
		}
	}
	assert.Len(t, w.sent, mostWaits)
	early, _ := w.back(Trip{strconv.Itoa(2 * mostWaits), "", 1}, at(1))
	assert.NotNil(t, early, "the latest are known")
	w.leave(Trip{string(make([]byte, 1000)), "", 1}, at(0), at(1000))
	assert.Len(t, w.sent, mostWaits, "a name that long is nobody's")
}

// A message that comes back early each time is due when it was to be at first: each of its copies
// would wait for longer.
func TestCopiesAreDueInTheEnd(t *testing.T) {
	f := (&Forwarder{ctx: t.Context()}).ForQueue(topology.Plan{Queue: "q"})
	copying := func(id string, state wire.State, jittered time.Duration) time.Time {
		f.copying(&amqp091.Publishing{Headers: amqp091.Table{codec.UUIDHeader: id}}, &state, jittered)
		return f.waits.sent[id].due
	}
	due := time.Now().Add(2 * time.Second)
	assert.Equal(t, due, copying("late", wire.State{Count: 1, Delay: "1m", NotBefore: due}, 0))
	assert.WithinDuration(t, time.Now().Add(10*time.Second),
		copying("jittered", wire.State{Count: 1, Delay: "1m"}, 10*time.Second), time.Second)
	assert.WithinDuration(t, time.Now().Add(time.Minute), copying("plain", wire.State{Count: 1, Delay: "1m"}, 0),
		time.Second)
	f.copying(&amqp091.Publishing{Headers: amqp091.Table{codec.UUIDHeader: "dead"}},
		&wire.State{Count: header.CountDead}, 0)
	assert.NotContains(t, f.waits.sent, "dead", "it does not come back")
}
