package tests

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
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

// With STRATEGY=redelivery or another strategy of the broker, services of the tests have it where
// it can do what their policies say, and their main queues are quorum queues, unless the test says
// otherwise. STRATEGY=ladder is exactMode.
var strategyMode = strategyOf(os.Getenv("STRATEGY"))

func strategyOf(name string) config.Strategy {
	strategy := config.Strategy(name)
	if name != "" && !slices.Contains(strategy.Choices(), name) {
		panic(fmt.Sprintf("STRATEGY is %q, and not one of %q", name, strategy.Choices()))
	}
	if !strategy.ByBroker() {
		return ""
	}

	return strategy
}

// withStrategy gives the policies of a test the strategy. A policy stays as it is if it says
// something of retry queues or of a strategy, if the strategy cannot do what it says, or if the
// main queue has other arguments.
func withStrategy(conf amqp.Config, o amqpretry.Options) amqpretry.Options {
	if strategyMode == "" || o.AssumeTopology {
		return o
	}
	given := o.Policies
	can := func(policies config.Policies, topic string) bool {
		policy := policies.For(topic)
		plan, err := topology.New("queue", policy, topology.Names{})
		return err == nil && policy.Validate() == nil && len(plan.MainConflicts(conf.Queue.Arguments)) == 0
	}

	o.Policies = config.Policies{Default: given.Default, Topics: maps.Clone(given.Topics)}
	if isOpen(given.Default) {
		o.Policies.Default.Strategy = strategyMode
		if !can(config.Policies{Default: o.Policies.Default}, "any") {
			o.Policies.Default.Strategy = given.Default.Strategy
		}
	}
	for topic, policy := range given.Topics {
		if !isOpen(policy) || !isOpen(given.Default) {
			continue
		}
		policy.Strategy = strategyMode
		o.Policies.Topics[topic] = policy
		if !can(o.Policies, topic) {
			policy.Strategy = config.StrategyQueues // not that of the default
			o.Policies.Topics[topic] = policy
		}
	}

	return o
}

// withoutStrategy is for services whose subscriber has no strategy but copies.
func withoutStrategy(p config.Policies) config.Policies {
	if strategyMode == "" || p.Default.Strategy != "" {
		return p
	}
	p.Default.Strategy = config.StrategyQueues

	return p
}

func isOpen(p config.Policy) bool {
	return p.Strategy == "" && (p.Mode == "" || p.Mode == config.ModeRetry)
}
