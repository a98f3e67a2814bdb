package delayed

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/republish"
)

// stuckFor is how long a write may go on after its caller has given up. Then the connection is given up as well: its
// broker takes nothing.
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
				m.err, m.noQueue = err, errors.Is(err, errNoQueue)
			}
		}
		if isFinal(err) || !wanted(open) {
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

// wanted tells whether the context of a message has not ended.
func wanted(open []*outgoing) bool {
	for _, m := range open {
		if m.ctx.Err() == nil {
			return true
		}
	}

	return false
}

// because adds to the end of a context what was wrong before.
func because(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return cause
	case errors.Is(err, cause):
		return err
	}

	return fmt.Errorf("%w: %w", cause, err)
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

// isFinal tells errors that another attempt cannot mend: of what is declared, may not be written to, or is too large.
func isFinal(err error) bool {
	var (
		conflict  *topology.ConflictError
		access    *topology.AccessError
		exclusive *topology.ExclusiveError
		large     *delay.TooLargeError
	)

	return errors.Is(err, errNoQueue) || errors.As(err, &conflict) || errors.As(err, &access) ||
		errors.As(err, &exclusive) || errors.As(err, &large)
}

// try makes one attempt to publish what is open. The outcome of a message is in itself; an error means that this was
// the outcome of all that are open, or that no message may be published at all.
func (p *Publisher) try(ctx context.Context, b *batch, missing *time.Time) error {
	link, err := p.connection.TryLink(ctx)
	if err != nil {
		return err
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
		return err
	}
	p.publish(ctx, link, b)

	return p.await(ctx, b, missing)
}

// publish sends what is open, without waiting for answers. A message waits for what is left of its delay, so that one
// that is published again is not late.
func (p *Publisher) publish(ctx context.Context, link *connection.Link, b *batch) {
	written := make(chan struct{})
	defer close(written)
	defer context.AfterFunc(ctx, func() {
		stuck := time.NewTimer(stuckFor)
		defer stuck.Stop()
		select {
		case <-written:
		case <-stuck.C:
			link.Abandon()
		}
	})()

	for _, m := range b.open() {
		if m.ctx.Err() != nil {
			m.err = context.Cause(m.ctx)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		message := m.message
		exchange, key := b.target.Exchange, b.target.Key
		channel := "exchange " + exchange
		if !m.past { // else it keeps its expiration, its priority and its CC
			exchange, key = p.backend.Address(b.target, time.Until(m.due), &message)
			channel = p.backend.Name()
		}
		var err error
		if m.sent, err = p.sender.Send(ctx, link, channel, exchange, key, message); err != nil {
			m.err = topology.ExplainUse(topology.UsePublish, topology.KindExchange, exchange, err)
			return // the channel or the connection is gone, and so it is for the others
		}
	}
}

// await waits for the answers to what was sent.
func (p *Publisher) await(ctx context.Context, b *batch, missing *time.Time) error {
	var final error
	for _, m := range b.messages {
		if m.sent == nil {
			continue
		}
		sent := m.sent
		m.sent = nil
		err := outcome(ctx, m, sent)
		m.err = err
		switch {
		case err == nil:
			m.resolved = true
		case errors.Is(err, republish.ErrReturned) && m.past:
			m.resolved, m.noQueue = true, true
		case republish.IsMissing(err):
			if sent.At().After(*missing) {
				*missing = sent.At()
			}
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
