package consumer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Captures remembers the deliveries of messages that a stock subscriber has unmarshaled. Stock
// subscribers overwrite a message's context, so there is no place on the message itself.
//
// The middleware soon settles nearly all of them and removes their entries. Entries that it never
// settles become weak once there are enough newer ones: they then last as long as their messages,
// and keep none alive. Weak entries cost more, so only the overflow is weak.
type Captures struct {
	mu     sync.Mutex
	recent map[*message.Message]*capture // at most mostRecent
	bytes  int                           // of their bodies, at most mostBytes but for a single one
	weak   map[weak.Pointer[message.Message]]*capture
}

// So many messages are held alive at the most. A stock subscriber hands out one at a time for each
// subscription.
const (
	mostRecent = 64
	mostBytes  = 1 << 20
)

type capture struct {
	delivery amqp091.Delivery
	nameless bool
	err      error // why the message could not be decoded
}

// NewCaptures returns an empty map.
func NewCaptures() *Captures {
	return &Captures{recent: map[*message.Message]*capture{}, weak: map[weak.Pointer[message.Message]]*capture{}}
}

// Unmarshal makes a message of a delivery and never fails: an error would make a stock subscriber
// nack and requeue, some thousand times a second. What cannot be decoded is a message with the body
// as it is, which the middleware recognises.
func (c *Captures) Unmarshal(m codec.Marshaler, d amqp091.Delivery) *message.Message {
	msg, err := codec.Decode(m, &d)
	if err != nil {
		msg = codec.Undecoded(&d)
	}

	nameless := msg.UUID == ""
	if nameless {
		// The queue is not known here, so a header that another queue has left may give the name.
		uuid, _ := d.Headers[header.UUID].(string)
		msg.UUID = codec.MessageUUID(wire.State{UUID: uuid}, &d)
	}

	c.add(msg, &capture{d, nameless, err})

	return msg
}

func (c *Captures) add(msg *message.Message, captured *capture) {
	c.mu.Lock()
	defer c.mu.Unlock()

	size := len(captured.delivery.Body)
	if len(c.recent) == mostRecent || c.bytes+size > mostBytes {
		c.weaken()
	}
	c.recent[msg] = captured
	c.bytes += size
}

// weaken holds the messages alive no longer. mu is held.
func (c *Captures) weaken() {
	for msg, captured := range c.recent {
		key := weak.Make(msg)
		c.weak[key] = captured
		runtime.AddCleanup(msg, c.drop, key)
	}
	clear(c.recent)
	c.bytes = 0
}

func (c *Captures) drop(key weak.Pointer[message.Message]) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.weak, key)
}

// Len is how many messages are remembered.
func (c *Captures) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.recent) + len(c.weak)
}

func (c *Captures) find(msg *message.Message) *capture {
	c.mu.Lock()
	defer c.mu.Unlock()

	if captured := c.recent[msg]; captured != nil || len(c.weak) == 0 {
		return captured
	}

	return c.weak[weak.Make(msg)]
}

// forget forgets a message that is settled: nobody handles it again. Weak ones are forgotten by
// themselves.
func (c *Captures) forget(msg *message.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if captured := c.recent[msg]; captured != nil {
		delete(c.recent, msg)
		c.bytes -= len(captured.delivery.Body)
	}
}

// Stock lets the middleware serve messages of stock subscribers.
type Stock struct {
	Captures *Captures
	Engine   *engine.Engine
	Logger   watermill.LoggerAdapter
	// Queue finds the queue of a topic.
	Queue func(topic string) (*Queue, error)
}

// errGhost is what a stock subscriber hands to the router when the broker has cancelled its
// consumer.
//
// Upstream: an empty delivery when the broker cancels a consumer; no issue known, measured;
// watermill-amqp 2.1 and 3.1; TestStock_GhostReachesNoHandler, TestGhostReachesNoHandler,
// TestNoHotLoopGhostDeliveries; remove when its subscriber sees that the channel of deliveries is
// closed.
var errGhost = errors.New("not a message: the broker cancelled the consumer, and the stock subscriber reconnects " +
	"after this nack")

// Middleware puts the delivery into the context of a message, for the middlewares inside of it, and
// settles what is not for a handler: ghosts, undecodable messages, and those that their consumers
// die of.
func (s Stock) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		captured := s.Captures.find(msg)
		if captured == nil || engine.HasDelivery(msg.Context(), s.Engine) { // of no stock subscriber, or found before
			return h(msg)
		}
		if captured.delivery.Acknowledger == nil {
			return nil, errGhost
		}

		return s.serve(msg, captured, h)
	}
}

// serve is the way of a message that was not seen before.
func (s *Stock) serve(msg *message.Message, captured *capture, h message.HandlerFunc) ([]*message.Message, error) {
	queue, err := s.Queue(message.SubscribeTopicFromCtx(msg.Context()))
	if err != nil {
		return nil, err
	}
	d := s.delivery(msg, captured, queue)
	if queue.Policy.Mode == config.ModeOff {
		msg.SetContext(engine.WithDelivery(msg.Context(), d)) // it is the retrier's, although it is left alone
		produced, err := h(msg)
		if err == nil {
			s.Captures.forget(msg)
		}

		return produced, err
	}

	if d.arrival.Crash != nil {
		return nil, s.fail(d, retry.ClassCrashed, d.arrival.Crash)
	}
	if captured.err != nil {
		return nil, s.fail(d, retry.ClassUndecodable, captured.err)
	}
	d.arrival.Clean(msg)
	msg.SetContext(engine.WithDelivery(msg.Context(), d))

	return s.handle(d, h)
}

