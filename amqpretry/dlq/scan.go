package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// scan goes once through a queue, from its head, and holds what it passes until it is released. It
// belongs to one goroutine; only block.ack may be called from another one.
type scan struct {
	ctx    context.Context // ends with that of the caller, and with the client
	queue  *Queue
	links  *links
	safety safety
	unlock func()
	leave  func() (left func()) // see scans.enter
	began  time.Time
	most   int // messages in a block

	// first is how many messages the queue had to give in the beginning. What comes later is behind
	// them.
	first int
	// total is how many it had when the scan has begun anew, see renew, and passed how many of
	// these were passed since. The first skip of them were passed before; gone is how many were
	// taken out before, and short how many others have taken meanwhile.
	total, passed, skip, gone, short int
	// hidden is how many the broker holds back besides, and others how many consumers it had
	// besides this one.
	hidden, others int
	// idle waits until nothing is on its way out of the queue. Nil where nothing is taken out.
	idle func(context.Context) error
	// waits is called before take waits for the next message. Nil for nothing.
	waits func()

	// losses is how often a message came for which there was no room, and atOnce how many messages
	// there is room for since then; 0: any.
	losses, atOnce int

	// eager acknowledges at once also what the first block has given.
	eager bool

	blocks       []*block
	depthChannel *amqp091.Channel
	asker        asker   // of depthChannel
	holder       *holder // nil for dead letters, which can stay as long as it takes
	// returned tells that the last message had been given back before, so that others of those may
	// follow.
	returned, released bool
}

// seen is how many messages were given.
func (s *scan) seen() int { return s.gone + max(s.passed, s.skip) }

// found is one message that a scan has come to. It belongs to the goroutine of the scan.
type found struct {
	arrived

	block      *block
	queue      *Queue
	position   int
	unreadable string  // names of headers
	origin     *Origin // to which it goes; nil for the target of the run

	read *DeadLetter
}

// deadLetter reads the message when somebody asks, which takes longer than to send it on.
func (f *found) deadLetter() *DeadLetter {
	if f.read == nil {
		deadLetter := newDeadLetter(&f.delivery, f.unreadable, f.queue.mainQueue, f.queue.client.config.UUIDHeader,
			f.position)
		if f.queue.place != nil {
			deadLetter.Wait = f.queue.place.wait(&f.delivery, time.Now())
		}
		f.read = &deadLetter
	}

	return f.read
}

// keep leaves it in the queue.
func (f *found) keep() { f.block.keep(f.delivery.DeliveryTag) }

// scan begins at the head of the queue. locked tells that the run has the lock already.
func (q *Queue) scan(ctx context.Context, locked bool) (_ *scan, err error) {
	ctx, leave, err := q.client.scans.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()()
		}
	}()
	link, err := q.client.link(ctx)
	if err != nil {
		return nil, err
	}
	asker := q.client.asker(link)
	if _, err := depth(asker, "dead-letter queue", q.name); err != nil {
		return nil, err
	}
	safety, err := q.safety(ctx, link)
	if err != nil {
		return nil, err
	}
	unlock := func() {}
	if !locked { // two browses at a time would see a part each, and turn the order of a quorum queue
		if unlock, err = q.lockBrowse(ctx); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				unlock()
			}
		}()
	}
	found, err := inspect(asker, "dead-letter queue", q.name)
	if err != nil {
		return nil, err
	}
	total, hidden, first, holder := found.Messages, 0, []*block(nil), newHolder(q.place)
	defer func() {
		if err != nil {
			holder.end()
		}
	}()
	if safety.quorum {
		if hidden, err = q.hidden(ctx, link); err == nil && total == 0 {
			first, total, err = q.first(asker, holder)
		}
		if err != nil {
			return nil, err
		}
		if err = q.certain(link, total, hidden); err != nil && q.place == nil {
			return nil, err
		}
	}
	depthChannel, err := link.Channel()
	if err != nil {
		for _, b := range first {
			_ = b.giveBack(safety.requeue)
		}
		return nil, err
	}

	return &scan{
		blocks: first, ctx: ctx, leave: leave, queue: q, hidden: hidden, others: found.Consumers,
		links: &links{client: q.client, all: []*connection.Link{link}}, safety: safety,
		unlock: unlock, began: time.Now(), first: total, total: total, most: mostPrefetch, depthChannel: depthChannel,
		asker: asker, holder: holder,
	}, nil
}

// consumerTimeout is how long RabbitMQ lets a message be unanswered, by default 30 minutes, with
// room for more than one.
const consumerTimeout = 5 * time.Minute

// eagerRate is up to how many a second the first block acknowledges at once: at a higher rate it is
// soon full.
const eagerRate = 100

