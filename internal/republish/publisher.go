package republish

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Publisher publishes to queues by their names, pipelined and with the broker's confirmation, for tools: what it is
// given may have no id of ours, so that one return makes all that follow fail.
type Publisher struct {
	link *connection.Link
	// OnRefused is told that a queue refuses messages, which are then published again and again, and with false that it
	// takes them again. Nil means nobody.
	OnRefused func(queue string, refused bool)

	mu       sync.Mutex
	confirms *confirmChannel
	refusing bool // told
}

// NewPublisher returns a publisher that has no channel yet. It does not outlive the link, with which the lock of a run
// is lost.
func NewPublisher(link *connection.Link) *Publisher { return &Publisher{link: link} }

// What the broker says of a publish that it does not take.
var (
	ErrReturned = errors.New("the broker has returned a message: the queue is gone")
	ErrSilent   = errors.New("the broker has not confirmed a message for a minute: has the queue no majority of its nodes?")
	ErrRefused  = errors.New("the broker has refused a message for a minute (nack): is the queue full, or its node down?")
)

// Published is a publish that is perhaps not resolved yet.
type Published struct {
	publisher    *Publisher
	queue        string
	message      amqp091.Publishing
	confirms     *confirmChannel
	confirmation *amqp091.DeferredConfirmation
	judged       bool // by outcome, which gives the same again
	judgement    error
}

// Publish sends a message to a queue. It waits while the broker blocks who publishes.
func (p *Publisher) Publish(ctx context.Context, queue string, message amqp091.Publishing) (*Published, error) {
	u := &Published{publisher: p, queue: queue, message: message}

	return u, u.send(ctx)
}

func (u *Published) send(ctx context.Context) error {
	link := u.publisher.link
	err := link.WaitUnblocked(ctx)
	if err != nil {
		return err
	}
	if u.confirms, err = u.publisher.channel(link); err != nil {
		return err
	}
	u.judged = false
	if u.confirmation, err = u.confirms.PublishWithDeferredConfirm("", u.queue, true, false, u.message); err != nil {
		u.confirms.resolved()
	}

	return err
}

// channel gives the live confirm channel, reserved for one publish.
func (p *Publisher) channel(link *connection.Link) (*confirmChannel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.confirms != nil && p.confirms.link == link && p.confirms.reserve() {
		return p.confirms, nil
	}
	confirms, err := openConfirms(link)
	if err != nil {
		return nil, err
	}
	p.confirms = confirms
	confirms.unresolved.Add(1)

	return confirms, nil
}

// refusedFor is how long a queue may refuse a message, because it is full, before that is an error; refusedTold before
// somebody is told.
const (
	refusedFor  = time.Minute
	refusedTold = time.Second
)

// Wait returns when the broker has confirmed the publish, and not returned it: nil. A message that is refused, as by a
// queue that is full, is published again for a minute, while retry lasts. Every other error means that the broker may
// have the message or not, unless it is Refused.
func (u *Published) Wait(ctx, retry context.Context) error {
	began := time.Now()
	var wait *backoff.ExponentialBackOff

	for {
		if err := u.resolved(ctx); err != nil {
			return err
		}

		err := u.outcome()
		u.publisher.tell(u.queue, u.Refused(), time.Since(began))
		switch {
		case !u.Refused() || time.Since(began) > refusedFor:
			return err
		case wait == nil:
			wait = &backoff.ExponentialBackOff{InitialInterval: 100 * time.Millisecond, MaxInterval: 5 * time.Second, Multiplier: 2, RandomizationFactor: 0.3}
			wait.Reset()
		}

		select {
		case <-time.After(wait.NextBackOff()):
		case <-retry.Done():
			return context.Cause(retry)
		case <-ctx.Done():
			return context.Cause(ctx)
		}

		if err := u.send(ctx); err != nil {
			return err
		}
	}
}

// Refused tells of one that was waited for in vain whether the broker has certainly not taken it.
func (u *Published) Refused() bool { return u.judged && errors.Is(u.judgement, ErrRefused) }

// tell tells once that a queue refuses messages, when it has for a while, and once that it does not any more.
func (p *Publisher) tell(queue string, refused bool, since time.Duration) {
	if p.OnRefused == nil || refused && since < refusedTold {
		return
	}
	p.mu.Lock()
	changed := p.refusing != refused
	p.refusing = refused
	p.mu.Unlock()
	if changed {
		p.OnRefused(queue, refused)
	}
}

// resolved waits for the broker's answer, for a minute, and as long as it blocks who publishes.
func (u *Published) resolved(ctx context.Context) error {
	for {
		select { // an answer that is there counts more than the end of the waiting
		case <-u.confirmation.Done():
			return nil
		default:
		}
		select {
		case <-u.confirmation.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(refusedFor):
			if !u.confirms.link.IsBlocked() {
				return ErrSilent
			}
		}
	}
}

// outcome tells what became of a resolved publish. A channel that was nacked is not used again.
func (u *Published) outcome() error {
	if !u.judged {
		u.judged, u.judgement = true, u.judge()
	}

	return u.judgement
}

func (u *Published) judge() error {
	defer u.confirms.resolved()
	returned := u.confirms.returned(anyReturn)

	switch {
	case u.confirmation.Acked() && !returned:
		return nil
	case u.confirmation.Acked():
		return ErrReturned
	case !u.confirms.IsClosed():
		u.confirms.retired.Store(true)
		return ErrRefused
	}

	return errors.Join(errLost, u.confirms.closeError())
}
