package tests

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

type variant struct {
	name        string
	queueType   string
	stock       bool // amqp.NewSubscriber on Retrier.Config instead of Retrier.NewSubscriber
	concurrency int
	publisher   bool // Retrier.NewPublisher instead of amqp.NewPublisher
	short       bool // the suite's own short form: fewer messages
}

func variants() []variant {
	all := []variant{
		{"own/classic", "classic", false, 1, true, false},
		{"own/quorum", "quorum", false, 1, true, false},
		{"own/classic/concurrency8", "classic", false, 8, true, false},
		{"own/quorum/concurrency8", "quorum", false, 8, true, false},
		{"own/quorum/stock publisher", "quorum", false, 1, false, false},
		{"stock/classic", "classic", true, 1, false, false},
		{"stock/quorum", "quorum", true, 1, false, false},
	}
	if os.Getenv("MATRIX") == "full" {
		return all
	}
	some := []variant{all[0], all[3], all[6]}
	some[0].short, some[2].short = true, true // whole where most is ours: consumer, publisher, in parallel

	return some
}

func inMakeTest(some []variant) []variant {
	if testing.Short() {
		return some[1:2]
	}

	return some
}

func features(v variant, groups bool) tests.Features {
	return tests.Features{
		ConsumerGroups:                      groups,
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     v.concurrency == 1,
		GuaranteedOrderWithSingleSubscriber: v.concurrency == 1,
		Persistent:                          true,
		ForceShort:                          v.short,
	}
}

// suitePolicies are those of the suite, whose handlers nack and never fail. It subscribes to
// hundreds of topics, so each has as few queues as can be.
var suitePolicies = config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second}}}

// queueArguments gives a main queue its type. The delivery limit of a quorum queue counts the
// suite's plain nacks.
func queueArguments(queueType string) amqp091.Table {
	if queueType == "quorum" {
		return amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000)}
	}

	return amqp091.Table{"x-queue-type": "classic"}
}

func newPubSub(t *testing.T, conf amqp.Config, v variant) (message.Publisher, message.Subscriber) {
	t.Helper()

	conf.Queue.Arguments = queueArguments(v.queueType)
	conf = confirmed(conf) // what its publisher loses, the suite would blame on the subscriber
	logger := watermill.NopLogger{}

	retrier := must(adapter.New(conf, amqpretry.Options{
		Logger: logger, Concurrency: v.concurrency, CloseTimeout: 3 * time.Second,
		Policies: withLadder(suitePolicies),
	}))(t)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })

	publisher := newSuitePublisher(t, retrier, v)

	if v.stock {
		subscriber := must(amqp.NewSubscriber(retrier.Config(), logger))(t)

		return publisher, subscriber
	}

	subscriber := must(retrier.NewSubscriber())(t)

	return publisher, subscriber
}

func newSuitePublisher(t *testing.T, retrier *adapter.Retrier, v variant) message.Publisher {
	t.Helper()
	if v.publisher {
		// The suite publishes before anybody has subscribed to a fan-out.
		own := must(retrier.NewPublisherWith(publish.Options{IgnoreUnroutable: true}))(t)

		return own
	}
	stock := must(amqp.NewPublisher(retrier.Config(), watermill.NopLogger{}))(t)

	return stock
}

// TestWatermillSuiteQueue runs Watermill's own suite over the durable queue config.
func TestWatermillSuiteQueue(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			uri := brokertest.URI(t)
			tests.TestPubSub(t, features(v, false), func(t *testing.T) (message.Publisher, message.Subscriber) {
				return newPubSub(t, amqp.NewDurableQueueConfig(uri), v)
			}, nil)
		})
	}
}

// TestWatermillSuitePubSub runs it over the durable pub/sub config with consumer groups.
func TestWatermillSuitePubSub(t *testing.T) {
	t.Parallel()
	for _, v := range inMakeTest(variants()) {
		t.Run(v.name, func(t *testing.T) {
			uri := brokertest.URI(t)
			group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
				return newPubSub(t,
					amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name)), v)
			}
			tests.TestPubSub(t, features(v, true), func(t *testing.T) (message.Publisher, message.Subscriber) {
				return group(t, "test")
			}, group)
		})
	}
}

// TestWatermillSuiteGroups runs Watermill's own suite over groups of one retrier: all of its tests
// at the same time over one connection.
func TestWatermillSuiteGroups(t *testing.T) {
	t.Parallel()
	for _, v := range inMakeTest(variants()) {
		if v.stock { // there are no groups
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			conf := amqp.NewDurablePubSubConfig(brokertest.URI(t), amqp.GenerateQueueNameTopicName)
			conf.Queue.Arguments = queueArguments(v.queueType)
			conf.Publish.ConfirmDelivery = true
			logger := watermill.NopLogger{}
			retrier := must(adapter.New(conf, amqpretry.Options{
				Logger: logger, Concurrency: v.concurrency, CloseTimeout: 3 * time.Second,
				Policies: withLadder(suitePolicies),
			}))(t)
			t.Cleanup(func() { require.NoError(t, retrier.Close()) })

			group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
				publisher := must(amqp.NewPublisher(retrier.Config(), logger))(t)
				subscriber := must(retrier.Group(name).NewSubscriber())(t)

				return publisher, subscriber
			}
			tests.TestPubSub(t, features(v, true), func(t *testing.T) (message.Publisher, message.Subscriber) {
				return group(t, "test")
			}, group)
		})
	}
}

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
