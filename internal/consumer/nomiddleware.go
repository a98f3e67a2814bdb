package consumer

import (
	"fmt"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/retry"
)

// noMiddleware slows down a subscription whose messages reach no middleware of the retrier. Nobody counts or
// delays their failures: the broker would redeliver them thousands of times a second.
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

// noMiddlewareError explains why redeliveries are slow.
type noMiddlewareError struct{ topic string }

func (e noMiddlewareError) Error() string {
	return fmt.Sprintf(
		"cannot retry messages of topic %q: none has reached retrier.Middleware, so failures are neither counted nor "+
			"delayed; add it before all other middlewares (router.AddMiddleware(retrier.Middleware)), or remove the "+
			"middleware or decorator before it that fails messages or passes on copies of them", e.topic,
	)
}

// nack gives a message back that was nacked without a verdict: at once, as Watermill does, if a
// middleware has seen messages of this subscription; else after a pause. Other messages go on
// meanwhile, up to the prefetch.
func (n *session) nack(s *subscription, h *inFlight) {
	pause, first := time.Duration(0), false
	if s.queue.Policy.Mode != config.ModeOff { // else it has to be as without us
		pause, first = s.noMiddleware.next(time.Now())
	}
	if first {
		s.logger.Error("No message reaches retrier.Middleware; slowing down redeliveries",
			noMiddlewareError{s.queue.Topic}, nil)
	}
	if pause == 0 || s.isClosing() {
		n.requeue(s, h)
		n.ended(s, h, retry.EventRequeued)

		return
	}

	n.paused.Add(1)
	go func() {
		defer n.paused.Done()

		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.closing:
		case <-n.gone:
			return
		}
		n.requeue(s, h)
	}()
}
