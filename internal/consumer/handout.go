package consumer

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// handout is the delivery of a message while the retrier's consumer has it handed out: the
// middleware leaves its verdict here, and the consumer carries it out when the router has answered.
type handout struct {
	engine.Handout

	arrival      engine.Arrival
	engine       *engine.Engine
	queue        *Queue
	subscription *subscription // nil in tests of what needs none
	delivery     amqp091.Delivery
	nameless     bool   // the publisher gave no Watermill UUID
	lost         string // names of headers that it came without; empty if there are none

	// msg is what is handed out, under this uuid; ctx is its context, which only the consumer ends.
	msg  *message.Message
	uuid string
	ctx  context.Context

	mu      sync.Mutex
	failure deadLetterFailure
}

var _ engine.Delivery = (*handout)(nil)

func (h *handout) Engine() *engine.Engine { return h.engine }
func (h *handout) Queue() string          { return h.queue.Name }

// NeedsCopy is also true for a message whose handler has succeeded by a mark: only a copy carries
// it.
func (h *handout) NeedsCopy() bool { return h.arrival.ByCopy || h.State().Handled != "" }

func (h *handout) Withdrawn() bool { return h.ctx.Err() != nil }

// Refuse stops the subscription, and makes the consumer give the message back, unless it is too
// late for that.
func (h *handout) Refuse(err error) bool {
	h.subscription.refuse(err)

	return h.Refused(err)
}

