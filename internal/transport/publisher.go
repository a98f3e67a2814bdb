package transport

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"
)

// Publisher publishes to queues by their names, pipelined and with the broker's confirmation, for tools: what it is given may have no id
// of ours, so that one return makes all that follow fail.
type Publisher struct {
	link *Link

	mu       sync.Mutex
	confirms *confirmChannel
}

// NewPublisher returns a publisher that has no channel yet. It does not outlive the link, with which the lock of a run is lost.
func NewPublisher(link *Link) *Publisher { return &Publisher{link: link} }

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
	if u.confirmation, err = u.confirms.PublishWithDeferredConfirm("", u.queue, true, false, u.message); err != nil {
		u.confirms.resolved()
	}

	return err
}

// channel gives the live confirm channel, reserved for one publish.
func (p *Publisher) channel(link *Link) (*confirmChannel, error) {
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

// refusedFor is how long a queue may refuse a message, because it is full, before that is an error.
const refusedFor = time.Minute

// Wait returns when the broker has confirmed the publish, and not returned it: nil. A message that is refused, as by a queue that is full, is
// published again for a minute. Every other error means that the broker may have the message or not.
func (u *Published) Wait(ctx context.Context) error {
	began := time.Now()
	var wait *backoff.ExponentialBackOff

	for {
		if err := u.resolved(ctx); err != nil {
			return err
		}

		switch err := u.outcome(); {
		case !errors.Is(err, ErrRefused) || time.Since(began) > refusedFor:
			return err
		case wait == nil:
			wait = &backoff.ExponentialBackOff{InitialInterval: 100 * time.Millisecond, MaxInterval: 5 * time.Second, Multiplier: 2, RandomizationFactor: 0.3}
			wait.Reset()
		}

		select {
		case <-time.After(wait.NextBackOff()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}

		if err := u.send(ctx); err != nil {
			return err
		}
	}
}

// resolved waits for the broker's answer, for a minute, and as long as it blocks who publishes.
func (u *Published) resolved(ctx context.Context) error {
	for {
		select {
		case <-u.confirmation.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(refusedFor):
			if !u.confirms.link.isBlocked() {
				return ErrSilent
			}
		}
	}
}

// outcome tells what became of a resolved publish. A channel that was nacked is not used again.
func (u *Published) outcome() error {
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
