package amqpretry_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// The file is what the pure function makes of the plans and of what watermill-amqp's builder would
// declare.
func definitions(t *testing.T, retrier *adapter.Retrier, topics ...string) string {
	t.Helper()
	file, err := retrier.Definitions(topics...)
	require.NoError(t, err)

	return string(file)
}

func TestDefinitionsAreWhatIsDeclared(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurablePubSubConfig("amqp://u:p@127.0.0.1:1/shop",
		amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
	conf.Queue.Arguments = amqp091.Table{"x-max-length": 5}
	conf.Exchange.Arguments = amqp091.Table{"alternate-exchange": "alt"}
	conf.Exchange.AutoDeleted, conf.Exchange.Internal = true, true
	conf.QueueBind.GenerateRoutingKey = func(name string) string { return "key of " + name }
	conf.QueueBind.Arguments = amqp091.Table{"n": 1}
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second}},
		Topics:  map[string]config.Policy{"b": {Mode: config.ModeDeadLetter, Protect: config.ProtectionArguments}},
	}
	retrier := retrierOf(t, conf, amqpretry.Options{Policies: policies})
	file := definitions(t, retrier, "a", "b", "a")

	mainQueue := func(topic string, arguments amqp091.Table) topology.MainQueue {
		plan, err := retrier.Plan(topic)
		require.NoError(t, err)

		return topology.MainQueue{
			Plan: plan, Arguments: arguments,
			Exchanges: []topology.Exchange{{
				Name: topic, Type: "fanout", Durable: true, AutoDelete: true, Internal: true,
				Arguments: amqp091.Table{"alternate-exchange": "alt"},
			}},
			Bindings: []topology.Binding{{Exchange: topic, Queue: plan.Queue, Key: "key of " +
				amqp.KeyOf(topic, plan.Queue), Arguments: amqp091.Table{"n": 1}}},
		}
	}
	protected := topology.ProtectArguments("b_billing.dlq")
	protected["x-max-length"] = 5
	expected, err := topology.Definitions("shop",
		mainQueue("a", amqp091.Table{"x-max-length": 5}),
		mainQueue("b", protected),
	)
	require.NoError(t, err)
	assert.Equal(t, string(expected), file)
	assert.Equal(t, file, definitions(t, retrier, "a", "b", "a"))
}

// With the default exchange there is none to define, and nothing to bind.
func TestDefinitionsOfTheDefaultExchange(t *testing.T) {
	t.Parallel()

	retrier := retrierOf(t, durable(),
		amqpretry.Options{Policies: config.Policies{Default: config.Policy{Mode: config.ModeOff}}})

	var f map[string][]map[string]any
	require.NoError(t, json.Unmarshal([]byte(definitions(t, retrier, "a")), &f))
	assert.Empty(t, f["exchanges"])
	assert.Empty(t, f["bindings"])
	assert.Equal(t, []map[string]any{{"name": "a", "vhost": "/", "durable": true, "auto_delete": false,
		"arguments": map[string]any{}}}, f["queues"])
}

// Everything that Subscribe would refuse, and what a file cannot say, is told at once; and the
// queue that can lose messages.
func TestDefinitionsRefuse(t *testing.T) {
	t.Parallel()

	conf := durable()
	conf.Queue.Arguments = amqp091.Table{"x-time": time.Now(), "x-dead-letter-routing-key": "elsewhere"}
	conf.Queue.GenerateName = func(topic string) string {
		return map[string]string{"a": "q", "b": "q", "c": "q.dlq", "d": "amq.d"}[topic]
	}
	retrier := retrierOf(t, conf, amqpretry.Options{Policies: config.Policies{
		Topics: map[string]config.Policy{"b": {Mode: config.ModeDeadLetter, Protect: config.ProtectionArguments}},
	}})

	file, err := retrier.Definitions("a", "b", "c", "d", "")
	assert.Nil(t, file)
	for _, part := range []string{
		`Config.Queue.Arguments["x-dead-letter-routing-key"]`, `topics "a" and "b" share queue "q"`,
		`"q.dlq": belongs to`, "amq. are the broker's own", "the name is empty", `arguments["x-time"]`,
	} {
		assert.ErrorContains(t, err, part)
	}

	_, err = retrier.Definitions()
	assert.Equal(t, []string{"topics"}, paths(err))
}

