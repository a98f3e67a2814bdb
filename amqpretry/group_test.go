package amqpretry_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

func fanout() amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName)
}

func retrierOf(t *testing.T, conf amqp.Config, options amqpretry.Options) *adapter.Retrier {
	t.Helper()
	if options.Logger == nil {
		options.Logger = watermill.NopLogger{}
	}
	retrier, err := adapter.New(conf, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })

	return retrier
}

// Everything that is wrong with a group is told at once, by each of its methods, and before the
// broker is touched.
func TestGroupsAreChecked(t *testing.T) {
	t.Parallel()

	byTopic := durable()
	byTopic.Exchange.Type = "fanout"
	long := strings.Repeat("g", 256)
	for name, test := range map[string]struct {
		conf  amqp.Config
		group string
		paths []string
	}{
		"right":                     {fanout(), "billing", nil},
		"empty":                     {fanout(), "", []string{`Retrier.Group("")`}},
		"too long":                  {fanout(), long, []string{`Retrier.Group("` + long + `")`}},
		"a space":                   {fanout(), " ", []string{`Retrier.Group(" ")`}},
		"a space at its end":        {fanout(), "a ", []string{`Retrier.Group("a ")`}},
		"a control character":       {fanout(), "x\x00y", []string{`Retrier.Group("x\x00y")`}},
		"not UTF-8":                 {fanout(), "\xff", []string{`Retrier.Group("\xff")`}},
		"words":                     {fanout(), "bill und Söhne", nil},
		"no exchange":               {durable(), "billing", []string{"Config.Exchange.GenerateName"}},
		"both":                      {durable(), "", []string{`Retrier.Group("")`, "Config.Exchange.GenerateName"}},
		"no exchange for the topic": {byTopic, "billing", []string{"Config.Exchange.GenerateName"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			group := retrierOf(t, test.conf, amqpretry.Options{}).Group(test.group)
			_, plan := group.Plan("orders")
			_, definitions := group.Definitions("orders")
			_, policy := group.ProtectPolicy("orders")
			for _, err := range []error{plan, definitions, policy} {
				assert.Equal(t, test.paths, paths(err))
			}
			if test.paths == nil || name == "no exchange for the topic" {
				return
			}
			_, subscriber := group.NewSubscriber()
			_, letters := group.NewDeadLetterSubscriber()
			assert.Equal(t, []error{plan, plan}, []error{subscriber, letters})
		})
	}
}

// The error of a group in a config for queues says what to do.
func TestGroupWithoutExchange(t *testing.T) {
	t.Parallel()

	_, err := retrierOf(t, durable(), amqpretry.Options{}).Group("billing").NewSubscriber()
	assert.EqualError(t, err, `cannot use group "billing":
Config.Exchange.GenerateName: gives each topic the default exchange, which would bring nothing to a queue of group `+
		`"billing": must be a name, as with amqp.NewDurablePubSubConfig; or subscribe without a group `+
		`(Retrier.NewSubscriber)`)
}

// Names that the broker does not take are known with the topic.
func TestGroupQueuesAreChecked(t *testing.T) {
	t.Parallel()

	retrier := retrierOf(t, fanout(), amqpretry.Options{GroupQueue: func(topic, group string) string {
		return strings.ReplaceAll(group, "-", "\n") + strings.Repeat(topic, 10)
	}})
	for group, problem := range map[string]string{
		"a-b":                    "line break",
		"amq.billing":            "names that begin with amq. are the broker's own",
		strings.Repeat("g", 200): "the name has 260 bytes, the broker takes 255",
	} {
		_, plan := retrier.Group(group).Plan("orders")
		_, definitions := retrier.Group(group).Definitions("orders")
		for _, err := range []error{plan, definitions} {
			var name *topology.NameError
			require.ErrorAs(t, err, &name)
			assert.ErrorContains(t, err, problem)
			assert.ErrorContains(t, err, "which Options.GroupQueue has named")
		}
	}
}

// A group has the policies that are its own, or those of the retrier; and queues that are named for
// it.
func TestGroupPolicies(t *testing.T) {
	t.Parallel()

	delays := func(seconds ...time.Duration) config.Policy {
		p := config.Policy{}
		for _, s := range seconds {
			p.Delays = append(p.Delays, s*time.Second)
		}

		return p
	}
	options := amqpretry.Options{
		Policies: config.Policies{Default: delays(1), Topics: map[string]config.Policy{"orders": delays(2)}},
		Groups:   map[string]config.Policies{"own": {Topics: map[string]config.Policy{"mails": delays(3)}}},
	}
	retrier := retrierOf(t, fanout(), options)
	for _, test := range []struct{ group, topic, queue, first string }{
		{"billing", "mails", "mails_billing", "mails_billing.retry.1s"},
		{"billing", "orders", "orders_billing", "orders_billing.retry.2s"},
		{"own", "mails", "mails_own", "mails_own.retry.3s"},
		{"own", "orders", "orders_own", "orders_own.retry.1s"}, // config.Default, not Options.Policies
	} {
		plan, err := retrier.Group(test.group).Plan(test.topic)
		require.NoError(t, err)
		assert.Equal(t, test.queue, plan.Queue)
		assert.Equal(t, test.first, plan.Queues[0].Name)
		if test.topic == "orders" && test.group == "own" {
			assert.Equal(t, "orders_own.retry.5s", plan.Queues[1].Name)
		}
	}
	plan, err := retrier.Plan("orders")
	require.NoError(t, err)
	assert.Equal(t, "orders", plan.Queue, "without a group it is the config's")
	assert.Equal(t, "billing", retrier.Group("billing").String())
}

// What is wrong with the policies of groups is told with their fields.
func TestGroupPoliciesAreChecked(t *testing.T) {
	t.Parallel()

	short, protected := config.Policy{Delays: []time.Duration{1}}, config.Policy{Protect: config.ProtectionArguments}
	conf := fanout()
	conf.Queue.Arguments = map[string]any{"x-overflow": "drop-head"}
	_, err := adapter.New(conf, amqpretry.Options{Groups: map[string]config.Policies{
		"":  {},
		"a": {Default: short},
		"b": {Topics: map[string]config.Policy{"orders": short, "mails": protected}},
		"c": {Default: config.Policy{Strategy: config.StrategyRedelivery}},
	}, AssumeTopology: true})
	assert.Subset(t, paths(err), []string{`Options.Groups[""]`, `Options.Groups["a"].Default.Delays[0]`,
		`Options.Groups["b"].Topics["orders"].Delays[0]`})
	assert.ErrorContains(t, err, `the strategy redelivery of Options.Groups["c"].Default`)
	assert.ErrorContains(t, err, `the protection that Options.Groups["b"].Topics["mails"] asks for`)
}

// The definitions of a group are those of its queues, bound to the exchanges of the topics.
func TestDefinitionsOfAGroup(t *testing.T) {
	t.Parallel()

	group := retrierOf(t, fanout(), amqpretry.Options{}).Group("billing")
	file, err := group.Definitions("orders")
	require.NoError(t, err)
	var found struct {
		Exchanges []struct{ Name string }
		Bindings  []struct{ Source, Destination string }
	}
	require.NoError(t, json.Unmarshal(file, &found))
	assert.Contains(t, found.Exchanges, struct{ Name string }{"orders"})
	assert.Contains(t, found.Bindings, struct{ Source, Destination string }{"orders", "orders_billing"})
}
