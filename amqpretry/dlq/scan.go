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

	"github.com/amqpretry/watermill-retry/internal/transport"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// scan goes once through a queue, from its head, and holds what it passes until it is released. It belongs to one goroutine; only
// block.ack may be called from another one.
type scan struct {
	queue  *Queue
	links  *links
	safety safety
	unlock func()
	began  time.Time
	most   int // messages in a block

	// total is how many messages the queue had to give in the beginning. What comes later is behind them.
	total, seen int
	// short is how many messages others had taken before a run that had given all back began anew.
	short int
	// hidden is how many the broker holds back besides.
	hidden int
	// eager acknowledges at once also what the first block has given, which then goes on until it is full: it must not be cancelled while
	// messages are on their way to it.
	eager bool

	blocks []*block
	looker *amqp091.Channel
	// returned tells that the last message had been given back before, so that others of those may follow.
	returned bool
}

// found is one message that a scan has come to. It belongs to the goroutine of the scan.
type found struct {
	delivery   amqp091.Delivery
	block      *block
	queue      *Queue
	position   int
	unreadable string // names of headers

	read *Letter
}

// letter reads the message when somebody asks, which takes longer than to send it on.
func (f *found) letter() *Letter {
	if f.read == nil {
		letter := newLetter(&f.delivery, f.unreadable, f.queue.mainQueue, f.queue.client.config.UUIDHeader, f.position)
		f.read = &letter
	}

	return f.read
}

// keep leaves it in the queue.
func (f *found) keep() {
	f.block.kept++
	f.block.firstKept.CompareAndSwap(0, f.delivery.DeliveryTag)
}

// scan begins at the head of the queue. locked tells that the run has the lock already.
func (q *Queue) scan(ctx context.Context, locked bool) (_ *scan, err error) {
	link, err := q.client.link(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := depth(link, "dead-letter queue", q.name); err != nil {
		return nil, err
	}
	safety, err := q.safety(ctx, link)
	if err != nil {
		return nil, err
	}
	unlock := func() {}
	if !locked { // two who look at the same time see a part each, and turn the order of a quorum queue
		if unlock, err = q.lockLook(ctx); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				unlock()
			}
		}()
	}
	total, err := depth(link, "dead-letter queue", q.name)
	if err != nil {
		return nil, err
	}
	hidden := 0
	if safety.quorum {
		if hidden, err = q.hidden(ctx, link); err != nil {
			return nil, err
		}
		if err = q.certain(link, total, hidden); err != nil {
			return nil, err
		}
	}
	looker, err := link.Channel()
	if err != nil {
		return nil, err
	}

	return &scan{queue: q, hidden: hidden, links: &links{client: q.client, all: []*transport.Link{link}}, safety: safety, unlock: unlock, began: time.Now(), total: total, most: mostPrefetch, looker: looker}, nil
}

// consumerTimeout is how long RabbitMQ lets a message be unanswered, by default 30 minutes, with room for more than one.
const consumerTimeout = 5 * time.Minute

// defaultHold is how long messages are held that are to stay in the queue. A run that takes longer gives them back and begins anew.
const defaultHold = 20 * time.Minute

// eagerRate is up to how many a second the first block acknowledges at once: at a higher rate it is soon full.
const eagerRate = 100

// slow has no more messages at hand than can go at a rate before the broker takes them back.
func (s *scan) slow(perSecond float64) {
	s.most = max(leastPrefetch, int(min(mostPrefetch, perSecond*consumerTimeout.Seconds())))
	s.eager = perSecond <= eagerRate
}

// idleTime is how long nothing may come before the queue is asked whether it has anything.
const idleTime = 500 * time.Millisecond

// stuckTime is how long a queue may say that it has messages and give none.
const stuckTime = 30 * time.Second

