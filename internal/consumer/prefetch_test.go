package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func TestSizes(t *testing.T) {
	main, letters := &Queue{}, &Queue{DeadLettersOf: "q"}
	for name, test := range map[string]struct {
		settings Settings
		queue    *Queue
		want     sizes
	}{
		"by default":           {Settings{Concurrency: 1}, main, sizes{1, 50, 50, true}},
		"handlers":             {Settings{Concurrency: 40}, main, sizes{40, 80, 80, true}},
		"as many as can be":    {Settings{Concurrency: 65535}, main, sizes{65535, 65535, 65535, true}},
		"fixed":                {Settings{Concurrency: 4, Prefetch: 7}, main, sizes{least: 7, most: 7}},
		"exclusive":            {Settings{Concurrency: 1, Exclusive: true}, main, sizes{least: 20, most: 20}},
		"single active":        {Settings{Concurrency: 30, SingleActive: true}, main, sizes{least: 60, most: 60}},
		"single active, fixed": {Settings{Prefetch: 3, SingleActive: true}, main, sizes{least: 3, most: 3}},
		"expires":              {Settings{Concurrency: 1, Expires: true}, main, sizes{1, 50, 50, false}},
		"dead letters":         {Settings{Concurrency: 1}, letters, sizes{1, 50, mostSetAside, true}},
		"dead letters, fixed":  {Settings{Prefetch: 50}, letters, sizes{50, 50, mostSetAside, false}},
		"dead letters, exclusive": {Settings{Concurrency: 1, Exclusive: true, Prefetch: 50}, letters,
			sizes{least: 50, most: 50}},
	} {
		got := sizesOf(&test.settings, test.queue)
		assert.Equal(t, test.want, got, name)
		assert.Equal(t, got.most > got.least || got.held > 0, got.changes(), name)
	}
}

func TestGrownForHandlers(t *testing.T) {
	for name, test := range map[string]struct{ present, calls, want, grown int }{
		"a careful one is opened":       {1, 0, 2, 2},
		"in steps":                      {2, 2, 50, 16},
		"up to what is wanted":          {16, 16, 50, 50},
		"not for little":                {30, 100, 50, 30},
		"not before it has been needed": {16, 15, 50, 16},
		"never down":                    {50, 100, 2, 50},
	} {
		c, l := consumption{prefetch: test.present}, load{start: 2, calls: test.calls, want: test.want}
		assert.Equal(t, test.grown, c.grown(sizes{least: 2, most: 50, held: 50}, l), name)
	}
}

// A prefetch does not grow while deliveries of earlier consumers wait for handlers, nor into the
// room of those that are held.
func TestGrown(t *testing.T) {
	const present = 8
	for name, test := range map[string]struct{ older, held, want int }{
		"by itself":                      {0, 0, 50},
		"older ones wait":                {1, 0, present},
		"older ones are held":            {10, 10, 40},
		"older ones wait beside held":    {11, 10, present},
		"nearly all the room is held":    {45, 45, present},
		"all are held, and one of these": {0, 1, 49},
	} {
		sub := &subscription{pace: newPace(1)}
		for range present {
			sub.pace.begin(0, 0, time.Now())
			sub.pace.end(0, time.Now())
		}
		i := &intake{session: &session{sub: sub, acker: idleAcker()}, sizes: sizes{least: 1, most: 50, held: 50},
			consumer: consumption{prefetch: present}}
		for tag := range test.older {
			i.acker.arrived(uint64(tag) + 1)
		}
		i.acker.begin()
		i.forwards.Add(test.held)
		assert.Equal(t, test.want, i.grown(), name)
	}
}

// taking is an intake that takes these deliveries with an open consumer of this prefetch.
func taking(prefetch int, deliveries ...amqp091.Delivery) (*intake, chan<- amqp091.Delivery) {
	given := make(chan amqp091.Delivery, len(deliveries))
	for i, d := range deliveries {
		d.DeliveryTag = uint64(i) + 1
		given <- d
	}

	return &intake{session: &session{acker: idleAcker(), sub: &subscription{}, queue: &Queue{Name: "q"}},
		suspectsFrom: 1, state: stateOpen, consumer: consumption{deliveries: given, prefetch: prefetch},
		out: make(chan received, 2), ticks: time.NewTimer(time.Hour)}, given
}

