package consumer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// The pauses before a dead letter whose handler has failed is handed out again.
const (
	shortestPause = time.Second
	longestPause  = time.Minute
)

// mostSetAside is for how many dead letters room is made while they wait for their pause.
const mostSetAside = 1000

// pause is how long a dead letter stays aside whose handler has failed: there is no further queue for it to go to, and
// a plain nack would have the broker hand it out again at once, some thousand times a second. It doubles with the
// returns that the broker counts.
func pause(d *amqp091.Delivery) time.Duration {
	returns := max(codec.Counter(d.Headers[header.DeliveryCount]), codec.Counter(d.Headers[header.AcquiredCount]))

	return min(shortestPause<<max(0, min(returns, 10)), longestPause)
}

// deadLetterFailure is why the handler of a dead letter has failed, as the middleware has seen it.
type deadLetterFailure struct {
	handler string
	err     error
	text    string // of err, as it may be logged
}

// Failed is called by the middleware, which leaves dead letters alone.
func (h *inFlight) Failed(handler string, err error, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.failure = deadLetterFailure{handler, err, text}
}

var errUnknownFailure = errors.New("unknown: the retrier's Middleware, which sees errors, is not in the router")

func (h *inFlight) whyFailed() deadLetterFailure {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.failure.err == nil {
		return deadLetterFailure{err: errUnknownFailure, text: errUnknownFailure.Error()}
	}

	return h.failure
}

// setAside gives a dead letter back to its queue after a pause. Those behind it go on.
func (n *session) setAside(s *subscription, h *inFlight) {
	wait, why, tag := pause(&h.delivery), h.whyFailed(), h.delivery.DeliveryTag
	s.logger.Error("Handler of a dead letter has failed, it stays in the dead-letter queue", errors.New(why.text),
		watermill.LogFields{
			"message_uuid": h.msg.UUID, "handler_name": why.handler, "wait_time": wait.String(),
		})
	s.consumer.settings.Engine.Emit(retry.Event{
		Kind: retry.EventSetAside, Topic: s.queue.Topic, Queue: s.queue.Name, Handler: why.handler, DeadLetters: true,
		Message: h.msg, Err: why.err, Took: wait,
	})

	if n.crowd.enter(h.consumer) {
		s.logger.Error("Too many dead letters wait for their pause, those behind them can have to wait as well",
			fmt.Errorf("their handler has failed on %d", mostSetAside), nil)
	}
	n.acker.notify() // there may be room for a consumer
	n.paused.Add(1)
	go func() { // keeps nothing of the message but its tag
		defer n.paused.Done()

		select {
		case <-time.After(wait):
		case <-s.closing: // all of them go back at once, when the session ends
			return
		case <-n.gone:
			return
		}
		n.crowd.leave(h.consumer)
		n.requeueOf(s, tag)
	}()
}

// crowd counts the dead letters of a session that wait for their pause. Each takes one of its consumer's prefetch, and
// to give some back early is no way out: the broker puts them ahead of all others again. But the next consumer on the
// same channel has a prefetch of its own, so a new one takes the place of one that has half of its prefetch set aside,
// until mostSetAside wait.
type crowd struct {
	share int // of a prefetch

	// full has something in it when another consumer is needed.
	full chan struct{}

	mu       sync.Mutex
	consumer int // the present one
	of       int // the dead letters of its that wait
	all      int
	told     bool // that there are too many
}

func newCrowd(prefetch int) crowd {
	return crowd{share: max(1, prefetch/2), full: make(chan struct{}, 1)}
}

// begin notes which consumer is the present one.
func (c *crowd) begin(consumer int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.consumer, c.of = consumer, 0
	select {
	case <-c.full:
	default:
	}
}

// enter counts one that was delivered to a consumer. It reports whether they have become too many.
func (c *crowd) enter(consumer int) (tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.all++
	if consumer == c.consumer {
		c.of++
	}
	if c.all >= mostSetAside {
		tooMany, c.told = !c.told, true
		return tooMany
	}
	if c.of >= c.share {
		select {
		case c.full <- struct{}{}:
		default:
		}
	}

	return false
}

// leave counts one less.
func (c *crowd) leave(consumer int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if consumer == c.consumer {
		c.of--
	}
	if c.all--; c.all < mostSetAside/2 {
		c.told = false
	}
}

// waiting is how many wait.
func (c *crowd) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.all
}