// next gives the next message, io.EOF behind the last one.
func (s *scan) next(ctx context.Context) (*found, error) {
	idle, quiet := 0, &silence{scan: s, began: time.Now()}
	timer := time.NewTimer(idleTime)
	defer timer.Stop()

	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if s.seen >= s.total {
			return nil, s.over()
		}
		b, err := s.block(ctx)
		if err != nil {
			return nil, err
		}

		select {
		case d, ok := <-b.deliveries:
			if ok {
				return s.found(b, d)
			}
			if !b.sealed {
				return nil, s.gone(b)
			}
			b.prefetch = b.kept // full: it gives no more
			if b.ending {
				if ready, err := s.ready(); err != nil || ready == 0 {
					return nil, cmp.Or(err, s.over())
				}
				idle = 0
			}
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
			quiet.began, idle = time.Now(), 0
		case ready > 0 && quiet.lasts() > stuckTime:
			return nil, fmt.Errorf("dead-letter queue %q: it has %d messages and has given none for %s: has it a single active consumer "+
				"(x-single-active-consumer), or no leader?", s.queue.name, ready, stuckTime)
		case ready > 0:
			idle = 0
		default:
			// Others have taken the rest, or all of it is on its way to this consumer.
			if idle++; idle > 1 {
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
	if missing := s.total - s.seen + s.short; missing > 0 {
		return &IncompleteError{Queue: s.queue.name, Total: s.total + s.short, Missing: missing}
	}

	return io.EOF
}

// settle lets what was taken be acknowledged, which must wait as long as the first block is not full: a consumer that is cancelled while
// messages are on their way to it has them given back before their turn.
func (s *scan) settle() {
	if len(s.blocks) > 0 {
		s.blocks[0].openAcks()
	}
}

// block is the one that gives the next message. The first one is small, as nobody knows how large the messages are.
func (s *scan) block(ctx context.Context) (*block, error) {
	prefetch := firstPrefetch
	if n := len(s.blocks); n > 0 {
		b := s.blocks[n-1]
		if n == 1 && b.given >= firstPrefetch && !b.sealed && !s.eager {
			if err := b.seal(); err != nil {
				return nil, s.gone(b)
			}
		}
		if !b.isFull() {
			return b, nil
		}
		if err := b.seal(); err != nil { // a full one gets nothing any more; a single active consumer makes room for the next
			return nil, s.gone(b)
		}
		prefetch = min(s.most, prefetchFor(b.given, b.bytes))
		if err := s.intact(); err != nil {
			return nil, err
		}
	}

	if left := s.total - s.seen; left > 0 {
		prefetch = min(prefetch, left) // a full block is given no newer ones
	}
	link, err := s.links.forChannel(ctx)
	if err != nil {
		return nil, err
	}
	b, err := openBlock(link, s.queue.name, prefetch)
	if err != nil {
		return nil, err
	}
	s.blocks = append(s.blocks, b)
	if len(s.blocks) > 1 || s.eager {
		b.openAcks()
	}

	return b, nil
}

func (s *scan) found(b *block, d amqp091.Delivery) (*found, error) {
	s.seen++
	b.given++
	b.bytes += int64(len(d.Body))
	s.returned = d.Redelivered
	if err := s.safety.check(s.queue, d.Headers); err != nil {
		return nil, err
	}

	unreadable := transport.LostHeaders(d.Headers)
	for _, key := range []string{wire.KeyDeliveryCount, wire.KeyAcquiredCount} { // the queue's, not the message's
		delete(d.Headers, key)
	}

	return &found{delivery: d, block: b, queue: s.queue, position: s.seen, unreadable: unreadable}, nil
}

// intact tells whether all that is passed is still held. What is not comes again, behind the rest.
func (s *scan) intact() error {
	for _, b := range s.blocks {
		if b.channel.IsClosed() {
			return s.gone(b)
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
	q, err := s.looker.QueueDeclarePassive(s.queue.name, true, false, false, false, nil)
	return q.Messages, err
}

// gone tells why a block gives no more.
func (s *scan) gone(b *block) error {
	select {
	case err := <-b.closes:
		if err != nil {
			return fmt.Errorf("dead-letter queue %q: %w (RabbitMQ also takes back what was held for longer than its consumer_timeout)", s.queue.name, err)
		}
		return fmt.Errorf("dead-letter queue %q: the connection was closed", s.queue.name)
	case <-time.After(time.Second):
		return fmt.Errorf("dead-letter queue %q: the broker has cancelled the consumer: was the queue deleted?", s.queue.name)
	}
}

// release gives back what is held, in its order: the oldest block first, and each one only when the broker has counted the one
// before among what it has to give, since closing several channels at once would mix them up. Whoever looks next must find all of it.
func (s *scan) release(ctx context.Context) {
	for _, b := range s.blocks {
		b.kept = b.held() // also what was on its way when a run failed: nobody takes it out any more
	}
	s.complete(ctx)
	for _, b := range s.blocks {
		if !b.isFull() { // or it would be given what the others give back
			_ = b.seal() // if it fails, its channel is gone
		}
	}
	deadline := time.Now().Add(time.Minute)
	returned, _ := s.ready()
	for _, b := range s.blocks {
		held := b.held()
		b.giveBack(s.safety.requeue)
		if returned += held; held > 0 {
			s.await(returned, deadline)
		}
	}
	s.blocks = nil
	_ = s.looker.Close() // also of one that is released
	s.links.close()
	s.unlock()
}

// passTime is how long a run that was interrupted goes on for the sake of the order.
const passTime = 10 * time.Second

// complete goes on until the last block is full and its last message was never given back before, or to the end. A quorum queue puts what it
// gets back behind what it got back before, and both before the rest: whoever stops among those that other looks have given back would turn
// them round. And what is on its way to a consumer that is cancelled goes back at once, before its turn: so it is taken again, by one that gets
// exactly as many as there are.
func (s *scan) complete(ctx context.Context) {
	if !s.safety.quorum || len(s.blocks) == 0 {
		return
	}
	passing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(passTime, cancel) })()

	for range mostRounds {
		if err := s.passOn(passing); err != nil {
			return
		}
		last := s.blocks[len(s.blocks)-1]
		if last.isFull() || last.seal() != nil {
			return
		}
		for d := range last.deliveries {
			if f, err := s.found(last, d); err == nil {
				f.keep()
			}
		}
		last.prefetch = last.kept
		ready, err := s.ready()
		if err != nil || ready == 0 {
			return
		}
		s.total = s.seen + min(ready, s.most)
	}
}

// mostRounds bounds how often a consumer of the dead-letter queue may take away what was to fill a block.
const mostRounds = 20

// passOn keeps all that comes until the last block is full and its last message is a fresh one, or to the end.
func (s *scan) passOn(ctx context.Context) error {
	for s.returned || !s.blocks[len(s.blocks)-1].isFull() {
		f, err := s.next(ctx)
		if missing := (*IncompleteError)(nil); errors.Is(err, io.EOF) || errors.As(err, &missing) {
			return nil
		}
		if err != nil {
			return err
		}
		f.keep()
	}

	return nil
}

// await waits until the queue has so many messages. Whoever consumes it at the same time takes them away, and has no order to lose.
func (s *scan) await(messages int, deadline time.Time) {
	if limit := time.Now().Add(settleTime); limit.Before(deadline) {
		deadline = limit
	}
	for pause := 200 * time.Microsecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		if ready, err := s.ready(); err != nil || ready >= messages {
			return
		}
		<-time.After(pause)
	}
}

// links are the connections of a scan: the client's, and more where one has not channels enough.
type links struct {
	client *Client
	all    []*transport.Link
	own    []*transport.Connection
	used   int
}

// keepChannels are left for others on the same connection.
const keepChannels = 32

func (l *links) forChannel(ctx context.Context) (*transport.Link, error) {
	link := l.all[len(l.all)-1]
	if most := int(link.Config.ChannelMax); most == 0 || l.used < most-keepChannels {
		l.used++
		return link, nil
	}
	connection := l.client.connect("dead letters")
	l.own = append(l.own, connection)
	link, err := connection.TryLink(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("no further connection for what is held of a long queue"), err)
	}
	l.all, l.used = append(l.all, link), 1

	return link, nil
}

func (l *links) close() {
	for _, connection := range l.own {
		l.client.disconnect(connection)
	}
	l.own = nil
}