var suspect = amqp091.Delivery{Redelivered: true, Headers: amqp091.Table{"x-delivery-count": int64(9)}}

// What fills a prefetch is handed out, but for a suspect: that is the next delivery.
func TestFill(t *testing.T) {
	i, given := taking(9, amqp091.Delivery{}, suspect)
	assert.True(t, i.fill(nil))
	assert.Len(t, i.out, 1)
	require.False(t, i.fill(nil), "a suspect")
	assert.Len(t, i.out, 1)
	assert.Equal(t, eventAmong, i.next())
	assert.Equal(t, uint64(2), i.hand.DeliveryTag)
	assert.False(t, i.fill(time.After(time.Millisecond)), "nothing comes")
	close(given)
	assert.False(t, i.fill(nil), "nothing comes any more")
}

// A consumer with quick handlers is replaced when the rest of its prefetch has come over a long
// way: that is waited for, as it is hardly ever used up by itself.
func TestReplaceWaitsUntilThePrefetchIsUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &modelBroker{t: t, latency: 20 * time.Millisecond, consumers: map[string]*modelConsumer{},
			unsettled: map[uint64]*modelDelivery{}, ready: make([]modelMessage, 2)}
		sub := &subscription{consumer: &Consumer{}, logger: watermill.NopLogger{}, pace: newPace(1)}
		i := &intake{session: &session{sub: sub, queue: &sub.queue, acker: idleAcker(), channel: broker,
			stop: make(chan struct{})}, tag: "tag", state: stateOpen, out: make(chan received, 2),
			ticks: time.NewTimer(time.Hour)}
		require.NoError(t, i.consume(2))
		i.hand = i.receive(<-i.consumer.deliveries)
		i.handOut()

		require.Equal(t, eventNone, i.replace(8, 0))
		assert.Equal(t, 2, i.consumer.prefetch, "the second one is on its way")
		require.Equal(t, eventNone, i.replace(8, quietTime))
		assert.Equal(t, 8, i.consumer.prefetch)
		assert.Len(t, i.out, 2)
	})
}

// A consumer that is cancelled for a suspect takes what is on its way, up to its prefetch, or to
// the next suspect.
func TestGather(t *testing.T) {
	healthy := amqp091.Delivery{}
	for name, test := range map[string]struct {
		prefetch int
		given    []amqp091.Delivery
		want     int
	}{
		"its prefetch is used up": {2, []amqp091.Delivery{healthy, healthy, healthy}, 2},
		"another suspect":         {9, []amqp091.Delivery{healthy, suspect, suspect, healthy}, 2},
		"nothing more comes":      {9, []amqp091.Delivery{healthy}, 1},
	} {
		i, _ := taking(test.prefetch, test.given...)
		assert.Len(t, i.gather(time.After(10*time.Millisecond)), test.want, name)
	}
	i, _ := taking(9)
	stop := make(chan struct{})
	i.stop = stop
	close(stop)
	assert.Empty(t, i.gather(nil), "at a close")
}

// A suspect is given back a few times where the broker counts that, and always where it does not.
func TestMayGoBack(t *testing.T) {
	for _, test := range []struct {
		version string
		counted int64
		want    bool
	}{
		{"3.10.8", 1, true}, {"3.10.8", 2, true}, {"3.10.8", 3, false}, {"4.0.5", 9, false}, {"4.3.6", 9, true},
	} {
		i := &intake{session: &session{queue: &Queue{Name: "q", Policy: config.Policy{CrashLimit: 10}},
			broker: broker{version: test.version}, countsLeft: rabbitmq.AtLeast(test.version, 4, 3)}}
		d := received{Delivery: amqp091.Delivery{Redelivered: true,
			Headers: amqp091.Table{"x-delivery-count": test.counted}}}
		assert.Equal(t, test.want, i.mayGoBack(&d), "%s: %d", test.version, test.counted)
	}
}

// A queue that may make trouble has one message at a time, and all else as before.
func TestSizesCareful(t *testing.T) {
	assert.Equal(t, sizes{least: 1, most: 1, held: 50, givesBack: true}, sizes{3, 50, 50, true}.careful())
}

