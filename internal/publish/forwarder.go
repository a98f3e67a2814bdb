package publish

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// ForwarderSettings say how copies of failed messages are published.
type ForwarderSettings struct {
	Connection connection.Settings
	Logger     watermill.LoggerAdapter
	// HoldWarning is how long a delivery is held before that is reported.
	HoldWarning time.Duration
	// Redeclare is false when nothing may be declared.
	Redeclare bool
}

func (s ForwarderSettings) emit(e retry.Event) { s.Connection.Emit(e) }

// Forwarder publishes the copies of failed messages over a connection of its own, so that a blocked
// publisher never stops acknowledgements. The connection is opened at the first failure.
type Forwarder struct {
	settings   ForwarderSettings
	connection *connection.Connection

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	returnPaths returnPaths
	notices     *notices
	held        sync.Map // of each *QueueForwarder whose deliveries are held, the retry.Problem

	access Object // the permission to publish dead letters by the default exchange
}

// NewForwarder returns a forwarder that is not connected yet.
func NewForwarder(settings ForwarderSettings) *Forwarder {
	ctx, cancel := context.WithCancelCause(context.Background())

	connection := connection.New(settings.Connection, settings.Logger)

	return &Forwarder{
		settings:    settings,
		connection:  connection,
		notices:     newNotices(ctx, connection, settings.Logger),
		ctx:         ctx,
		cancel:      cancel,
		returnPaths: returnPaths{paths: map[string]*returnPath{}},
	}
}

// ForQueue returns what publishes the copies of a main queue: one confirm channel for each and each
// exchange, so that a broken queue stops no other. QueueForwarder.Retire gives it up.
func (f *Forwarder) ForQueue(plan topology.Plan) *QueueForwarder {
	q := &QueueForwarder{forwarder: f, plan: plan, returns: codec.NewReturns(plan), sender: newSender(true),
		held: heldCopies{copies: map[*copying]struct{}{}}, waits: newWaits()}
	q.line, q.sent = newLine(f.ctx.Done(), q.publishAll), newLine(f.ctx.Done(), q.confirmAll)

	return q
}

// Problems are the main queues whose deliveries have been held for HoldWarning.
func (f *Forwarder) Problems() (all []retry.Problem) {
	f.held.Range(func(_, problem any) bool {
		if p, is := problem.(retry.Problem); is {
			all = append(all, p)
		}

		return true
	})

	return all
}

// Close ends all forwards that still wait; their deliveries stay unacknowledged. It returns at the
// deadline at the latest.
func (f *Forwarder) Close(deadline time.Time) {
	f.notices.flush(deadline)
	f.cancel(connection.ErrClosed)
	f.returnPaths.stop()
	f.connection.Close(deadline)
}

// QueueForwarder publishes the copies of one main queue's failed messages, pipelined.
//
// What cannot be confirmed is held: a delivery is published again after a return (the plan is
// declared anew), after a nack and after the loss of the channel, with backoff, and never while an
// earlier publish of it is unresolved. Only the broker's confirmation, the loss of the delivery's
// own channel or Close end it. A declaration that the broker does not answer stops the copies that
// need it and no others.
type QueueForwarder struct {
	forwarder *Forwarder
	plan      topology.Plan
	returns   codec.Returns // what the broker adds to a header frame
	sender    *sender

	declared Object // the plan
	held     heldCopies
	line     *line[*copying] // to be published
	sent     *line[*copying] // to be confirmed

	waits     waits
	undelayed atomic.Bool // see Undelayed
}

// Report tells the run that has replayed a message, if one wants to know, what has become of it.
func (q *QueueForwarder) Report(canary string, outcome wire.Outcome, published *wire.State) {
	q.forwarder.notices.report(canary, outcome, published)
}

// Retire gives it up, because nobody consumes from its main queue any more: its channels are closed
// when nobody waits for them. A delivery that is forwarded all the same, because its handler took
// long, is treated as before.
func (q *QueueForwarder) Retire() { q.sender.retire() }

