package amqpv3_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv3"
	"github.com/amqpretry/watermill-retry/config"
)

// builder records what it is told.
type builder struct {
	amqp.DefaultTopologyBuilder
	params []amqp.BuildTopologyParams
}

func (b *builder) BuildTopology(_ *amqp091.Channel, params amqp.BuildTopologyParams, _ amqp.Config,
	_ watermill.LoggerAdapter) error {
	b.params = append(b.params, params)
	return nil
}

// A user's builder is told what watermill-amqp v3 tells it without the retrier. (That everything
// else reaches the retrier is tested in package amqpretry, whose tests run over both versions.)
func TestBuilderIsToldTheTopic(t *testing.T) {
	t.Parallel()

	own := &builder{}
	conf := amqp.NewDurableTopicConfig(exampleURI, "shop", "shipping")
	conf.TopologyBuilder = own
	conf.QueueBind.GenerateRoutingKey = func(topic string) string { return "key of " + topic }
	retrier, err := amqpv3.New(conf,
		amqpretry.Options{Policies: config.Policies{Default: config.Policy{Mode: config.ModeOff}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })

	stock := retrier.Config()
	for _, topic := range []string{"paid", "returned"} {
		require.Equal(t, "shipping", stock.Queue.GenerateName(topic))
	}
	// The order is another than that of the names: what counts is the topic.
	for _, topic := range []string{"paid", "returned"} {
		require.NoError(t, stock.TopologyBuilder.BuildTopology(
			nil, amqp.BuildTopologyParams{Topic: topic, QueueName: "shipping", ExchangeName: "shop",
				RoutingKey: "ignored"}, stock, nil))
	}
	assert.Equal(t, []amqp.BuildTopologyParams{
		{Topic: "paid", QueueName: "shipping", ExchangeName: "shop", RoutingKey: "key of paid"},
		{Topic: "returned", QueueName: "shipping", ExchangeName: "shop", RoutingKey: "key of returned"},
	}, own.params)
}

// What watermill-amqp v3 would panic without has a default.
func TestConfigWithoutGeneratorAndBuilder(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurablePubSubConfig(exampleURI, amqp.GenerateQueueNameTopicName)
	conf.TopologyBuilder, conf.QueueBind.GenerateRoutingKey, conf.Consume.Qos.PrefetchCount = nil, nil, 0
	retrier, err := amqpv3.New(conf, amqpretry.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })

	stock := retrier.Config()
	assert.NotNil(t, stock.TopologyBuilder)
	assert.Empty(t, stock.QueueBind.GenerateRoutingKey("orders"))
	assert.Equal(t, amqpretry.DefaultPrefetch, stock.Consume.Qos.PrefetchCount)
	file, err := retrier.Definitions("orders")
	require.NoError(t, err)
	assert.Contains(t, string(file), `"routing_key": ""`)
}
