package tests

import (
	"cmp"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// With STRATEGY=ladder, services of the tests have exact delays, unless their test is about retry
// queues. They share a ladder, as services of one virtual host do.
var exactMode = os.Getenv("STRATEGY") == string(config.StrategyLadder)

var exactModeLadder = config.Ladder{Prefix: uniqueName("exact-mode"), Unit: 10 * time.Millisecond, Levels: 8}

// withLadder makes the policies of a test exact, as far as they say nothing of retry queues.
func withLadder(p config.Policies) config.Policies {
	if !exactMode {
		return p
	}
	exact := func(policy config.Policy) config.Policy {
		if policy.Strategy.ByBroker() || policy.Mode != "" && policy.Mode != config.ModeRetry {
			return policy
		}
		if policy.Strategy == "" && policy.ClassicQueues {
			policy.Strategy = config.StrategyQueues
		}
		policy.Strategy = cmp.Or(policy.Strategy, config.StrategyLadder)
		if policy.Ladder.IsZero() {
			policy.Ladder = exactModeLadder
		}

		return policy
	}
	p.Default = exact(p.Default)
	p.Topics = maps.Clone(p.Topics)
	for topic, policy := range p.Topics {
		if policy.ClassicQueues {
			p.Topics[topic] = exact(policy)
		}
	}

	return p
}

func TestMain(m *testing.M) {
	ladders := []topology.Ladder{{Config: exactModeLadder}, {Config: commonLadder}}
	for _, ladder := range ladders {
		rabbit.SharedLadders = append(rabbit.SharedLadders, ladder.Name())
	}
	code := m.Run()
	if uri := os.Getenv("AMQP_URI"); uri != "" {
		for _, ladder := range ladders {
			removeLadder(uri, ladder.Shared())
		}
	}
	os.Exit(code)
}

func removeLadder(uri string, shared topology.Plan) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return
	}
	for _, q := range shared.Queues {
		_, _ = channel.QueueDelete(q.Name, false, false, false)
	}
	for _, x := range shared.Exchanges {
		_ = channel.ExchangeDelete(x.Name, false, false)
	}
}
