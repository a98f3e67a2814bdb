package dlq

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// The end of a wait is what the sender has written, if it is of this wait. Else it is what else
// tells of it, and never later than the queues can make it.
func TestEndOfAWait(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(d time.Duration) string { return wire.FormatTime(now.Add(d)) }
	ladder := topology.Ladder{Config: config.RetryLadder()}
	tier := &place{ttl: time.Minute}
	level := &place{ttl: 30 * time.Second, ladder: &ladder, level: 2}
	const key = "0.0.0.3.7.0.q.orders" // 7 s more at the levels below

	for name, test := range map[string]struct {
		place      *place
		headers    amqp091.Table
		expiration string
		due        time.Duration
		by         DueBy
		release    time.Duration
	}{
		"told": {tier, amqp091.Table{header.Due: after(20 * time.Second)}, "", 20 * time.Second, DueTold,
			20 * time.Second},
		"of the wait before": {tier, amqp091.Table{header.Due: after(-20 * time.Second), header.Delay: "1m",
			header.LastFailure: after(-10 * time.Second)}, "", 50 * time.Second, DueEstimated, 50 * time.Second},
		"forged":  {tier, amqp091.Table{header.Due: after(time.Hour)}, "", time.Minute, DueTold, time.Minute},
		"nothing": {tier, nil, "", time.Minute, DueAtMost, 0},
		"jitter":  {tier, nil, "15000", 15 * time.Second, DueAtMost, 0},
		"of a ladder": {level, amqp091.Table{header.Due: after(17 * time.Second)}, "", 17 * time.Second, DueTold,
			10 * time.Second},
		"nothing, ladder": {level, nil, "", 37 * time.Second, DueAtMost, 0},
		"by its last step": {level, amqp091.Table{header.Death: []any{
			amqp091.Table{"time": now.Add(-5 * time.Second)}}}, "", 32 * time.Second, DueEstimated, 25 * time.Second},
		"nonsense": {tier, amqp091.Table{header.Due: "soon", header.LastFailure: 7, header.Delay: "x",
			header.Death: []any{7}}, "-1", time.Minute, DueAtMost, 0},
	} {
		d := amqp091.Delivery{Headers: test.headers, Expiration: test.expiration, RoutingKey: key}
		w := test.place.wait(&d, now)
		assert.Equal(t, now.Add(test.due), w.Due, name)
		assert.Equal(t, test.by, w.DueBy, name)
		if test.release == 0 {
			assert.Zero(t, w.release, name)
		} else {
			assert.Equal(t, now.Add(test.release), w.release, name)
		}
	}
	assert.Equal(t, topology.Target{Key: "orders"}, level.targetOf(key))
	assert.Equal(t, topology.Target{Key: "orders"}, (&place{shared: true}).targetOf("orders"))
}

// Messages go back up to the last one that is due. One that tells no time goes with the next.
func TestDueMessages(t *testing.T) {
	for _, test := range []struct {
		releases []int64
		n        int
	}{{nil, 0}, {[]int64{5}, 1}, {[]int64{11}, 0}, {[]int64{5, 11, 6}, 1}, {[]int64{0, 0, 5, 0, 11}, 3},
		{[]int64{0, 0}, 0}, {[]int64{0, 11}, 0}} {
		b := &heldBlock{}
		for i, release := range test.releases {
			b.held = append(b.held, held{tag: uint64(i), release: release})
		}
		assert.Equal(t, test.n, b.due(10), test.releases)
	}
}

// A message that comes although it seems to be due is there for some time, for who wants to cancel
// it: the clock of its sender is behind.
func TestOverdueMessages(t *testing.T) {
	b := &heldBlock{holder: &holder{place: &place{ttl: 2 * time.Hour}, back: map[uint64]int{}}}
	for _, ago := range []time.Duration{time.Hour, time.Millisecond + releaseSlack} {
		before := time.Now()
		b.arrive(&amqp091.Delivery{Headers: amqp091.Table{header.Due: wire.FormatTime(before.Add(-ago))}})
		release := time.UnixMilli(b.held[len(b.held)-1].release)
		assert.WithinDuration(t, before.Add(max(againAfter, ago/againPart)), release, 100*time.Millisecond)
	}
}

// Those that came behind others which are due later are given back one by one, and no other.
func TestDueAheadOfOthers(t *testing.T) {
	now := time.Now()
	b := &heldBlock{holder: &holder{place: &place{ttl: time.Minute}, back: map[uint64]int{}}}
	for i, due := range []time.Duration{20, 10, 30, 15, 0} {
		headers := amqp091.Table{header.Due: wire.FormatTime(now.Add(due * time.Second))}
		if due == 0 {
			headers = nil
		}
		b.arrive(&amqp091.Delivery{DeliveryTag: uint64(i + 1), Headers: headers}) //nolint:gosec // small
	}
	b.held[3].claimed = true
	after := func(seconds time.Duration) (tags []uint64) {
		for _, m := range b.takeAhead(now.Add(seconds * time.Second).UnixMilli()) {
			tags = append(tags, m.tag)
		}
		return tags
	}
	assert.Empty(t, after(9))
	assert.Equal(t, []uint64{2}, after(11))
	assert.Empty(t, after(60), "one is not ahead, one is on its way out, one tells no time")
	assert.Len(t, b.held, 4)
}

// Two publishers may give two messages the same ID, and the same body.
func TestWaitIdentity(t *testing.T) {
	of := func(uuid string) uint64 {
		headers := amqp091.Table{header.ID: "1", codec.UUIDHeader: uuid}
		return waitIdentity(headers, "", "key", []byte("{}"))
	}
	first := of("a")
	assert.Equal(t, first, of("a"))
	assert.NotEqual(t, first, of("b"))
}

// The zero ladder is the default one.
func TestQueuesOfTheZeroLadder(t *testing.T) {
	ladder, err := topology.NewLadder(config.Ladder{})
	assert.NoError(t, err)
	named := func(l topology.Ladder) (names []string) {
		for _, p := range (&Waits{}).ladder(l) {
			names = append(names, p.queue)
		}
		return names
	}
	assert.NotEmpty(t, named(ladder))
	assert.Equal(t, named(ladder), named(topology.Ladder{}))
}

func TestFilterOfWaits(t *testing.T) {
	f, err := ParseFilter(map[string][]string{"due-within": {"1h"}, "due-after": {"10m"}})
	assert.NoError(t, err)
	now := time.Now()
	for after, matches := range map[time.Duration]bool{5 * time.Minute: false, 30 * time.Minute: true,
		2 * time.Hour: false} {
		assert.Equal(t, matches, f.Matches(&DeadLetter{Wait: &Wait{Due: now.Add(after)}}, now), after)
		assert.Equal(t, matches, f.Matches(&DeadLetter{Wait: &Wait{Due: now, NotBefore: now.Add(after)}}, now), after)
	}
	assert.False(t, f.Matches(&DeadLetter{}, now), "a dead letter")
	_, err = ParseFilter(map[string][]string{"due-within": {"1m"}, "due-after": {"10m"}})
	assert.Error(t, err)
}
