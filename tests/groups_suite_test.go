package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

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
