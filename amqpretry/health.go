package amqpretry

import (
	"time"

	"github.com/amqpretry/watermill-retry/internal/health"
	"github.com/amqpretry/watermill-retry/retry"
)

// Health tells whether the retrier's own subscribers consume, and what is wrong with them, with
// failed deliveries and with all connections of the retrier. Of stock subscribers it knows only
// what concerns their failed deliveries. Package amqpretry/health serves it over HTTP.
//
// It does not wait for the broker: while nothing comes from a queue, it has the broker asked in the
// background whether that has a leader, for 20 queues every 10 seconds at most.
func (r *Retrier) Health() retry.Health {
	now := time.Now()
	problems := append(r.connections.Problems(), r.forwarder.Problems()...)
	if r.ctx.Err() != nil {
		problems = append(problems, retry.Problem{Kind: retry.ProblemRunning, NotReady: true,
			Text: "the retrier is closed"})
	}
	var all []health.Subscription
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		s, is := c.(*Subscriber)
		if !is {
			continue
		}
		all = append(all, s.consumer.Health(now)...)
		if !s.used.Load() {
			problems = append(problems, retry.Problem{Kind: retry.ProblemRunning, NotReady: true,
				Text: "a subscriber has no subscription yet; close it if it gets none"})
		}
	}

	return health.Judge(now, all, problems)
}
