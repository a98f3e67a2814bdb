package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/republish"
)

// session is one AMQP channel with one consumer at a time on it.
type session struct {
	sub     *subscription
	queue   *Queue // of sub
	channel *amqp091.Channel
	acker   *acker

	// ctx is the parent of the messages' contexts; it ends with the channel, because the broker delivers them again.
	ctx    context.Context
	cancel context.CancelCauseFunc

	over chan struct{} // closed when the broker delivers no more: the consumer or the channel is gone
	gone chan struct{} // closed when the channel is gone, and with it every delivery that is not settled
	stop chan struct{} // closed when nothing more may be handed out: it is over, or the subscription closes

	// Of the goroutine that takes deliveries from the broker, see intake.go.
	active       *moment
	suspectsFrom int64 // x-delivery-count; never for none
	tag          string
	consumed     int // how many consumers there were
	deliveries   chan received
	handed       tally // handed out and not handled yet
	ahead        ahead
	sizes, usual sizes
	wellAt       time.Time // when sizes are to be the usual ones; zero if they are
	ticks        *time.Timer
	isTicking    bool
	asked        time.Time // when the broker was asked for other consumers
	answer       chan bool // to that; nil if it is not asked
	came         *received // and is the next one; nil for none
	filled       time.Time // when acknowledgements waited last for the prefetch to be used up
	taken        chan struct{}
	returned     []received // delivered and handed to nobody; read after taken

	broker broker // whose messages these are
	link   *connection.Link

	countsLeft bool // the broker counts what a closing channel leaves behind, and not what is given back before

	forwards tally        // copies that are not confirmed yet
	paused   tally        // deliveries that go back to their queue after a pause
	tooMany  atomic.Bool  // of those, dead letters: that was told
	early    atomic.Int64 // of forwards, those that came back too early
}

// openSession declares and consumes. What was declared over an earlier connection is most likely still there: it is
// declared again beside consuming, because a retry queue that is not available, such as a classic one whose node is
// down, must not keep healthy messages from being handled. Nor must a main queue that somebody has made anew with
// another type.
func openSession(s *subscription, link *connection.Link, isDeclared func()) (*session, error) {
	if s.began && s.consumer.queues.hasDeclared(&s.queue) {
		if session, err := beginSession(s, link); err == nil {
			go s.declareAgain(link, session.over)
			return session, nil
		}
	}
	err := s.consumer.declare(link, s.queue)
	if err != nil && (!s.began || !s.queue.isUsable(err)) {
		return nil, err
	}
	isDeclared()

	session, failed := beginSession(s, link)
	if err != nil && failed == nil {
		go s.declareAgain(link, session.over)
	}

	return session, failed
}

func beginSession(s *subscription, link *connection.Link) (*session, error) {
	channel, err := link.Channel()
	if err != nil {
		return nil, fmt.Errorf("cannot open a channel: %w", err)
	}

	session, err := newSession(s, link, channel)
	if err != nil {
		s.consumer.queues.forget(s.queue.Name) // it may have been deleted
		_ = channel.Close()

		return nil, err
	}

	return session, nil
}