// copying is a copy on its way: held until the broker has confirmed it.
type copying struct {
	ctx     context.Context
	request codec.CopyRequest
	isGone  func() bool
	done    func(*wire.State, error) // nil for one that is waited for

	state wire.State // that was published last
	sent  *pending   // the publish of it that is not resolved; nil if there is none
	err   error      // why its first publish was not confirmed

	// Of heldCopies, guarded by their mu:
	since   time.Time
	look    func() // called now and then; nil for nothing
	failure error  // what went wrong last
}

// Forward publishes a copy and returns when the broker has confirmed it: then, and only then, the
// delivery may be acknowledged. It gives the state that was published. It ends with ctx, at the
// latest when the delivery's channel is gone.
func (q *QueueForwarder) Forward(ctx context.Context, o *codec.CopyRequest, isGone func() bool) (*wire.State, error) {
	c := &copying{ctx: ctx, request: *o, isGone: isGone}
	q.hold(c)
	defer q.release(c)
	if err := q.forward(c); err != nil {
		return nil, err
	}

	return q.confirmed(c), nil
}

// Begin is Forward for a caller that does not wait: done is called with the result. It must not
// block, as the next copies of the queue wait for it. Copies are published in the order of the
// calls, as far as that needs no waiting.
func (q *QueueForwarder) Begin(ctx context.Context, o codec.CopyRequest, isGone func() bool,
	done func(*wire.State, error)) {
	c := &copying{ctx: ctx, request: o, isGone: isGone, done: done}
	q.hold(c)
	q.line.put(c)
}

// publishAll publishes what is in line, in one write as far as it goes.
func (q *QueueForwarder) publishAll(copies []*copying) {
	link := q.forwarder.connection.Live()
	if link != nil && !link.IsBlocked() {
		link.Hold()
		for _, c := range copies {
			q.publishNow(link, c)
		}
		link.Release()
	}
	for _, c := range copies {
		if c.sent != nil {
			q.sent.put(c)
		} else {
			go q.finish(c)
		}
	}
}

// patience is how long copies wait for the confirmation of one that was published before: mostly
// they are confirmed in their order, and then acknowledged together.
const patience = 50 * time.Millisecond

// confirmAll waits for the confirmations of copies, in their order. One that has none for long
// waits by itself: it must hold up no other.
func (q *QueueForwarder) confirmAll(copies []*copying) {
	next := 0
	defer func() { // done may have ended the goroutine: OnEvent is foreign code
		for _, c := range copies[next:] {
			go q.finish(c)
		}
	}()
	for next < len(copies) {
		c := copies[next]
		next++
		if !c.sent.isAnswered(patience) {
			go q.finish(c)
			continue
		}
		if c.err = c.sent.answer(); c.err != nil {
			go q.finish(c)
			continue
		}
		q.end(c, nil)
	}
}

// end tells the result of a copy.
func (q *QueueForwarder) end(c *copying, err error) {
	q.release(c)
	if err != nil {
		c.done(nil, err)
		return
	}
	c.done(q.confirmed(c), nil)
}

// finish brings a copy to its end.
func (q *QueueForwarder) finish(c *copying) {
	if c.sent != nil && c.err == nil {
		answered, err := c.sent.wait(c.ctx, q.forwarder.ctx)
		if err == nil || !answered { // without an answer it must not be published again
			q.end(c, err)
			return
		}
		c.err = err
	}
	q.end(c, q.forward(c))
}

func (q *QueueForwarder) confirmed(c *copying) *wire.State {
	if c.state.Count != header.CountDead { // then it has begun to wait
		q.KeepReturnPath(delayOf(&c.state))
	}

	return &c.state
}

// forward publishes a copy as often as it takes, after a first time it may be.
func (q *QueueForwarder) forward(c *copying) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(q.forwarder.ctx, func() { cancel(connection.ErrClosed) })()
	q.held.look(c, func() {
		if c.isGone() { // where no context tells
			cancel(ErrGone)
		}
	})

	var undeclared error // why the plan could not be declared again
	for pauses := growing(); ; {
		err := c.err
		if c.err = nil; err == nil {
			err = q.publish(ctx, c)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrGone) || c.isGone():
			return ErrGone
		case c.sent != nil && isMissing(err):
			q.held.failed(c, errors.Join(err, undeclared)) // is reported while the declaration has no answer
			undeclared = q.redeclare(ctx, c.sent.at)
			err = errors.Join(err, undeclared)
		}
		q.held.failed(c, err)
		if err := sleep(ctx, pauses.NextBackOff()); err != nil {
			return err
		}
	}
}

