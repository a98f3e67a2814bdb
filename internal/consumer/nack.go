package consumer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/retry"
)

// noMiddleware slows down a subscription whose messages reach no middleware of the retrier. Nobody
// counts or delays their failures: the broker would redeliver them thousands of times a second.
type noMiddleware struct {
	mu     sync.Mutex
	seen   bool // a middleware has had a message: from now on a nack is a plain one
	rounds publish.Rounds
}

// The pauses before a nack.
const (
	firstNackPause = 100 * time.Millisecond
	lastNackPause  = 5 * time.Second
)

// note remembers that a middleware has had a message.
func (u *noMiddleware) note(seen bool) {
	if !seen {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()

	u.seen = true
}

// next returns how long to wait before a nack, and whether it is the first that waits.
func (u *noMiddleware) next(now time.Time) (pause time.Duration, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.seen {
		return 0, false
	}
	u.rounds.First, u.rounds.Last = firstNackPause, lastNackPause

	return u.rounds.Next(now)
}

// nack gives a message back that was nacked without a verdict: at once, as Watermill does, if a
// middleware has seen messages of this subscription; else after a pause. Other messages go on
// meanwhile, up to the prefetch.
func (s *session) nack(h *handout) {
	pause, first := time.Duration(0), false
	if s.queue.Policy.Mode != config.ModeOff { // else it has to be as without us
		pause, first = s.sub.noMiddleware.next(time.Now())
	}
	if first {
		s.sub.logger.Error("No message reaches retrier.Middleware; slowing down redeliveries", fmt.Errorf(
			"cannot retry messages of topic %q: none has reached retrier.Middleware, so failures are neither counted "+
				"nor delayed; add it before all other middlewares (router.AddMiddleware(retrier.Middleware)), or "+
				"remove the middleware or decorator before it that fails messages or passes on copies of them",
			s.queue.Topic), nil)
	}
	if pause == 0 || s.sub.isClosing() {
		s.requeue(h)
		h.engine.Ended(retry.EventRequeued, h, h.msg)

		return
	}

	s.paused.Go(func() {
		s.wait(pause)
		s.requeue(h) // which does nothing for a channel that is gone
	})
}

// wait waits, and reports whether it did so for all of the time: a close and the end of the channel
// end it.
func (s *session) wait(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()

	select {
	case <-timer.C:
		return true
	case <-s.sub.closing:
	case <-s.gone:
	}

	return false
}

// The pauses before a dead letter whose handler has failed is handed out again.
const (
	shortestPause = time.Second
	longestPause  = time.Minute
)

// mostSetAside is for how many dead letters room is made while they wait for their pause. To give
// some back early is no way out: the broker puts them ahead of all others again.
const mostSetAside = 1000 // which a log line says too

// pause is how long a dead letter stays aside whose handler has failed: there is no further queue
// for it to go to, and a plain nack would have the broker hand it out again at once, some thousand
// times a second. It doubles with the returns that the broker counts.
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
func (h *handout) Failed(handler string, err error, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.failure = deadLetterFailure{handler, err, text}
}

var errUnknownFailure = errors.New("unknown error, as retrier.Middleware is not in the router; add it to see errors")

func (h *handout) whyFailed() deadLetterFailure {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.failure.err == nil {
		return deadLetterFailure{err: errUnknownFailure, text: errUnknownFailure.Error()}
	}

	return h.failure
}

// setAside gives a dead letter back to its queue after a pause. Those behind it go on.
func (s *session) setAside(h *handout) {
	wait, why, tag := pause(&h.delivery), h.whyFailed(), h.delivery.DeliveryTag
	s.sub.logger.Error("Dead-letter handler failed; the message stays in the dead-letter queue", errors.New(why.text),
		watermill.LogFields{
			"message_uuid": h.msg.UUID, "handler_name": why.handler, "wait_time": wait.String(),
		})
	h.engine.Emit(retry.Event{
		Kind: retry.EventSetAside, Topic: s.queue.Topic, Queue: s.queue.Name, Handler: why.handler, DeadLetters: true,
		Message: h.msg, Err: why.err, Took: wait,
	})

	s.paused.Add(1)
	if s.paused.value() >= mostSetAside && !s.tooMany.Swap(true) {
		s.sub.logger.Error("1,000 dead letters are waiting for another try; later ones may wait too",
			errors.New("their handler failed"), nil)
	}
	s.acker.notify() // there may be room for a consumer
	go func() {      // keeps nothing of the message but its tag
		defer s.paused.Done()

		if !s.wait(wait) {
			return // all of them go back at once, when the session ends
		}
		s.requeueOf(tag)
		if s.paused.value() < mostSetAside/2 {
			s.tooMany.Store(false)
		}
	}()
}
