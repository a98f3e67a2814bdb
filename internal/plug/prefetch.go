package plug

import "github.com/ThreeDotsLabs/watermill"

// stockPrefetch is what all configs of watermill-amqp say by default. A plug cannot tell it from a
// user's own 1, and with it one held delivery stops the queue.
const stockPrefetch = 1

// prefetch returns how many deliveries the broker may send ahead to the plug's own subscriber.
func (p *Plug) prefetch() int {
	switch config := p.config.Consume.Qos.PrefetchCount; {
	case p.options.Prefetch > 0:
		return p.options.Prefetch
	case config > stockPrefetch:
		return config
	default:
		return min(max(DefaultPrefetch, 2*p.options.Concurrency), maxPrefetch)
	}
}

// roomFor raises a prefetch that would limit the concurrency, and logs one without room for held
// deliveries.
func (p *Plug) roomFor(prefetch int) int {
	fields := watermill.LogFields{"prefetch": prefetch, "concurrency": p.options.Concurrency}
	if prefetch < p.options.Concurrency {
		p.options.Logger.Info("Prefetch is raised to the concurrency, which it would limit; see Options.Prefetch", fields)
		prefetch = p.options.Concurrency
	}
	if prefetch == p.options.Concurrency {
		p.options.Logger.Info("Prefetch leaves no room for held deliveries: one stops others; see Options.Prefetch",
			watermill.LogFields{"prefetch": prefetch, "concurrency": p.options.Concurrency})
	}

	return prefetch
}
