package publish

import (
	"context"
	"errors"
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
	return &QueueForwarder{forwarder: f, plan: plan, returns: codec.NewReturns(plan), sender: newSender(true),
		held: heldCopies{copies: map[*heldCopy]struct{}{}}, waits: newWaits()}
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

// Forward publishes a copy and returns when the broker has confirmed it: then, and only then, the
// delivery may be acknowledged. It gives the state that was published. It ends with ctx, at the
// latest when the delivery's channel is gone.
func (q *QueueForwarder) Forward(ctx context.Context, o *codec.CopyRequest, isGone func() bool) (*wire.State, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(q.forwarder.ctx, func() { cancel(connection.ErrClosed) })()

	h := q.hold(o.State.Count, delayOf(&o.State), func() {
		if isGone() { // where no context tells
			cancel(ErrGone)
		}
	})
	defer q.release(h)

	var undeclared error // why the plan could not be declared again
	for pauses := growing(); ; {
		copied, state, err := q.publish(ctx, o, isGone)
		if err == nil {
			_, err = copied.wait(ctx, ctx)
		}
		switch {
		case err == nil:
			if state.Count != header.CountDead { // then it has begun to wait
				q.KeepReturnPath(delayOf(state))
			}
			return state, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, ErrGone) || isGone():
			return nil, ErrGone
		case copied != nil && isMissing(err):
			q.held.failed(h, errors.Join(err, undeclared)) // is reported while the declaration has no answer
			undeclared = q.redeclare(ctx, copied.at)
			err = errors.Join(err, undeclared)
		}
		q.held.failed(h, err)
		if err := sleep(ctx, pauses.NextBackOff()); err != nil {
			return nil, err
		}
	}
}

// delayOf is the delay of a copy that is to wait.
func delayOf(state *wire.State) time.Duration {
	delay, _ := config.ParseDelay(state.Delay) // the engine has spelled it

	return delay
}

// publish publishes a copy. isGone is asked last: the broker delivers the message again if its
// channel is gone.
func (q *QueueForwarder) publish(
	ctx context.Context, o *codec.CopyRequest, isGone func() bool,
) (*pending, *wire.State, error) {
	link, err := q.forwarder.connection.Link(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		return nil, nil, err
	}
	limit := link.FrameSize()
	if limit > 0 {
		limit = max(1, limit-q.returns.Size(delayOf(&o.State))) // 0 is no limit
	}
	request := *o
	request.LowerPriority = q.plan.Ladder != nil
	publishing, state := codec.CopyOf(&request, limit)
	exchange, key := q.plan.Route(state.Count, delayOf(&state), &publishing)
	if _, err := q.sender.channel(ctx, link, exchange); err != nil { // to open one can take long
		return nil, nil, err
	}
	if isGone() {
		return nil, nil, ErrGone
	}
	q.copying(&publishing, &state, o.Wait)
	id, _ := publishing.Headers[header.ID].(string)
	copied, err := q.sender.send(ctx, link, exchange, key, publishing, id)

	return copied, &state, err
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