// slow has no more messages at hand than can go at a rate before the broker takes them back.
func (s *scan) slow(perSecond float64) {
	s.most = max(leastPrefetch, int(min(mostPrefetch, perSecond*consumerTimeout.Seconds())))
	s.eager = perSecond <= eagerRate
}

// idleTime is how long nothing may come before the queue is asked whether it has anything.
const idleTime = 500 * time.Millisecond

// endTime is how long nothing may come while the queue says that it has nothing more to give. A
// busy broker has counted what it has not sent yet, and gives that back at once and in any order
// when its consumer is cancelled.
const endTime = 5 * time.Second

// stuckTime is how long a queue may say that it has messages and give none.
const stuckTime = 30 * time.Second

// next gives the next message, io.EOF behind the last one.
func (s *scan) next(ctx context.Context) (*found, error) {
	for {
		if s.isOld() {
			if err := s.renew(ctx, 0); err != nil {
				return nil, err
			}
		}
		f, err := s.take(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case f.again:
			s.passed--
			f.keep()
			continue
		case s.holder != nil && f.lost: // it comes again, when there is room
			s.passed--
			if s.holder.claim(f.block, f.delivery.DeliveryTag) {
				_ = f.delivery.Nack(false, true)
				f.block.acked.Add(1)
			}
			continue
		case s.passed > s.skip && !f.lost:
			f.block.shown = f.delivery.DeliveryTag
			return f, nil
		}
		f.keep()
		if s.passed <= s.skip { // given before
			continue
		}
		s.lost(f.size)
		if err := s.renew(ctx, 1); err != nil {
			return nil, err
		}
	}
}

// take takes the next message as it comes, io.EOF behind the last one.
func (s *scan) take(ctx context.Context) (*found, error) {
	quiet := &silence{scan: s, began: time.Now()}
	var empty time.Time // since when the queue has had nothing to give
	timer := time.NewTimer(idleTime)
	defer timer.Stop()

	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if s.passed >= s.total {
			return nil, s.over()
		}
		b, err := s.block(ctx)
		if err != nil {
			return nil, err
		}

		a, ok, ended := b.inbox.take()
		if ok {
			return s.found(b, a)
		}
		if ended {
			if !b.sealed {
				return nil, s.closed(b)
			}
			b.prefetch = b.kept // full: it gives no more
			if b.ending {
				if ready, err := s.ready(); err != nil || ready == 0 {
					return nil, cmp.Or(err, s.over())
				}
				empty = time.Time{}
			}
			continue
		}

		if s.waits != nil {
			s.waits()
		}
		select {
		case <-b.inbox.news:
			continue
		case <-ctx.Done():
			continue
		case <-timer.C:
		}

		timer.Reset(idleTime)
		s.settle()
		ready, err := s.ready()
		switch {
		case err != nil:
			return nil, err
		case b.ending:
		case ready > 0 && b.held() >= b.prefetch: // what is on its way must be acknowledged first
			quiet.began, empty = time.Now(), time.Time{}
		case ready > 0 && quiet.lasts() > stuckTime:
			return nil, fmt.Errorf("cannot read dead-letter queue %q: it has %d messages and delivered none for %s; "+
				"check for a single active consumer (x-single-active-consumer) and for a leader", s.queue.name,
				ready, stuckTime)
		case ready > 0:
			empty = time.Time{}
		case empty.IsZero():
			empty = time.Now()
		default:
			// Others have taken the rest, or all of it is on its way to this consumer.
			limit := endTime
			if s.holder != nil { // what has expired is missed each time
				limit = settledWait
			}
			if min(quiet.lasts(), time.Since(empty)) > limit {
				b.end()
			}
		}
	}
}

// silence is how long nothing has come from the broker, not even a part of a message.
type silence struct {
	scan     *scan
	began    time.Time
	received int64
}

// aWord is more than what the broker says besides: answers, and heartbeats.
const aWord = 1 << 10

func (s *silence) lasts() time.Duration {
	received := int64(0)
	for _, link := range s.scan.links.all {
		received += link.Received()
	}
	if received-s.received > aWord {
		s.began = time.Now()
	}
	s.received = received

	return time.Since(s.began)
}

// over is the end of a scan: io.EOF, unless something was missing.
func (s *scan) over() error {
	if err := s.intact(); err != nil {
		return err
	}
	if s.holder != nil { // some were due meanwhile
		return io.EOF
	}
	if missing := s.total - s.passed + s.short; missing > 0 {
		return &IncompleteError{Queue: s.queue.name, Total: s.first, Missing: missing}
	}

	return io.EOF
}

