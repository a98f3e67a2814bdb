package publish

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/publish"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// stuckFor is how long nothing may move on a connection while a caller that has given up still writes. Then the
// connection is given up as well: its broker takes nothing.
const stuckFor = time.Second

// attempt publishes on one link what is open of a call, each message once.
type attempt struct {
	*call

	ctx      context.Context
	link     *connection.Link
	tried    []*outgoing
	missing  *time.Time
	sender   *sender
	oneByOne bool // each after the answer to the one before, on channels that nobody else uses

	channels []*confirmChannel // one for each exchange
	sent     []*outgoing       // without an answer, in their order
	refusal  error             // of all
}

// try makes one attempt to publish what is open. The outcome of a message is in itself; an error means that this was
// the outcome of all that are open, or that no message may be published at all.
func (p *Publisher) try(ctx context.Context, c *call, tried []*outgoing, missing *time.Time) error {
	link, err := p.connection.TryLink(ctx)
	if err != nil {
		return withReason(ctx, err, p.connection.Failure())
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		if ctx.Err() != nil {
			err = &publish.BlockedError{Reason: link.BlockedFor(), Err: err}
		}
		return err
	}
	if err := c.ready(ctx, link, *missing); err != nil {
		return err
	}
	a := &attempt{call: c, ctx: ctx, link: link, missing: missing, sender: p.sender, tried: suspects(tried)}
	if a.oneByOne = len(a.tried) > 0; a.oneByOne {
		select {
		case p.alone <- struct{}{}:
			defer func() { <-p.alone }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a.sender = newSender(manyCallers)
		defer a.sender.retire()
	} else {
		a.tried = tried
	}
	a.publish()

	return a.refusal
}

// suspects are those of which one may be refused for good. They are none any more then.
func suspects(messages []*outgoing) []*outgoing {
	var suspects []*outgoing
	for _, m := range messages {
		if m.suspect {
			m.suspect = false
			suspects = append(suspects, m)
		}
	}

	return suspects
}

func (a *attempt) publish() {
	done := abandonIfStuck(a.ctx, a.link)
	a.link.Hold()
	for _, m := range a.tried {
		if !a.send(m) || a.oneByOne && !a.settleNow(m) {
			break
		}
	}
	a.link.Release()
	done()
	for len(a.sent) > 0 {
		a.settle(a.oldest())
	}
}

// send publishes one message. It returns false if no further message can be sent: the channel or the connection is gone,
// the broker has blocked it, or ctx has ended.
func (a *attempt) send(m *outgoing) bool {
	for wait := false; ; {
		if m.ctx.Err() != nil {
			m.err = because(m.ctx, m.err)
			return true
		}
		if a.ctx.Err() != nil || a.refusal != nil || a.link.IsBlocked() {
			return false
		}
		exchange, key, publishing := a.address(m)
		if reason := a.publisher.refusals.of(a.link, &publishing); reason != nil {
			m.refuse(reason)
			return true
		}
		m.target = topology.Target{Exchange: exchange, Key: key}
		err := a.sendOn(m, exchange, key, publishing, wait)
		switch {
		case err == nil && !a.oneByOne:
			a.sent = append(a.sent, m)
			return true
		case err == nil:
			return true
		case !errors.Is(err, errFull) && !errors.Is(err, errRetired):
			m.noAnswer(errors.Is(err, errLost))
			m.err = withReason(a.ctx,
				topology.ExplainUse(topology.UsePublish, topology.KindExchange, exchange, err), m.err)
			return false
		case len(a.sent) > 0: // before another channel is taken: what is sent on that does not keep the order with it
			a.settleNow(a.oldest())
		default: // takes the channel with the most room, and waits for that
			a.leave(exchange)
			wait = errors.Is(err, errFull)
		}
	}
}

// sendOn sends a message on the channel of its exchange.
func (a *attempt) sendOn(m *outgoing, exchange, key string, publishing amqp091.Publishing, wait bool) error {
	c, err := a.channel(exchange)
	if err != nil {
		return err
	}
	if wait {
		a.link.Release()
		defer a.link.Hold()
	}
	m.sent, err = c.sendNumbered(a.ctx, key, publishing, wait)

	return err
}

func (a *attempt) channel(exchange string) (*confirmChannel, error) {
	for _, c := range a.channels {
		if c.exchange == exchange {
			return c, nil
		}
	}
	a.link.Release() // to open a channel takes an answer
	defer a.link.Hold()
	c, err := a.sender.channel(a.ctx, a.link, exchange)
	if err == nil {
		a.channels = append(a.channels, c)
	}

	return c, err
}

// leave forgets the channel of an exchange.
func (a *attempt) leave(exchange string) {
	a.channels = slices.DeleteFunc(a.channels, func(c *confirmChannel) bool { return c.exchange == exchange })
}

// oldest takes the first of those that were sent.
func (a *attempt) oldest() *outgoing {
	m := a.sent[0]
	a.sent = a.sent[1:]

	return m
}

// settleNow is settle while the link is held.
func (a *attempt) settleNow(m *outgoing) bool {
	a.link.Release() // what waits for an answer must have been sent
	defer a.link.Hold()

	return a.settle(m)
}

// refuse notes that the broker takes a message under no circumstances, so it has none of its publishes.
func (m *outgoing) refuse(reason *amqp091.Error) {
	m.outcome, m.err, m.perhaps, m.unanswered = refused, reason, false, false
}

// noAnswer notes that the broker has not answered to a publish, if it is so.
func (m *outgoing) noAnswer(is bool) {
	m.perhaps, m.unanswered = m.perhaps || is, m.unanswered || is
}

// settle waits for the answer to a message that was sent. The broker closes the channel over a publish that it refuses
// for good, or that lacks a permission. Then all that was on the channel is suspect and goes one by one, and the answer
// tells which message it is. It returns false when no further message is to be sent: the answer to one that was not
// answered would be taken for that of the next.
func (a *attempt) settle(m *outgoing) bool {
	if m.sent == nil { // its context had ended
		return true
	}
	sent := m.sent
	m.sent = nil
	answered, err := sent.wait(a.ctx, m.ctx)
	if err == nil {
		m.outcome, m.err = confirmed, nil
		return true
	}
	m.noAnswer(!answered || errors.Is(err, errLost))
	m.perhaps = m.perhaps || errors.Is(err, ErrRefused)
	if !answered && a.link.IsBlocked() { // RabbitMQ says so behind the first publish of a connection only
		err = &publish.BlockedError{Reason: a.link.BlockedFor(), Err: err}
	}
	m.err = withReason(a.ctx, err, m.err)
	switch reason := reasonOf(err); {
	case errors.Is(err, ErrReturned) && m.due.IsZero():
		m.outcome = unroutable
	case errors.Is(err, ErrRefused) && m.once:
		m.outcome = nacked
	case isMissing(err):
		if sent.at.After(*a.missing) {
			*a.missing = sent.at
		}
	case reason != nil && reason.Code == amqp091.PreconditionFailed && a.oneByOne:
		m.refuse(reason)
	case reason != nil && reason.Code == amqp091.PreconditionFailed && a.publisher.refusals.learn(a.link, reason):
		// the others are none that are too large, and are published again together
	case reason != nil && reason.Code == amqp091.PreconditionFailed,
		reason != nil && reason.Code == amqp091.AccessRefused && !a.oneByOne:
		m.suspect = true
	default:
		explained := topology.ExplainUse(topology.UsePublish, topology.KindExchange, "", err)
		if access := (*topology.AccessError)(nil); errors.As(explained, &access) {
			a.final, a.refusal = true, explained
			return false
		}
	}

	return answered || !a.oneByOne
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
