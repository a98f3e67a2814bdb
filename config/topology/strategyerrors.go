package topology

import (
	"fmt"

	"github.com/amqpretry/watermill-retry/config"
)

// StockStrategyError is returned to stock subscribers of topics whose strategy they cannot carry out.
type StockStrategyError struct {
	// Queue is the main queue, with this strategy.
	Queue    string
	Strategy config.Strategy
}

func (e *StockStrategyError) Error() string {
	return fmt.Sprintf("queue %q: the strategy %s needs a subscriber that rejects failed messages and drains when "+
		"it closes; "+
		"use Retrier.NewSubscriber, or the strategy %s", e.Queue, e.Strategy, config.StrategyQueues)
}

// NoDelayedRetryError is returned by Subscribe when a broker accepts the arguments of the strategy native and ignores
// them.
type NoDelayedRetryError struct {
	// Queue is the main queue, and Version the broker's.
	Queue, Version string
}

func (e *NoDelayedRetryError) Error() string {
	return fmt.Sprintf("queue %q has the strategy native, which needs the delayed retry of RabbitMQ 4.3 or later; "+
		"this "+
		"broker, %s, does not have it: it would bring failed messages back at once. Use the strategy %s or %s", e.Queue,
		e.Version, config.StrategyQueues, config.StrategyCycle)
}