// settle lets what the first block has given be acknowledged, which otherwise waits until that is
// cancelled.
func (s *scan) settle() {
	if len(s.blocks) > 0 {
		s.blocks[0].goOn()
	}
}

// block is the one that gives the next message. The first one is small, as nobody knows how large
// the messages are.
func (s *scan) block(ctx context.Context) (*block, error) {
	prefetch := firstPrefetch
	if n := len(s.blocks); n > 0 {
		b := s.blocks[n-1]
		if n == 1 && b.given >= b.prefetch && !b.sealed && !b.goesOn {
			if err := b.seal(); err != nil {
				return nil, s.notSealed(b, err)
			}
		}
		if !b.isFull() {
			return b, nil
		}
		if err := b.seal(); err != nil {
			// a full one gets nothing any more; a single active consumer makes room for the next
			return nil, s.notSealed(b, err)
		}
		if s.holder != nil && !b.inbox.isOver() { // it has got others for those that were given back
			return b, nil
		}
		prefetch = prefetchFor(b.given, b.bytes)
		if err := s.intact(); err != nil {
			return nil, err
		}
	}

	link, err := s.links.forChannel(ctx)
	if err != nil {
		return nil, err
	}
	b, err := openBlock(s.queue.client.asker(link), s.queue.name, s.prefetch(prefetch), s.queue.client.room,
		s.holder.add())
	if err != nil {
		return nil, err
	}
	s.blocks = append(s.blocks, b)
	if len(s.blocks) > 1 || s.eager {
		b.goOn()
	}

	return b, nil
}

// prefetch is how many messages a block is to get, where so many have a usual size.
func (s *scan) prefetch(usual int) int {
	if again := s.skip - s.passed; again > 0 {
		// whatever their size: nobody looks at them, and none behind them must come
		return min(again, mostPrefetch)
	}
	prefetch := min(usual, s.most, s.total-s.passed) // a full block is given no newer ones
	if s.atOnce > 0 {
		prefetch = min(prefetch, s.atOnce)
		if s.losses < mostGrowth {
			s.atOnce *= 2
		}
	}

	return prefetch
}

func (s *scan) found(b *block, a arrived) (*found, error) {
	s.passed++
	b.given++
	b.bytes += a.size
	s.returned = a.delivery.Redelivered
	f := &found{arrived: a, block: b, queue: s.queue, position: s.gone + s.passed}
	if a.lost {
		return f, nil
	}
	if err := s.safety.check(s.queue, a.delivery.Headers); err != nil {
		return nil, err
	}
	f.unreadable = codec.LostHeaders(a.delivery.Headers)
	for _, key := range []string{header.DeliveryCount, header.AcquiredCount} { // the queue's, not the message's
		delete(a.delivery.Headers, key)
	}

	return f, nil
}

// intact tells whether all that is passed is still held. What is not comes again, behind the rest.
func (s *scan) intact() error {
	for _, b := range s.blocks {
		if b.channel.IsClosed() {
			return s.closed(b)
		}
	}

	return nil
}

// holds tells whether anything is to be given back.
func (s *scan) holds() bool {
	return slices.ContainsFunc(s.blocks, func(b *block) bool { return b.kept > 0 })
}

// ready is how many messages the queue has to give besides what was given.
func (s *scan) ready() (int, error) {
	q, err := s.counts()

	return q.Messages, err
}

// counts asks how many messages the queue has to give, and how many consume it.
func (s *scan) counts() (amqp091.Queue, error) {
	var counts amqp091.Queue
	err := s.asker.ask(func() error {
		q, err := s.depthChannel.QueueDeclarePassive(s.queue.name, true, false, false, false, nil)
		counts = q
		return err
	})
	if err != nil { // and perhaps it is still being asked
		return amqp091.Queue{}, err
	}

	return counts, nil
}

// notSealed tells why a block cannot be ended.
func (s *scan) notSealed(b *block, err error) error {
	if errors.As(err, new(*silentError)) {
		return err
	}

	return s.closed(b)
}

// closed tells why a block gives no more.
func (s *scan) closed(b *block) error {
	select {
	case err := <-b.closes:
		if err != nil {
			return fmt.Errorf("cannot read dead-letter queue %q: %w (RabbitMQ also requeues messages that are "+
				"unacknowledged for longer than its consumer_timeout)", s.queue.name, err)
		}
		return fmt.Errorf("dead-letter queue %q: the connection was closed", s.queue.name)
	case <-time.After(time.Second):
		return fmt.Errorf("cannot read dead-letter queue %q: the broker cancelled the consumer; check that the queue "+
			"exists", s.queue.name)
	}
}
