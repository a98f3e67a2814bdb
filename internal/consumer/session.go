package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// session is one AMQP channel with one consumer at a time on it.
type session struct {
	channel *amqp091.Channel
	acker   *acker

	// ctx is the parent of the messages' contexts; it ends with the channel, because the broker delivers them again.
	ctx    context.Context
	cancel context.CancelCauseFunc

	over chan struct{} // closed when the broker delivers no more: the consumer or the channel is gone
	gone chan struct{} // closed when the channel is gone, and with it every delivery that is not settled
	stop chan struct{} // closed when nothing more may be handed out: it is over, or the subscription closes

	// Of the goroutine that takes deliveries from the broker, see intake.go.
	queue        *Queue
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
	n := &session{
		channel: channel, acker: newAcker(channel), tag: settings.Consumer, queue: &s.queue, active: &s.active,
		link: link, broker: broker{version, link.FrameSize(), codec.NewReturns(s.queue.Plan)},
		suspectsFrom: suspectsFrom(&s.queue.Policy, version), countsLeft: rabbitmq.AtLeast(version, 4, 3),
		over: make(chan struct{}), gone: make(chan struct{}), stop: make(chan struct{}), taken: make(chan struct{}),
		deliveries: make(chan received, room), ticks: time.NewTimer(tick),
		sizes: sizes, usual: usual, wellAt: wellAt,
	}
	n.ticks.Stop()
	if n.tag == "" {
		n.tag = "watermill-retry-" + watermill.NewShortUUID()
	}
	if settings.Exclusive || settings.SingleActive || s.queue.isFailed() {
		// Without a consumer for a moment, another process would take its place. The messages of a failed queue run no
		// handler, and carry the counts of their main queue.
		n.suspectsFrom = never
	}
	var first consumption
	if prefetch, careful := n.first(s); prefetch > 0 {
		var err error
		if first, err = n.consume(s, prefetch, careful); err != nil {
			n.acker.close()
			return nil, cannotConsume(s.queue.Name, err)
		}
	} else {
		n.keepTicking()
	}

	n.ctx, n.cancel = context.WithCancelCause(s.ctx)
	go n.watch(s, closes, cancels)
	go func() {
		defer close(n.stop)
		select {
		case <-n.over:
		case <-s.closing:
		}
	}()
	go n.take(s, first)

	return n, nil
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
func (n *session) watch(s *subscription, closes <-chan *amqp091.Error, cancels <-chan string) {
	defer close(n.gone)
	defer n.cancel(publish.ErrGone)

	lost := func(err *amqp091.Error) {
		if err.Code == amqp091.NotFound {
			s.consumer.queues.forget(s.queue.Name)
		}
		s.logger.Error("Channel closed", err, nil)
	}

	select {
	case _, cancelled := <-cancels:
		if cancelled {
			s.consumer.queues.forget(s.queue.Name)
			s.logger.Error("RabbitMQ cancelled the consumer: the queue was deleted or is unavailable, or (RabbitMQ "+
				"4.3 and later) a message was not acknowledged within the consumer timeout", nil,
				watermill.LogFields{"longest_call": s.pace.longest(time.Now()).Round(time.Millisecond).String()})
		}
	case err, ok := <-closes:
		if ok {
			lost(err)
		}
	}
	close(n.over)

	for err := range closes { // until the channel is gone
		lost(err)
	}
}

func (n *session) isGone() bool { return n.channel.IsClosed() }

// work hands out one message after the other until the session is over.
func (n *session) work(s *subscription, worker int) {
	for {
		select {
		case <-s.closing:
			return
		case d, ok := <-n.deliveries:
			if !ok {
				select { // it is about to be over; or cancelled by ourselves
				case <-n.over:
				case <-s.closing:
				}

				return
			}
			n.ahead.pop()
			if !n.isGone() { // else it will come again
				s.pace.begin(worker, len(d.Body), time.Now())
				n.handle(s, &inFlight{engine: s.consumer.settings.Engine, queue: &s.queue, subscription: s,
					delivery: d.Delivery}, d.at)
				s.pace.end(worker, time.Now())
			}
			n.handed.Done()
		}
	}
}

// handle is the way of one delivery: read, decode, hand out, wait for the answer, settle.
func (n *session) handle(s *subscription, h *inFlight, arrived time.Time) {
	d := &h.delivery
	if d.Acknowledger == nil {
		return // a ghost: what a closed channel of deliveries would give; there is nothing to settle
	}
	settings := &s.consumer.settings

	h.lost = codec.LostHeaders(d.Headers)
	if s.queue.isFailed() {
		n.handleFailed(s, h, arrived)
		return
	}
	h.arrival = s.queue.arrive(d, arrived, n.broker, s.logger)
	h.Arrive(&s.queue.Policy, &h.arrival.State)

	if h.arrival.Crash != nil {
		n.judge(s, h, retry.Failure{Class: retry.ClassCrashed, Err: h.arrival.Crash}, unseen(h))
		return
	}

	off := s.queue.Policy.Mode == config.ModeOff
	msg, err := codec.Decode(settings.Marshaler, d)
	if h.lost != "" {
		if lost := codec.ExplainLostHeaders(h.lost); off {
			s.logger.Error("Handing out a message without the headers that cannot be read", lost, nil)
		} else {
			err = lost // what is left of it may mean something else
		}
	}
	if err != nil && !off {
		n.judge(s, h, retry.Failure{Class: retry.ClassUndecodable, Err: err}, unseen(h))
		return
	}
	if err != nil {
		msg = codec.Undecoded(d) // there is no dead-letter queue to send it to
	}
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()

	if s.queue.DeadLettersOf != "" {
		letter, uuid := codec.DeadLetter(d, s.queue.DeadLettersOf)
		letter.Removed = cmp.Or(letter.Removed, h.lost)
		ctx, h.arrival.State.UUID = engine.WithDeadLetter(ctx, letter), uuid
	}
	h.arrival.Clean(msg)
	codec.MarkRedelivered(msg, settings.RedeliveredKey, d.Redelivered)
	if h.nameless = msg.UUID == ""; h.nameless {
		msg.UUID = codec.MessageUUID(h.arrival.State, d)
	}
	h.ctx, h.msg, h.uuid = ctx, msg, msg.UUID
	msg.SetContext(engine.WithDelivery(ctx, h))

	if s.isClosing() {
		n.requeue(s, h)
		return
	}

	select {
	case s.out <- msg:
	case <-s.closing:
		n.requeue(s, h)
		return
	case <-n.gone:
		return
	}

	acked, answered := n.answered(s, h)
	if !answered || !h.Wait(s.ctx) { // the time to close is over; the broker delivers it again
		n.giveUp(s, h)
		return
	}

	n.settle(s, h, acked)
}

// answered waits for the answer of the router, and tells of a handler that runs on when its delivery is gone.
func (n *session) answered(s *subscription, h *inFlight) (acked, answered bool) {
	began := time.Now()
	gone, late := n.gone, (<-chan time.Time)(nil)
	for {
		select {
		case <-h.msg.Acked():
			return true, true
		case <-h.msg.Nacked():
			return false, true
		case <-s.ctx.Done():
			return false, false
		case <-gone:
			gone, late = nil, time.After(withdrawnGrace)
			defer s.pace.withdraw()()
		case <-late:
			n.tellWithdrawn(s, h, time.Since(began))
		}
	}
}

// withdrawnGrace is how long a handler may run on without being told of: it may look at its context now and then.
const withdrawnGrace = 10 * time.Second

func (n *session) tellWithdrawn(s *subscription, h *inFlight, runs time.Duration) {
	s.logger.Error("Handler is still running, but the broker has requeued its message and will deliver it again",
		context.Cause(h.ctx), watermill.LogFields{
			"message_uuid": h.uuid, "handler_name": h.Handler(), "runs_for": runs.Round(time.Millisecond).String(),
		})
	s.consumer.settings.Engine.Emit(retry.Event{
		Kind: retry.EventWithdrawn, Topic: s.queue.Topic, Queue: s.queue.Name, Handler: h.Handler(),
		DeadLetters: s.queue.DeadLettersOf != "", Message: unseen(h), Err: context.Cause(h.ctx), Took: runs,
	})
}

// giveUp leaves a message to the broker while its handler, or a middleware, is not done with it.
func (n *session) giveUp(s *subscription, h *inFlight) {
	if settlement := h.Answer().Settlement; settlement != nil && settlement.Verdict.Action != retry.ActionRequeue {
		settlement.Abandoned(context.Cause(s.ctx))
		return
	}
	s.consumer.settings.Engine.Ended(retry.EventRequeued, h, unseen(h))
}

// settle carries out what the middleware has left, or what the router's answer says by itself.
func (n *session) settle(s *subscription, h *inFlight, acked bool) {
	answer := h.Answer()
	s.noMiddleware.note(h.WasSeen())

	switch answer.Next(acked, s.isClosing()) {
	case engine.NextGiveBack:
		n.requeue(s, h)
	case engine.NextCarryOut:
		n.carryOut(s, h, *answer.Settlement)
	case engine.NextAcknowledge:
		if n.isGone() { // too late: it will come again
			n.ended(s, h, retry.EventRequeued)
			return
		}
		n.acker.ack(h.delivery.DeliveryTag)
		n.ended(s, h, retry.EventSucceeded)
		h.queue.tell(h.arrival.State.Canary, wire.Handled, nil)
	case engine.NextUnpublishable:
		n.judge(s, h, retry.Failure{Class: retry.ClassUnpublishable, Err: engine.ErrUnpublishable}, h.msg)
	case engine.NextNack: // or a publisher that a shutdown has closed before its handlers
		if s.queue.DeadLettersOf != "" {
			n.setAside(s, h)
			return
		}
		n.nack(s, h)
	}
}

// ended tells of a call that has not failed.
func (n *session) ended(s *subscription, h *inFlight, kind retry.EventKind) {
	s.consumer.settings.Engine.Ended(kind, h, h.msg)
}

// unseen is what can be made of a message that no handler may see, or that one has still in its hands.
func unseen(h *inFlight) *message.Message {
	msg := codec.Undecoded(&h.delivery)
	msg.UUID = cmp.Or(h.uuid, codec.MessageUUID(h.arrival.State, &h.delivery))
	msg.SetContext(engine.WithDelivery(msg.Context(), h))

	return msg
}

func (n *session) judge(s *subscription, h *inFlight, f retry.Failure, msg *message.Message) {
	f.Topic, f.Message = s.queue.Topic, msg
	n.carryOut(s, h, s.consumer.settings.Engine.Judge(h, f))
}

func (n *session) carryOut(s *subscription, h *inFlight, settlement engine.Settlement) {
	switch settlement.Verdict.Action {
	case retry.ActionDrop:
		if n.isGone() {
			settlement.Abandoned(publish.ErrGone)
			return
		}
		n.acker.ack(h.delivery.DeliveryTag)
		settlement.Done(settlement.Verdict)
		h.queue.tell(h.arrival.State.Canary, wire.Dropped, nil)
	case retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter:
		if settlement.Verdict.ByBroker {
			n.reject(s, h, settlement)
			return
		}
		n.forwards.Add(1)
		go func() {
			defer n.forwards.Done()
			n.forward(s, h, settlement)
		}()
	case retry.ActionRequeue:
		n.requeue(s, h)
		n.ended(s, h, retry.EventRequeued)
	case retry.ActionRetryNow:
		panic("unreachable: only a middleware that calls the handler again is given this")
	}
}

// forward acknowledges the delivery when the broker has confirmed its copy.
func (n *session) forward(s *subscription, h *inFlight, settlement engine.Settlement) {
	if settlement.Verdict.Action == retry.ActionPostpone {
		n.pauseEarly(s, h.arrival.Pause)
	}
	published, err := h.queue.Forwarder.Forward(n.ctx, &codec.CopyRequest{
		Delivery: &h.delivery,
		State:    codec.Identify(settlement.State, &h.delivery, h.nameless),
		Wait:     settlement.Verdict.Wait,
		Replay:   h.arrival.Replay,
		Lost:     h.lost,
	}, n.isGone)
	if err != nil {
		settlement.Abandoned(err)
		if !isClosing(err) {
			s.logger.Error("Cannot republish a failed message; the broker will deliver it again", err, nil)
		}

		return
	}

	n.acker.ack(h.delivery.DeliveryTag)
	settlement.Done(final(settlement.Verdict, published))
	h.queue.tell(h.arrival.State.Canary,
		publish.OutcomeOf(published, settlement.Verdict.Action == retry.ActionPostpone), published)
}

// pauseEarly keeps a message that has come back too early from going round at once. Those that are kept take places of
// others: half of these at most, so that hundreds of them do not hold up what is behind.
func (n *session) pauseEarly(s *subscription, pause time.Duration) {
	if pause <= 0 {
		return
	}
	defer n.early.Add(-1)
	if n.early.Add(1) > int64(max(1, n.usual.most/2)) {
		return
	}
	select {
	case <-time.After(pause):
	case <-s.closing:
	case <-n.gone:
	}
}

// reject leaves it to the broker to bring a message back.
func (n *session) reject(s *subscription, h *inFlight, settlement engine.Settlement) {
	s.queue.Forwarder.Leaving(rejection(&h.delivery, h.arrival.Returns+1), settlement.Verdict.Delay)
	done, err := n.acker.reject(h.delivery.DeliveryTag, s.queue.Policy.Strategy != config.StrategyCycle)
	if err != nil && !n.isGone() {
		s.logger.Error("Cannot reject a failed message", err, nil)
	}
	if !done { // the broker has it back with the channel
		settlement.Abandoned(cmp.Or[error](err, publish.ErrGone))
		return
	}
	if s.queue.Policy.Strategy == config.StrategyCycle {
		s.queue.Forwarder.KeepReturnPath(settlement.Verdict.Delay)
	}
	settlement.Done(settlement.Verdict)
}

// final is the verdict that was carried out: a message without room for our headers is dead-lettered instead of
// retried.
func final(v retry.Verdict, published *wire.State) retry.Verdict {
	if published.Reason == retry.ReasonTooLarge {
		return retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonTooLarge}
	}

	return v
}

func (n *session) requeue(s *subscription, h *inFlight) { n.requeueOf(s, h.delivery.DeliveryTag) }

func (n *session) requeueOf(s *subscription, tag uint64) {
	if err := n.acker.requeue(tag); err != nil && !n.isGone() {
		s.logger.Error("Cannot requeue a message", err, nil)
	}
}
