package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// QueuePublisher publishes to queues by their names, pipelined and with the broker's confirmation,
// for tools: what it is given may have no id of ours, so that one return makes all that follow
// fail.
type QueuePublisher struct {
	link *connection.Link
	// OnRefused is told that a queue refuses messages, which are then published again and again,
	// and with false that it takes them again. Nil means nobody.
	OnRefused func(queue string, refused bool)

	sender   *sender
	refusing atomic.Bool // as OnRefused was told last

	mu   sync.Mutex
	held bool // its writes
}

// NewQueuePublisher returns a publisher that has no channel yet. It does not outlive the link, with
// which the lock of a run is lost.
func NewQueuePublisher(link *connection.Link) *QueuePublisher {
	p := &QueuePublisher{link: link, sender: newSender(true)}
	p.sender.waits = p.Flush

	return p
}

// Hold holds back what Publish writes, up to 16 KiB, until Flush is called. Who calls it calls
// Flush before he waits for anything.
func (p *QueuePublisher) Hold() { p.hold(true) }

// Flush writes what is held back.
func (p *QueuePublisher) Flush() { p.hold(false) }

func (p *QueuePublisher) hold(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case held && !p.held:
		p.link.Hold()
	case !held && p.held:
		p.link.Release()
	}
	p.held = held
}

var errSilent = errors.New("the broker has not confirmed a message for a minute: has the queue no majority of its " +
	"nodes?")

const (
	// refusedFor is how long a queue may refuse a message, because it is full, before that is an
	// error.
	refusedFor = time.Minute
	// refusedTold is how long a queue refuses a message before OnRefused is told.
	refusedTold = time.Second
)

// Published is a publish that is perhaps not resolved yet.
type Published struct {
	publisher *QueuePublisher
	exchange  string // empty for the default exchange
	key       string
	message   amqp091.Publishing
	sent      *pending     // nil if the publish itself failed
	answer    func() error // of sent
	refused   bool         // by the last publish
}

// Publish sends a message to an exchange, whose name OnRefused gets, or by the default one to the
// queue of that key. It waits while the broker blocks the connection.
func (p *QueuePublisher) Publish(ctx context.Context, exchange, key string, message amqp091.Publishing) (*Published,
	error) {
	u := &Published{publisher: p, exchange: exchange, key: key, message: message}

	return u, u.send(ctx)
}

func (u *Published) send(ctx context.Context) (err error) {
	p := u.publisher
	if p.link.IsBlocked() {
		p.Flush()
		if err := p.link.WaitUnblocked(ctx); err != nil {
			return err
		}
	}
	u.refused = false
	if u.sent, err = p.sender.send(ctx, p.link, u.exchange, u.key, u.message, noID); err == nil {
		u.answer = sync.OnceValue(u.sent.answer)
	}

	return err
}

// Wait returns nil when the broker has confirmed the publish and has not returned it. It publishes
// a message again that a queue refuses, because it is full, for a minute or until retry ends. After
// an error the broker may have the message or not, unless Refused reports true.
func (u *Published) Wait(ctx, retry context.Context) error {
	began := time.Now()
	for pauses := growing(); ; {
		if err := u.answered(ctx); err != nil {
			return err
		}
		err := u.answer()
		u.refused = errors.Is(err, ErrRefused)
		u.publisher.noteRefusal(cmp.Or(u.exchange, u.key), u.refused, time.Since(began))
		switch {
		case !u.refused:
			return err
		case time.Since(began) > refusedFor:
			return fmt.Errorf("tried for a minute: %w", err)
		}
		select {
		case <-time.After(pauses.NextBackOff()):
		case <-retry.Done():
		case <-ctx.Done():
		}
		if end := cmp.Or(context.Cause(ctx), context.Cause(retry)); end != nil { // the last publish was refused
			return end
		}
		if err := u.send(ctx); err != nil {
			return err
		}
	}
}

// Refused reports, after Wait returned an error, whether the broker has certainly not taken the
// message.
func (u *Published) Refused() bool { return u.refused }

// noteRefusal calls OnRefused once when a queue has refused messages for a while, and once when it
// takes them again.
func (p *QueuePublisher) noteRefusal(queue string, refused bool, since time.Duration) {
	if p.OnRefused == nil || refused && since < refusedTold {
		return
	}
	if p.refusing.Swap(refused) != refused {
		p.OnRefused(queue, refused)
	}
}

// answered waits for the broker's answer: a minute, and longer while the broker blocks the
// connection.
func (u *Published) answered(ctx context.Context) error {
	if u.sent == nil {
		return errLost
	}
	for {
		select { // an answer that is there counts more than the end of ctx
		case <-u.sent.confirmation.Done():
			return nil
		default:
		}
		select {
		case <-u.sent.confirmation.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(refusedFor):
			if !u.publisher.link.IsBlocked() {
				return errSilent
			}
		}
	}
}