func (s *Stock) delivery(msg *message.Message, captured *capture, queue *Queue) *stockDelivery {
	d := &stockDelivery{msg: msg, engine: s.Engine, queue: queue, captured: captured, ctx: msg.Context()}
	d.arrival = queue.arrive(&captured.delivery, time.Now(), broker{}, s.Logger)
	d.Arrive(&queue.Policy, &d.arrival.State)

	return d
}

// fail settles a message that no handler may see.
func (s *Stock) fail(d *stockDelivery, class retry.Class, err error) error {
	return d.Settle(d.ctx, s.Engine.Judge(d, retry.Failure{Class: class, Err: err, Message: d.msg,
		Topic: d.queue.Topic}))
}

// handle calls the handler, and reports how a call has ended that has not failed: with an error the
// router nacks, which requeues.
func (s *Stock) handle(d *stockDelivery, h message.HandlerFunc) (produced []*message.Message, err error) {
	end := retry.EventRequeued // also if the handler ends its goroutine
	defer func() { s.Engine.Ended(end, d, d.msg) }()

	if produced, err = h(d.msg); err == nil {
		end = retry.EventSucceeded
		s.Captures.forget(d.msg) // its delivery is in its context, should it be handled again
		d.reportWhenAcked()
	}

	return produced, err
}

// errRequeued is the cause of a copy that is given up.
var errRequeued = errors.New("the handler nacked the message, and the stock subscriber requeued it at once")

// stockDelivery is the delivery of a message that a stock subscriber has handed out. That
// acknowledges as soon as the router has answered, so the copy must be confirmed before: Settle
// waits.
type stockDelivery struct {
	engine.Progress

	arrival  engine.Arrival
	msg      *message.Message
	engine   *engine.Engine
	queue    *Queue
	captured *capture
	ctx      context.Context // as the router gave it to us
}

var _ engine.Delivery = (*stockDelivery)(nil)

func (d *stockDelivery) Engine() *engine.Engine { return d.engine }
func (d *stockDelivery) Queue() string          { return d.queue.Name }

// Enter and Leave are of no use here: a stock subscriber carries an answer out at once.
func (d *stockDelivery) Enter(string) {}
func (d *stockDelivery) Leave()       {}

// NeedsCopy is always true: a stock subscriber carries out nothing but an acknowledgement and a
// return to the queue.
func (d *stockDelivery) NeedsCopy() bool { return true }

// Withdrawn tells a stock subscriber's end of the message from the deadline of a Timeout outside of
// ours.
func (d *stockDelivery) Withdrawn() bool { return errors.Is(d.ctx.Err(), context.Canceled) }

// Succeeded is of no use here: a stock subscriber nacks outputs that cannot be published, and
// nobody is asked.
func (d *stockDelivery) Succeeded() {}

func (d *stockDelivery) Settle(ctx context.Context, s *engine.Settlement) error {
	switch s.Action {
	case retry.ActionRequeue:
		return nil // the middleware gives the handler's error to the router, which nacks
	case retry.ActionDrop:
		s.Done(nil)
		d.queue.report(d.arrival.State.Canary, wire.Dropped, nil)
		return nil
	case retry.ActionRetryNow:
		panic("unreachable: only a middleware that calls the handler again is given this")
	case retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter:
	}

	select {
	case <-d.msg.Nacked(): // by the handler itself, and requeued already: with a copy there would be two
		s.Abandoned(errRequeued)
		return errRequeued
	default:
	}

	ctx, cancel := withoutDeadline(ctx)
	defer cancel(nil)
	published, err := d.queue.Forwarder.Forward(ctx, &codec.CopyRequest{
		Delivery: &d.captured.delivery,
		State:    codec.Identify(s.State, &d.captured.delivery, d.captured.nameless),
		Wait:     s.Wait,
		Replay:   d.arrival.Replay,
	}, d.isGone)
	if err != nil {
		s.Abandoned(err)
		return err
	}
	s.Done(published)
	d.queue.report(d.arrival.State.Canary, publish.OutcomeOf(published, s.Action == retry.ActionPostpone),
		published)

	return nil
}

// reportWhenAcked waits for the router, which nacks a message whose outputs cannot be published.
// The middleware does not wait.
func (d *stockDelivery) reportWhenAcked() {
	if d.arrival.State.Canary == "" {
		return
	}
	go func() {
		select {
		case <-d.msg.Acked():
			d.queue.report(d.arrival.State.Canary, wire.Handled, nil)
		case <-d.msg.Nacked():
		}
	}()
}

// withoutDeadline returns a context that ends when ctx is cancelled, as stock subscribers do when
// they take a message back, but not at its deadline: that is the handler's, set by a middleware
// outside of ours, and a copy that it interrupts may be stored all the same.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	free, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel(context.Cause(ctx))
		}
	})

	return free, func(cause error) {
		stop()
		cancel(cause)
	}
}

func (d *stockDelivery) isGone() bool {
	channel, ok := d.captured.delivery.Acknowledger.(*amqp091.Channel)
	return ok && channel.IsClosed()
}
