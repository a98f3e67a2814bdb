package delayed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/republish"
)

// stuckFor is how long nothing may move on a connection while a caller that has given up still writes. Then the
// connection is given up as well: its broker takes nothing.
const stuckFor = time.Second

// send publishes a batch until the broker has confirmed all of it, the PublishTimeout or the contexts of the messages
// end, or the publisher is closed.
func (p *Publisher) send(b *batch) error {
	ctx, cancel := p.bound(b)
	defer cancel()

	pauses := &backoff.ExponentialBackOff{InitialInterval: 50 * time.Millisecond, MaxInterval: 5 * time.Second,
		Multiplier: 2, RandomizationFactor: 0.3}
	pauses.Reset()

	var missing time.Time // when the last message was published for which something was missing
	for {
		before := missing
		err := p.try(ctx, b, &missing)
		open := b.open()
		for _, m := range open {
			if err != nil {
				m.err, m.noQueue = withReason(ctx, err, m.err), errors.Is(err, errNoQueue)
			}
		}
		if isFinal(err) {
			b.final = true
			return b.result()
		}
		if !wanted(open) {
			return b.result()
		}
		if err == nil && before.IsZero() && !missing.IsZero() && p.settings.Declare {
			continue // it is declared again at once, for the first time
		}
		select {
		case <-time.After(pauses.NextBackOff()):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			for _, m := range open {
				m.err = because(ctx, m.err)
			}
			return b.result()
		}
	}
}

// wanted tells whether the context of a message has not ended. If all have, it adds their ends to what was wrong before.
func wanted(open []*outgoing) bool {
	for _, m := range open {
		if m.ctx.Err() == nil {
			return true
		}
	}
	for _, m := range open {
		m.err = because(m.ctx, m.err)
	}

	return false
}

// because adds to the end of a context what was wrong before.
func because(ctx context.Context, before error) error {
	return withReason(ctx, context.Cause(ctx), before)
}

// withReason adds what was wrong before to an error that says only that ctx has ended.
func withReason(ctx context.Context, err, before error) error {
	switch end := context.Cause(ctx); {
	case end == nil || before == nil || !reflect.ValueOf(end).Comparable(): // to compare the last kind would panic
		return err
	case err != end: //nolint:errorlint // an error that wraps the end says more
		return err
	case errors.Is(before, end):
		return before
	default:
		return fmt.Errorf("%w: %w", end, before)
	}
}

// bound returns the context of all attempts to publish a batch. It ends when those of all messages have ended.
func (p *Publisher) bound(b *batch) (context.Context, context.CancelFunc) {
	timeout := p.settings.Options.PublishTimeout
	timed, cancelTimed := context.WithTimeoutCause(p.ctx, timeout, fmt.Errorf("tried for %s", timeout))
	ctx, cancel := context.WithCancelCause(timed)

	var left atomic.Int64
	left.Store(int64(len(b.messages)))
	stops := make([]func() bool, 0, len(b.messages))
	for _, m := range b.messages {
		if m.ctx.Done() == nil { // then none of them ends
			continue
		}
		stops = append(stops, context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(m.ctx))
			}
		}))
	}

	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
		cancelTimed()
	}
}

// isFinal tells errors that another attempt does not end: an object is missing, differs or may not be used, or a message
// is too large.
func isFinal(err error) bool {
	var (
		conflict  *topology.ConflictError
		access    *topology.AccessError
		exclusive *topology.ExclusiveError
		large     *delay.TooLargeError
	)

	return errors.Is(err, errNoQueue) || errors.Is(err, errNoLanding) ||
		errors.As(err, &conflict) || errors.As(err, &access) || errors.As(err, &exclusive) || errors.As(err, &large)
}

// try makes one attempt to publish what is open. The outcome of a message is in itself; an error means that this was
// the outcome of all that are open, or that no message may be published at all.
func (p *Publisher) try(ctx context.Context, b *batch, missing *time.Time) error {
	link, err := p.connection.TryLink(ctx)
	if err != nil {
		return withReason(ctx, err, p.connection.Failure())
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("the broker has blocked the connection: %w", err)
		}
		return err
	}
	if err := b.check(link.FrameSize()); err != nil {
		return err
	}
	if err := p.objects.ensure(ctx, link, b, *missing); err != nil {
		if end := context.Cause(ctx); end != nil && errors.Is(err, end) {
			err = fmt.Errorf("the broker has not yet declared the queues for the delay: %w", err)
		}
		return err
	}
	if b.oneByOne {
		return p.publishOneByOne(ctx, link, b, missing)
	}
	p.publish(ctx, link, b)

	return p.await(ctx, b, missing)
}

