package retrier

import "github.com/ThreeDotsLabs/watermill"

// stockPrefetch is what all configs of watermill-amqp say by default. A retrier cannot tell it from a
// user's own 1, and with it one held delivery stops the queue.
const stockPrefetch = 1

// prefetch is how many deliveries the broker may send ahead to the retrier's own subscriber; zero for as many as suits
// the handlers.
func (r *Retrier) prefetch() int {
	switch config := r.config.Consume.Qos.PrefetchCount; {
	case r.options.Prefetch > 0:
		return r.roomFor(r.options.Prefetch)
	case config > stockPrefetch:
		return r.roomFor(config)
	default:
		return 0
	}
}

// roomFor raises a prefetch that would limit the concurrency, and logs one without room for held deliveries.
func (r *Retrier) roomFor(prefetch int) int {
	fields := watermill.LogFields{"prefetch": prefetch, "concurrency": r.options.Concurrency}
	if prefetch < r.options.Concurrency {
		r.options.Logger.Info("Raised the prefetch to Options.Concurrency, which it would limit; see Options.Prefetch",
			fields)
		prefetch = r.options.Concurrency
	}
	if prefetch == r.options.Concurrency {
		r.options.Logger.Info("Prefetch equals Options.Concurrency, so each held delivery leaves a handler idle; see "+
			"Options.Prefetch", watermill.LogFields{"prefetch": prefetch, "concurrency": r.options.Concurrency})
	}

	return prefetch
}