// Beside deliveries that are held there is room for others, but not for any number of them.
func TestSizesStanding(t *testing.T) {
	z := sizes{least: 1, most: 50, held: 50}
	for name, test := range map[string]struct{ held, want, soon, room int }{
		"one is held":             {1, 1, 2, 1},
		"several, quick handlers": {10, 1, 50, 10},
		"several, slow handlers":  {10, 1, 3, 3},
		"very quick handlers":     {1, 50, 50, 49},
		"most are held":           {49, 50, 50, 1},
		"all are held":            {50, 50, 50, 0},
		"more are held":           {60, 50, 50, 0},
	} {
		assert.Equal(t, test.room, z.standing(test.held, test.want, test.soon), name)
	}
}

func TestPace(t *testing.T) {
	now := time.Now()
	call := func(p *pace, worker int, took time.Duration) {
		p.begin(worker, 0, now)
		now = now.Add(took)
		p.end(worker, now)
	}
	want := func(p *pace) int { return sizes{least: len(p.since), most: 50}.want(p) }

	p := newPace(1)
	assert.Equal(t, 1, want(p), "nothing is known")
	call(p, 0, 4*time.Second)
	assert.Equal(t, 1, want(p))
	call(p, 0, 0)
	for range 30 {
		call(p, 0, time.Millisecond)
	}
	assert.Equal(t, 50, want(p), "what was long ago counts little")
	for range 30 {
		call(p, 0, 100*time.Millisecond)
	}
	assert.Equal(t, 11, want(p))
	assert.Equal(t, 62, p.ended())
	assert.Equal(t, 50, p.within(heldAhead, 50))

	p = newPace(2)
	call(p, 0, 100*time.Millisecond)
	assert.Equal(t, 22, want(p))
	p.begin(1, 0, now)
	idle, free := p.look(now.Add(stuckAfter))
	assert.Equal(t, []int{1, 2}, []int{idle, free})
	assert.Equal(t, stuckAfter, p.longest(now.Add(stuckAfter)))
	idle, free = p.look(now.Add(stuckAfter + 1))
	assert.Equal(t, []int{1, 1}, []int{idle, free})
	assert.Equal(t, 12, want(p), "of one that is stuck nothing is expected")
	p.end(1, now.Add(time.Minute))
	idle, free = p.look(now.Add(time.Minute))
	assert.Equal(t, []int{2, 2}, []int{idle, free})
}

// A worker that goes on without its delivery leaves a place empty.
func TestPaceWithdrawn(t *testing.T) {
	p, adaptive := newPace(2), sizes{least: 2, most: 50, givesBack: true}
	done := p.withdraw()
	assert.Equal(t, 1, adaptive.start(p))
	assert.Equal(t, 1, adaptive.want(p))
	other := p.withdraw()
	assert.Zero(t, adaptive.start(p))
	assert.Equal(t, 2, sizes{least: 2, most: 2}.start(p), "a fixed one stays")
	other()
	done()
	assert.Equal(t, 2, adaptive.start(p))
}

// Large bodies are not delivered far ahead, until they have not been seen for a while.
func TestPaceBodies(t *testing.T) {
	p, now := newPace(1), time.Now()
	call := func(body int) int {
		p.begin(0, body, now)
		p.end(0, now)

		return p.within(second, 50)
	}
	assert.Equal(t, 50, call(0))
	assert.Equal(t, 50, call(100<<10))
	assert.Equal(t, 4, call(2<<20))
	assert.Equal(t, 4, call(10))
	assert.Equal(t, 0, call(9<<20))
	for range 100 {
		call(10)
	}
	assert.Greater(t, call(10), 10)
	for range 200 {
		call(10)
	}
	assert.Equal(t, 50, call(10))
}

func TestAhead(t *testing.T) {
	var a ahead
	now := time.Now()
	assert.Zero(t, a.oldest(now))
	a.push(now.Add(-time.Second))
	a.push(now)
	assert.Equal(t, time.Second, a.oldest(now))
	a.pop()
	assert.Positive(t, a.oldest(now), "there is one")
	a.pop()
	assert.Zero(t, a.oldest(now))
}