// publish sends what is open, without waiting for answers.
func (p *Publisher) publish(ctx context.Context, link *connection.Link, b *batch) {
	defer abandonIfStuck(ctx, link)()

	for _, m := range b.open() {
		if !p.sendTo(ctx, link, p.sender, b.target, m) {
			return
		}
	}
}

// publishOneByOne publishes what is open, each message after the broker's answer to the one before, on a channel that
// nobody else uses: if the broker closes it, it refuses this message.
func (p *Publisher) publishOneByOne(ctx context.Context, link *connection.Link, b *batch, missing *time.Time) error {
	defer abandonIfStuck(ctx, link)()
	sender := republish.NewSender()
	defer sender.Retire()

	for _, m := range b.open() {
		if !p.sendTo(ctx, link, sender, b.target, m) {
			return nil
		}
		if err := p.await(ctx, b, missing); err != nil {
			return err
		}
	}

	return nil
}

// sendTo sends one message. A message waits for the rest of its delay, so a second publish does not make it late. It
// returns false if no further message can be sent: the channel or the connection is gone, or ctx has ended.
func (p *Publisher) sendTo(
	ctx context.Context, link *connection.Link, sender *republish.Sender, target topology.Target, m *outgoing,
) bool {
	if m.ctx.Err() != nil {
		m.err = because(m.ctx, m.err)
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	message := m.message
	exchange, key := target.Exchange, target.Key
	if !m.past { // else it keeps its expiration, its priority and its CC
		exchange, key = p.backend.Address(target, time.Until(m.due), &message)
	}
	var err error
	if m.sent, err = sender.Send(ctx, link, exchange, key, message); err != nil {
		m.err = topology.ExplainUse(topology.UsePublish, topology.KindExchange, exchange, err)
	}

	return err == nil
}

// abandonIfStuck gives the connection up when ctx has ended and nothing moves on it any more, until the function that it
// returns is called. A large message on a slow line is no reason: others would lose their publishes with the connection.
func abandonIfStuck(ctx context.Context, link *connection.Link) (done func()) {
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		for before := link.Sent(); ; {
			select {
			case <-written:
				return
			case <-time.After(stuckFor):
			}
			sent := link.Sent()
			if sent == before {
				link.Abandon()
				return
			}
			before = sent
		}
	})

	return func() {
		stop()
		close(written)
	}
}

// await waits for the answers to what was sent. The broker closes the channel over a publish that it refuses for good, or
// that lacks a permission. Then all that was on the channel goes one by one, and the answer tells which message it is.
func (p *Publisher) await(ctx context.Context, b *batch, missing *time.Time) error {
	var final error
	oneByOne := b.oneByOne
	for _, m := range b.messages {
		if m.sent == nil {
			continue
		}
		sent := m.sent
		m.sent = nil
		err := outcome(ctx, m, sent)
		m.err = withReason(ctx, err, m.err)
		switch reason := brokerError(err); {
		case err == nil:
			m.resolved = true
		case errors.Is(err, republish.ErrReturned) && m.past:
			m.resolved, m.noQueue = true, true
		case republish.IsMissing(err):
			if sent.At().After(*missing) {
				*missing = sent.At()
			}
		case reason != nil && reason.Code == amqp091.PreconditionFailed && oneByOne:
			m.resolved, m.err = true, &delay.RefusedError{Topic: b.topic, UUID: m.uuid, Err: reason}
		case reason != nil && reason.Code == amqp091.PreconditionFailed,
			reason != nil && reason.Code == amqp091.AccessRefused && !oneByOne:
			b.oneByOne = true
		default:
			refused := topology.ExplainUse(topology.UsePublish, topology.KindExchange, "", err)
			if isFinal(refused) {
				final = refused
			}
		}
	}

	return final
}

// outcome waits for one answer, as long as the message's own context lasts.
func outcome(ctx context.Context, m *outgoing, sent *republish.Sent) error {
	if m.ctx.Done() == nil {
		return sent.Outcome(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()

	return sent.Outcome(ctx)
}

// brokerError is the broker's reason for which a channel was closed; nil for any other error.
func brokerError(err error) *amqp091.Error {
	var reason *amqp091.Error
	if errors.As(err, &reason) {
		return reason
	}

	return nil
}
