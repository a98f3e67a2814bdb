package tests

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

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