// delayOf is the delay of a copy that is to wait.
func delayOf(state *wire.State) time.Duration {
	delay, _ := config.ParseDelay(state.Delay) // the engine has spelled it

	return delay
}

// publish publishes a copy, and waits for its confirmation.
func (q *QueueForwarder) publish(ctx context.Context, c *copying) error {
	c.sent = nil
	link, err := q.forwarder.connection.Link(ctx)
	if err != nil {
		return err
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		return err
	}
	exchange, key, publishing := q.copyOf(link, c)
	if _, err := q.sender.channel(ctx, link, exchange); err != nil { // to open one can take long
		return err
	}
	if err := q.leave(c, &publishing); err != nil {
		return err
	}
	if c.sent, err = q.sender.send(ctx, link, exchange, key, publishing, idOf(&publishing)); err != nil {
		return err
	}
	_, err = c.sent.wait(ctx, ctx)

	return err
}

// publishNow publishes a copy if there is a channel for it.
func (q *QueueForwarder) publishNow(link *connection.Link, c *copying) {
	exchange, key, publishing := q.copyOf(link, c)
	channel, enough := q.sender.pick(link, exchange)
	if !enough {
		return
	}
	if c.err = q.leave(c, &publishing); c.err != nil {
		return
	}
	if c.sent, c.err = channel.send(key, publishing, idOf(&publishing)); errors.Is(c.err, errRetired) {
		c.err = nil
	}
}

// copyOf makes the copy, and tells where it goes.
func (q *QueueForwarder) copyOf(link *connection.Link, c *copying) (exchange, key string, copied amqp091.Publishing) {
	limit := link.FrameSize()
	if limit > 0 {
		limit = max(1, limit-q.returns.Size(delayOf(&c.request.State))) // 0 is no limit
	}
	delay := cmp.Or(c.request.Wait, delayOf(&c.request.State))
	if c.request.LowerPriority = q.plan.Ladder != nil; c.request.LowerPriority {
		delay = q.plan.Ladder.Config.RoundUp(delay)
	}
	c.request.State.Due = time.Now().Add(delay)
	copied, c.state = codec.CopyOf(&c.request, limit)
	exchange, key = q.plan.Route(c.state.Count, delayOf(&c.state), &copied)

	return exchange, key, copied
}

// leave is the last before a publish: the broker delivers the message again if its channel is gone.
func (q *QueueForwarder) leave(c *copying, publishing *amqp091.Publishing) error {
	if c.isGone() {
		return ErrGone
	}
	q.copying(publishing, &c.state, c.request.Wait)

	return nil
}

func idOf(p *amqp091.Publishing) string {
	id, _ := p.Headers[header.ID].(string)
	return id
}

// ErrGone means that the broker has taken the delivery back: its channel is closed, it will be
// delivered again.
var ErrGone = errors.New("the delivery's channel is gone, the broker will deliver the message again")

// redeclare declares the plan again, because somebody has deleted a part of it: once for all that
// were sent before.
func (q *QueueForwarder) redeclare(ctx context.Context, sent time.Time) error {
	settings := q.forwarder.settings
	if !settings.Redeclare {
		return nil
	}

	link, err := q.forwarder.connection.Link(ctx)
	if err != nil {
		return err
	}

	return q.declared.Declare(ctx, nil, sent, func() error {
		if err := link.OnChannel(func(channel *amqp091.Channel) error { return q.plan.Declare(channel) }); err != nil {
			return err
		}
		settings.Logger.Info("Redeclared the retry topology, as a part of it was missing",
			watermill.LogFields{"amqp_queue_name": q.plan.Queue})
		settings.emit(retry.Event{Kind: retry.EventTopologyRepaired, Queue: q.plan.Queue})

		return nil
	})
}