// handle is the way of one delivery: read, decode, hand out, wait for the answer, settle.
func (s *session) handle(h *handout, arrived time.Time) {
	d := &h.delivery
	if d.Acknowledger == nil {
		return // a ghost: what a closed channel of deliveries would give; there is nothing to settle
	}
	settings := &s.sub.consumer.settings

	h.lost = codec.LostHeaders(d.Headers)
	if s.queue.isFailed() {
		s.handleFailed(h, arrived)
		return
	}
	h.arrival = s.queue.arrive(d, arrived, s.broker, s.sub.logger)
	h.Arrive(&s.queue.Policy, &h.arrival.State)

	if h.arrival.Crash != nil {
		s.judge(h, retry.Failure{Class: retry.ClassCrashed, Err: h.arrival.Crash}, unseen(h))
		return
	}

	off := s.queue.Policy.Mode == config.ModeOff
	msg, err := codec.Decode(settings.Marshaler, d)
	if h.lost != "" {
		if lost := codec.ExplainLostHeaders(h.lost); off {
			s.sub.logger.Error("Handing out a message without the headers that cannot be read", lost, nil)
		} else {
			err = lost // what is left of it may mean something else
		}
	}
	if err != nil && !off {
		s.judge(h, retry.Failure{Class: retry.ClassUndecodable, Err: err}, unseen(h))
		return
	}
	if err != nil {
		msg = codec.Undecoded(d) // there is no dead-letter queue to send it to
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()

	if s.queue.DeadLettersOf != "" {
		letter, uuid := codec.DeadLetter(d, s.queue.DeadLettersOf)
		letter.Removed = cmp.Or(letter.Removed, h.lost)
		ctx, h.arrival.State.UUID = retry.NewDeadLetterContext(ctx, letter), uuid
	}
	h.arrival.Clean(msg)
	codec.MarkRedelivered(msg, settings.RedeliveredKey, d.Redelivered)
	if h.nameless = msg.UUID == ""; h.nameless {
		msg.UUID = codec.MessageUUID(h.arrival.State, d)
	}
	h.ctx, h.msg, h.uuid = ctx, msg, msg.UUID
	msg.SetContext(engine.WithDelivery(ctx, h))

	if s.sub.isClosing() {
		s.requeue(h)
		return
	}

	select {
	case s.sub.out <- msg:
	case <-s.sub.closing:
		s.requeue(h)
		return
	case <-s.gone:
		return
	}

	acked, answered := s.answered(h)
	if !answered || !h.Wait(s.sub.ctx) { // the time to close is over; the broker delivers it again
		s.giveUp(h)
		return
	}

	s.settle(h, acked)
}

// answered waits for the answer of the router, and reports a handler that runs on when its delivery
// is gone.
func (s *session) answered(h *handout) (acked, answered bool) {
	began := time.Now()
	gone, late := s.gone, (<-chan time.Time)(nil)
	for {
		select {
		case <-h.msg.Acked():
			return true, true
		case <-h.msg.Nacked():
			return false, true
		case <-s.sub.ctx.Done():
			return false, false
		case <-gone:
			gone, late = nil, time.After(withdrawnGrace)
			defer s.sub.pace.withdraw()()
		case <-late:
			s.reportWithdrawn(h, time.Since(began))
		}
	}
}

// withdrawnGrace is how long a handler may run on before that is reported: it may look at its
// context now and then.
const withdrawnGrace = 10 * time.Second

func (s *session) reportWithdrawn(h *handout, runs time.Duration) {
	s.sub.logger.Error("Handler is still running, but the broker has requeued its message and will deliver it again",
		context.Cause(h.ctx), watermill.LogFields{
			"message_uuid": h.uuid, "handler_name": h.Handler(), "runs_for": runs.Round(time.Millisecond).String(),
		})
	h.engine.Emit(retry.Event{
		Kind: retry.EventWithdrawn, Topic: s.queue.Topic, Queue: s.queue.Name, Handler: h.Handler(),
		DeadLetters: s.queue.DeadLettersOf != "", Message: unseen(h), Err: context.Cause(h.ctx), Took: runs,
	})
}

// giveUp leaves a message to the broker while its handler, or a middleware, is not done with it.
func (s *session) giveUp(h *handout) {
	if _, settlement := h.Answer(false, true); settlement != nil && settlement.Action != retry.ActionRequeue {
		settlement.Abandoned(context.Cause(s.sub.ctx))
		return
	}
	h.engine.Ended(retry.EventRequeued, h, unseen(h))
}

// settle carries out what the middleware has left, or what the router's answer says by itself.
func (s *session) settle(h *handout, acked bool) {
	next, settlement := h.Answer(acked, s.sub.isClosing())
	s.sub.noMiddleware.note(h.WasSeen())

	switch next {
	case engine.NextGiveBack:
		s.requeue(h)
	case engine.NextCarryOut:
		s.carryOut(h, settlement)
	case engine.NextAcknowledge:
		if s.isGone() { // too late: it will come again
			h.engine.Ended(retry.EventRequeued, h, h.msg)
			return
		}
		s.acker.ack(h.delivery.DeliveryTag)
		h.engine.Ended(retry.EventSucceeded, h, h.msg)
		h.queue.report(h.arrival.State.Canary, wire.Handled, nil)
	case engine.NextUnpublishable:
		s.judge(h, retry.Failure{Class: retry.ClassUnpublishable, Err: engine.ErrUnpublishable}, h.msg)
	case engine.NextNack: // or a publisher that a shutdown has closed before its handlers
		if s.queue.DeadLettersOf != "" {
			s.setAside(h)
			return
		}
		s.nack(h)
	}
}

// unseen is what can be made of a message that no handler may see, or that one has still in its
// hands.
func unseen(h *handout) *message.Message {
	msg := codec.Undecoded(&h.delivery)
	msg.UUID = cmp.Or(h.uuid, codec.MessageUUID(h.arrival.State, &h.delivery))
	msg.SetContext(engine.WithDelivery(msg.Context(), h))

	return msg
}

func (s *session) judge(h *handout, f retry.Failure, msg *message.Message) {
	f.Topic, f.Message = s.queue.Topic, msg
	s.carryOut(h, h.engine.Judge(h, f))
}

func (s *session) carryOut(h *handout, settlement *engine.Settlement) {
	switch settlement.Action {
	case retry.ActionDrop:
		if s.isGone() {
			settlement.Abandoned(publish.ErrGone)
			return
		}
		s.acker.ack(h.delivery.DeliveryTag)
		settlement.Done(nil)
		h.queue.report(h.arrival.State.Canary, wire.Dropped, nil)
	case retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter:
		if settlement.ByBroker {
			s.reject(h, settlement)
			return
		}
		s.forward(h, settlement)
	case retry.ActionRequeue:
		s.requeue(h)
		h.engine.Ended(retry.EventRequeued, h, h.msg)
	case retry.ActionRetryNow:
		panic("unreachable: only a middleware that calls the handler again is given this")
	}
}

// forward acknowledges the delivery when the broker has confirmed its copy.
func (s *session) forward(h *handout, settlement *engine.Settlement) {
	s.forwards.Add(1)
	begin := func() {
		h.queue.Forwarder.Begin(s.ctx, codec.CopyRequest{
			Delivery: &h.delivery,
			State:    codec.Identify(settlement.State, &h.delivery, h.nameless),
			Wait:     settlement.Wait,
			Replay:   h.arrival.Replay,
			Lost:     h.lost,
		}, s.isGone, func(published *wire.State, err error) {
			defer s.forwards.Done()
			s.forwarded(h, settlement, published, err)
		})
	}
	if pause := h.arrival.Pause; pause > 0 && settlement.Action == retry.ActionPostpone {
		go func() {
			s.pauseEarly(pause)
			begin()
		}()
		return
	}
	begin()
}

func (s *session) forwarded(h *handout, settlement *engine.Settlement, published *wire.State, err error) {
	if err != nil {
		settlement.Abandoned(err)
		if !isClosing(err) {
			s.sub.logger.Error("Cannot republish a failed message; the broker will deliver it again", err, nil)
		}

		return
	}

	s.acker.ack(h.delivery.DeliveryTag)
	settlement.Done(published)
	h.queue.report(h.arrival.State.Canary,
		publish.OutcomeOf(published, settlement.Action == retry.ActionPostpone), published)
}

// pauseEarly keeps a message that has come back too early from going round at once. Those that are
// kept take places of others: half of these at most, so that hundreds of them do not hold up what
// is behind.
func (s *session) pauseEarly(pause time.Duration) {
	defer s.early.Add(-1)
	if s.early.Add(1) > int64(max(1, s.intake.usual.most/2)) {
		return
	}
	s.wait(pause)
}

// reject leaves it to the broker to bring a message back.
func (s *session) reject(h *handout, settlement *engine.Settlement) {
	s.queue.Forwarder.Leaving(rejection(&h.delivery, h.arrival.Returns+1), settlement.Delay)
	done, err := s.acker.reject(h.delivery.DeliveryTag, s.queue.Policy.Strategy != config.StrategyCycle)
	if err != nil && !s.isGone() {
		s.sub.logger.Error("Cannot reject a failed message", err, nil)
	}
	if !done { // the broker has it back with the channel
		settlement.Abandoned(cmp.Or[error](err, publish.ErrGone))
		return
	}
	if s.queue.Policy.Strategy == config.StrategyCycle {
		s.queue.Forwarder.KeepReturnPath(settlement.Delay)
	}
	settlement.Done(nil)
}

func (s *session) requeue(h *handout) { s.requeueOf(h.delivery.DeliveryTag) }

func (s *session) requeueOf(tag uint64) {
	if err := s.acker.requeue(tag); err != nil && !s.isGone() {
		s.sub.logger.Error("Cannot requeue a message", err, nil)
	}
}