// What is only printed is not subscribed to: it stands in nobody's way.
func TestDefinitionsSubscribeToNothing(t *testing.T) {
	t.Parallel()

	conf := durable()
	conf.TopologyBuilder = (&builds{arguments: map[string]amqp091.Table{}}).builder()
	conf.Queue.GenerateName = func(string) string { return "shared" }
	retrier := retrierOf(t, conf, amqpretry.Options{Policies: config.Policies{
		Topics: map[string]config.Policy{"off": {Mode: config.ModeOff}},
	}})
	definitions(t, retrier, "a")

	stock := retrier.Config()
	require.NoError(t, amqp.BuildTopology(stock, "off", stock.Queue.GenerateName("off")))
}

// Who provisions a queue that can lose messages is told: the service that finds it cannot know.
func TestDefinitionsTellOfDrops(t *testing.T) {
	t.Parallel()

	conf := durable()
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	logger := watermill.NewCaptureLogger()
	retrier := retrierOf(t, conf, amqpretry.Options{Logger: logger, AssumeTopology: true,
		Policies: config.Policies{
			Topics: map[string]config.Policy{"protected": {Protect: config.ProtectionArguments}},
		}})
	definitions(t, retrier, "a", "protected", "a")

	told := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, told, 1)
	assert.Equal(t, canLose, told[0].Msg)
	assert.Equal(t, "a", told[0].Fields["topic"])
	assert.EqualError(t, told[0].Err, aboutLimits)
}

// Four times as many topics take about four times as long. Comparing each with all others would
// take sixteen times.
func TestDefinitionsOfManyTopics(t *testing.T) {
	t.Parallel()

	took := func(n int) time.Duration {
		topics := make([]string, n)
		for i := range topics {
			topics[i] = fmt.Sprintf("topic-%d", i)
		}
		retrier := retrierOf(t, durable(), amqpretry.Options{})
		began := time.Now()
		definitions(t, retrier, topics...)

		return time.Since(began)
	}
	few, many := time.Hour, time.Hour // the least of some, as the machine has others to serve
	for range 20 {
		few, many = min(few, took(250)), min(many, took(1000))
		if many < 10*few {
			return
		}
	}
	assert.Less(t, many, 10*few, "with 250 topics: %s", few)
}

// A main queue is defined with what its strategy needs, unless a policy of the broker gives it.
func TestDefinitionsUnderStrategies(t *testing.T) {
	t.Parallel()

	one := []time.Duration{time.Second}
	conf := durable()
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-max-length": 5}
	retrier := retrierOf(t, conf, amqpretry.Options{Policies: config.Policies{Topics: map[string]config.Policy{
		"cycle":      {Strategy: config.StrategyCycle, Delays: one},
		"redelivery": {Strategy: config.StrategyRedelivery},
		"native":     {Strategy: config.StrategyNative, Delays: one},
		"policy":     {Strategy: config.StrategyNative, Delays: one, Protect: config.ProtectionPolicy},
	}}})
	file := definitions(t, retrier, "cycle", "redelivery", "native", "policy")

	var f struct {
		Queues []struct {
			Name      string
			Arguments amqp091.Table
		}
	}
	require.NoError(t, json.Unmarshal([]byte(file), &f))
	found := map[string]amqp091.Table{}
	for _, q := range f.Queues {
		found[q.Name] = q.Arguments
	}
	for topic, wanted := range map[string][2]any{"cycle": {"x-dead-letter-exchange", "cycle.rejected.1s"},
		"redelivery": {"x-dead-letter-routing-key", "redelivery.dlq"}, "native": {"x-delayed-retry-type", "failed"}} {
		assert.Equal(t, wanted[1], found[topic][wanted[0].(string)], topic)
		assert.InDelta(t, 5, found[topic]["x-max-length"], 0, topic)
		plan, err := retrier.Plan(topic)
		require.NoError(t, err)
		assert.Len(t, found[topic], len(plan.MainArguments)+1, topic)
	}
	assert.Len(t, found["policy"], 2, "as its own config says")
}
