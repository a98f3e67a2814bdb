package publish

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// mostUnsettled is how many publishes of a round may have no answer: when the broker closes a
// channel, all that was on it is published again.
const mostUnsettled = 1024

// stuckFor is how long nothing may move on a connection while a caller that has given up still
// writes. Then the connection is given up as well: its broker takes nothing.
const stuckFor = time.Second

// round publishes on one link what is open of a call, each message once.
type round struct {
	*call

	ctx      context.Context
	link     *connection.Link
	tried    []*outgoing
	sender   *sender
	oneByOne bool // each after the answer to the one before, on channels that nobody else uses

	channels []*confirmChannel // one for each exchange
	sent     []*outgoing       // without an answer, in their order
	refusal  error             // of all
}

// try makes one round of publishes of what is open. The outcome of a message is in itself; an error
// means that this was the outcome of all that are open, or that no message may be published at all.
func (p *Publisher) try(ctx context.Context, c *call, tried []*outgoing) error {
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
	if err := c.ready(ctx, link); err != nil {
		return err
	}
	r := &round{call: c, ctx: ctx, link: link, sender: p.sender, tried: suspects(tried)}
	if r.oneByOne = len(r.tried) > 0; r.oneByOne {
		select {
		case p.alone <- struct{}{}:
			defer func() { <-p.alone }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r.sender = newSender(false)
		defer r.sender.retire()
	} else {
		r.tried = tried
	}
	r.publish()

	return r.refusal
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

func (r *round) publish() {
	done := abandonIfStuck(r.ctx, r.link)
	r.link.Hold()
	for _, m := range r.tried {
		if !r.send(m) || r.oneByOne && !r.settleNow(m) {
			break
		}
	}
	r.link.Release()
	done()
	for len(r.sent) > 0 {
		r.settle(r.oldest())
	}
}

// send publishes one message. It returns false if no further message can be sent: the channel or
// the connection is gone, the broker has blocked it, or ctx has ended.
func (r *round) send(m *outgoing) bool {
	if len(r.sent) >= mostUnsettled {
		r.settleNow(r.oldest())
	}
	for {
		if m.ctx.Err() != nil {
			m.err = because(m.ctx, m.err)
			return true
		}
		if r.ctx.Err() != nil || r.refusal != nil || r.link.IsBlocked() {
			return false
		}
		exchange, key, publishing := r.address(m)
		if reason := r.publisher.refusals.of(r.link, &publishing); reason != nil {
			m.refuse(reason)
			return true
		}
		m.target = topology.Target{Exchange: exchange, Key: key}
		c, err := r.channel(exchange)
		if err == nil {
			m.sent, err = c.send(key, publishing, m.id)
		}
		switch {
		case errors.Is(err, errRetired): // what is sent on another channel does not keep the order with what was sent
			for len(r.sent) > 0 {
				r.settleNow(r.oldest())
			}
			r.channels = slices.DeleteFunc(r.channels, func(is *confirmChannel) bool { return is == c })
		case err != nil:
			m.unanswered = m.unanswered || errors.Is(err, errLost)
			m.err = withReason(r.ctx,
				topology.Explain(rabbitmq.UsePublish, rabbitmq.KindExchange, exchange, err), m.err)
			return false
		default:
			if !r.oneByOne {
				r.sent = append(r.sent, m)
			}
			return true
		}
	}
}

func (r *round) channel(exchange string) (*confirmChannel, error) {
	for _, c := range r.channels {
		if c.exchange == exchange {
			return c, nil
		}
	}
	r.link.Release() // to open a channel takes an answer
	defer r.link.Hold()
	c, err := r.sender.channel(r.ctx, r.link, exchange)
	if err == nil {
		r.channels = append(r.channels, c)
	}

	return c, err
}

// oldest takes the first of those that were sent.
func (r *round) oldest() *outgoing {
	m := r.sent[0]
	r.sent = r.sent[1:]

	return m
}

// settleNow is settle while the link is held.
func (r *round) settleNow(m *outgoing) bool {
	r.link.Release() // what waits for an answer must have been sent
	defer r.link.Hold()

	return r.settle(m)
}

// refuse notes that the broker takes a message under no circumstances, so it has none of its
// publishes.
func (m *outgoing) refuse(reason *amqp091.Error) {
	m.outcome, m.err, m.unanswered, m.wasNacked = refused, reason, false, false
}

// settle waits for the answer to a message that was sent. The broker closes the channel over a
// publish that it refuses for good, or that lacks a permission. Then all that was on the channel is
// suspect and goes one by one, and the answer tells which message it is. It returns false when no
// further message is to be sent: the answer to one that was not answered would be taken for that of
// the next.
func (r *round) settle(m *outgoing) bool {
	if m.sent == nil { // its context had ended
		return true
	}
	sent := m.sent
	m.sent = nil
	answered, err := sent.wait(r.ctx, m.ctx)
	if err == nil {
		m.outcome, m.err = confirmed, nil
		return true
	}
	m.unanswered = m.unanswered || !answered || errors.Is(err, errLost)
	m.wasNacked = m.wasNacked || errors.Is(err, ErrRefused)
	if !answered && r.link.IsBlocked() { // RabbitMQ says so behind the first publish of a connection only
		err = &publish.BlockedError{Reason: r.link.BlockedFor(), Err: err}
	}
	m.err = withReason(r.ctx, err, m.err)
	switch reason := reasonOf(err); {
	case errors.Is(err, ErrReturned) && m.due.IsZero():
		m.outcome = unroutable
	case errors.Is(err, ErrRefused) && m.once:
		m.outcome = nacked
	case isMissing(err):
		r.missing = latest(r.missing, sent.at)
	case reason != nil && reason.Code == amqp091.PreconditionFailed && r.oneByOne:
		m.refuse(reason)
	case reason != nil && reason.Code == amqp091.PreconditionFailed && r.publisher.refusals.learn(r.link, reason):
		// the others are none that are too large, and are published again together
	case reason != nil && reason.Code == amqp091.PreconditionFailed,
		reason != nil && reason.Code == amqp091.AccessRefused && !r.oneByOne:
		m.suspect = true
	default:
		explained := topology.Explain(rabbitmq.UsePublish, rabbitmq.KindExchange, "", err)
		if access := (*topology.AccessError)(nil); errors.As(explained, &access) {
			r.final, r.refusal = true, explained
			return false
		}
	}

	return answered || !r.oneByOne
}

// abandonIfStuck gives the connection up when ctx has ended and nothing moves on it any more, until
// the function that it returns is called. A large message on a slow line is no reason: others would
// lose their publishes with the connection.
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
