package consumer

import (
	"errors"
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

// mostSetAside is for how many dead letters room is made while they wait for their pause. To give some back early is no
// way out: the broker puts them ahead of all others again.
const mostSetAside = 1000 // which a log line says too

// pause is how long a dead letter stays aside whose handler has failed: there is no further queue for it to go to, and
// a plain nack would have the broker hand it out again at once, some thousand times a second. It doubles with the
// returns that the broker counts.
func pause(d *amqp091.Delivery) time.Duration {
	returns := max(codec.Counter(d.Headers[header.DeliveryCount]), codec.Counter(d.Headers[header.AcquiredCount]))

	return min(shortestPause<<max(0, min(returns, 10)), longestPause)
}

// deadLetterFailure is why a dead-letter handler failed, as the middleware has seen it.
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

var errUnknownFailure = errors.New("unknown error, as retrier.Middleware is not in the router; add it to see errors")

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
	s.logger.Error("Dead-letter handler failed; the message stays in the dead-letter queue", errors.New(why.text),
		watermill.LogFields{
			"message_uuid": h.msg.UUID, "handler_name": why.handler, "wait_time": wait.String(),
		})
	s.consumer.settings.Engine.Emit(retry.Event{
		Kind: retry.EventSetAside, Topic: s.queue.Topic, Queue: s.queue.Name, Handler: why.handler, DeadLetters: true,
		Message: h.msg, Err: why.err, Took: wait,
	})

	n.paused.Add(1)
	if n.paused.value() >= mostSetAside && !n.tooMany.Swap(true) {
		s.logger.Error("1,000 dead letters are waiting for another try; later ones may wait too",
			errors.New("their handler failed"), nil)
	}
	n.acker.notify() // there may be room for a consumer
	go func() {      // keeps nothing of the message but its tag
		defer n.paused.Done()

		select {
		case <-time.After(wait):
		case <-s.closing: // all of them go back at once, when the session ends
			return
		case <-n.gone:
			return
		}
		n.requeueOf(s, tag)
		if n.paused.value() < mostSetAside/2 {
			n.tooMany.Store(false)
		}
	}()
}
