package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// session is one AMQP channel with one consumer at a time on it.
type session struct {
	sub     *subscription
	queue   *Queue // of sub
	link    *connection.Link
	channel channel
	broker  broker // whose messages these are
	acker   *acker
	intake  *intake

	// ctx is the parent of the messages' contexts; it ends with the channel, because the broker
	// delivers them again.
	ctx    context.Context
	cancel context.CancelCauseFunc

	over chan struct{} // closed when the broker delivers no more: the consumer or the channel is gone
	gone chan struct{} // closed when the channel is gone, and with it every delivery that is not settled
	stop chan struct{} // closed when nothing more may be handed out: it is over, or the subscription closes

	countsLeft bool // the broker counts what a closing channel leaves behind, and not what is given back before

	forwards tally        // copies that are not confirmed yet
	paused   tally        // deliveries that go back to their queue after a pause
	tooMany  atomic.Bool  // of those, dead letters: that was logged
	early    atomic.Int64 // of forwards, those that came back too early
}

// channel is what a session needs of an AMQP channel.
type channel interface {
	ackChannel
	Qos(prefetchCount, prefetchSize int, global bool) error
	Consume(queue, consumer string, autoAck, exclusive, noLocal, noWait bool, args amqp091.Table) (
		<-chan amqp091.Delivery, error)
	Cancel(consumer string, noWait bool) error
	IsClosed() bool
	Close() error
}

// openSession declares and consumes. What was declared over an earlier connection is most likely
// still there: it is declared again beside consuming, because a retry queue that is not available,
// such as a classic one whose node is down, must not keep healthy messages from being handled. Nor
// must a main queue that somebody has made anew with another type.
func openSession(s *subscription, link *connection.Link, isDeclared func()) (*session, error) {
	if s.began && s.consumer.queues.hasDeclared(&s.queue) {
		if session, err := newSession(s, link); err == nil {
			go s.declareAgain(link, session.over)
			return session, nil
		}
	}
	err := s.consumer.declare(link, s.queue)
	if err != nil && (!s.began || !s.queue.isUsable(err)) {
		return nil, err
	}
	isDeclared()

	session, failed := newSession(s, link)
	if err != nil && failed == nil {
		go s.declareAgain(link, session.over)
	}

	return session, failed
}

// newSession consumes over a channel of its own.
func newSession(sub *subscription, link *connection.Link) (*session, error) {
	channel, err := link.Channel()
	if err != nil {
		return nil, fmt.Errorf("cannot open a channel: %w", err)
	}
	closes := channel.NotifyClose(make(chan *amqp091.Error, 1))
	cancels := channel.NotifyCancel(make(chan string, 1))
	s := &session{
		sub: sub, queue: &sub.queue, link: link, channel: channel, acker: newAcker(channel, link),
		broker:     broker{link.Version(), link.FrameSize(), codec.NewReturns(sub.queue.Plan)},
		countsLeft: rabbitmq.CountsFailuresOnly(link.Version()),
		over:       make(chan struct{}), gone: make(chan struct{}), stop: make(chan struct{}),
	}
	s.intake = newIntake(s, link)
	if err := s.intake.start(); err != nil {
		s.acker.close()
		sub.consumer.queues.forget(sub.queue.Name) // it may have been deleted
		_ = channel.Close()

		return nil, cannotConsume(sub.queue.Name, err)
	}

	s.ctx, s.cancel = context.WithCancelCause(sub.ctx)
	go s.watch(closes, cancels)
	go func() {
		defer close(s.stop)
		select {
		case <-s.over:
		case <-sub.closing:
		}
	}()
	go s.intake.run()

	return s, nil
}

// cannotConsume says what to do where that is known: the broker's own words do not.
func cannotConsume(queue string, err error) error {
	if broker := (*amqp091.Error)(nil); errors.As(err, &broker) && broker.Code == amqp091.NotFound {
		err = fmt.Errorf("the queue does not exist: with AssumeTopology, all must be provisioned before: %w", err)
	}

	return fmt.Errorf("cannot consume from queue %q: %w", queue, topology.Explain(rabbitmq.UseConsume,
		rabbitmq.KindQueue, queue, err))
}

// watch notes when the session is over.
//
// Upstream: the broker cancels a consumer at the consumer timeout; rabbitmq/rabbitmq-server#11603,
// rabbitmq/rabbitmq-server#13885; RabbitMQ 4.3 and later; TestPrefetch_ConsumerTimeout_OwnBroker;
// remove when the cancel has a reason.
func (s *session) watch(closes <-chan *amqp091.Error, cancels <-chan string) {
	defer close(s.gone)
	defer s.cancel(publish.ErrGone)

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
			s.sub.logger.Error("RabbitMQ cancelled the consumer: the queue was deleted or is unavailable, or "+
				"(RabbitMQ 4.3 and later) a message was not acknowledged within the consumer timeout", nil,
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
		case d, ok := <-s.intake.out:
			if !ok {
				<-s.stop // the consumer is gone, and the session about to be over
				return
			}
			s.intake.ahead.pop()
			if !s.isGone() { // else it will come again
				s.sub.pace.begin(worker, len(d.Body), time.Now())
				s.handle(&handout{engine: s.sub.consumer.settings.Engine, queue: s.queue, subscription: s.sub,
					delivery: d.Delivery}, d.at)
				s.sub.pace.end(worker, time.Now())
			}
			s.intake.handed.Done()
		}
	}
}