func newSession(s *subscription, link *connection.Link, channel *amqp091.Channel) (*session, error) {
	settings, version := s.consumer.settings, link.Version()
	usual, wellAt := sizesOf(&settings, &s.queue), time.Time{}
	sizes := usual
	if s.alone && !settings.Exclusive && !settings.SingleActive { // which must not be replaced when it is well
		sizes, wellAt = usual.careful(), time.Now().Add(carefulFor)
	}
	closes := channel.NotifyClose(make(chan *amqp091.Error, 1))
	cancels := channel.NotifyCancel(make(chan string, 1))

	// Two consumers may have theirs in it: one that is replaced, and the next. Behind that the stamps of a huge prefetch
	// that is fixed are late, which costs less than its memory.
	room := 2 * usual.most
	if !usual.givesBack {
		room = min(room, 1024)
	}
	opened := &session{
		sub: s, queue: &s.queue, channel: channel, acker: newAcker(channel), tag: settings.Consumer, active: &s.active,
		link: link, broker: broker{version, link.FrameSize(), codec.NewReturns(s.queue.Plan)},
		suspectsFrom: suspectsFrom(&s.queue.Policy, version), countsLeft: rabbitmq.AtLeast(version, 4, 3),
		over: make(chan struct{}), gone: make(chan struct{}), stop: make(chan struct{}), taken: make(chan struct{}),
		deliveries: make(chan received, room), ticks: time.NewTimer(tick),
		sizes: sizes, usual: usual, wellAt: wellAt,
	}
	opened.ticks.Stop()
	if opened.tag == "" {
		opened.tag = "watermill-retry-" + watermill.NewShortUUID()
	}
	if settings.Exclusive || settings.SingleActive || s.queue.isFailed() {
		// Without a consumer for a moment, another process would take its place. The messages of a failed queue run no
		// handler, and carry the counts of their main queue.
		opened.suspectsFrom = never
	}
	var first consumption
	if prefetch, careful := opened.initial(); prefetch > 0 {
		var err error
		if first, err = opened.consume(prefetch, careful); err != nil {
			opened.acker.close()
			return nil, cannotConsume(s.queue.Name, err)
		}
	} else {
		opened.keepTicking()
	}

	opened.ctx, opened.cancel = context.WithCancelCause(s.ctx)
	go opened.watch(closes, cancels)
	go func() {
		defer close(opened.stop)
		select {
		case <-opened.over:
		case <-s.closing:
		}
	}()
	go opened.take(first)

	return opened, nil
}

// cannotConsume says what to do where that is known: the broker's own words do not.
func cannotConsume(queue string, err error) error {
	if broker := (*amqp091.Error)(nil); errors.As(err, &broker) && broker.Code == amqp091.NotFound {
		err = fmt.Errorf("the queue does not exist: with topology assume, all must be provisioned before: %w", err)
	}

	return fmt.Errorf("cannot consume from queue %q: %w", queue, topology.ExplainUse(topology.UseConsume,
		topology.KindQueue, queue, err))
}

// watch tells when the session is over.
func (s *session) watch(closes <-chan *amqp091.Error, cancels <-chan string) {
	defer close(s.gone)
	defer s.cancel(republish.ErrGone)

	lost := func(err *amqp091.Error) {
		if err.Code == amqp091.NotFound {
			s.sub.consumer.queues.forget(s.queue.Name)
		}
		s.sub.logger.Error("Channel closed", err, nil)
	}

	select {
	case _, cancelled := <-cancels:
		if cancelled {
			s.sub.consumer.queues.forget(s.queue.Name)
			s.sub.logger.Error("RabbitMQ cancelled the consumer: the queue was deleted or is unavailable, or (RabbitMQ "+
				"4.3 and later) a message was not acknowledged within the consumer timeout", nil,
				watermill.LogFields{"longest_call": s.sub.pace.longest(time.Now()).Round(time.Millisecond).String()})
		}
	case err, ok := <-closes:
		if ok {
			lost(err)
		}
	}
	close(s.over)

	for err := range closes { // until the channel is gone
		lost(err)
	}
}

func (s *session) isGone() bool { return s.channel.IsClosed() }

// work hands out one message after the other until the session is over.
func (s *session) work(worker int) {
	for {
		select {
		case <-s.sub.closing:
			return
		case d, ok := <-s.deliveries:
			if !ok {
				select { // it is about to be over; or cancelled by ourselves
				case <-s.over:
				case <-s.sub.closing:
				}

				return
			}
			s.ahead.pop()
			if !s.isGone() { // else it will come again
				s.sub.pace.begin(worker, len(d.Body), time.Now())
				s.handle(&handout{engine: s.sub.consumer.settings.Engine, queue: s.queue, subscription: s.sub,
					delivery: d.Delivery}, d.at)
				s.sub.pace.end(worker, time.Now())
			}
			s.handed.Done()
		}
	}
}
