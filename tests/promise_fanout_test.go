package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

func noOptions() amqpretry.Options { return amqpretry.Options{} }

// P5: of two consumer groups only the one that fails gets the message again, and only its
// dead-letter queue gets it.
func TestP5_OnlyTheQueueThatFailedGetsTheRetry(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		uri, topic := brokertest.URI(t), uniqueName("events")
		group := func(name string, s *seen, h func(*message.Message) error) *service {
			c := setup{Delays: ms(60, 80), URI: uri, Queue: topic, Handler: s.handler(h)}
			c.Configure = func(conf *amqp.Config) {
				*conf = amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
				conf.Queue.Arguments = mainQueueArguments(queueType)
			}

			return start(t, c)
		}

		var a, b seen
		failTwice := failing(2)
		broker := newRabbit(t, uri)
		t.Cleanup(func() { // behind the services
			_ = broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
		})
		group("a", &a, func(msg *message.Message) error {
			if msg.UUID == "dead" {
				return failing(9)(msg)
			}

			return failTwice(msg)
		})
		group("b", &b, succeed)

		broker.PublishTo(topic, "", rabbit.Messages("twice", "dead", "twice-too")...)
		await.Until(t, func() bool { return a.count() == 9 && b.count() == 3 }, "a: 9, b: 3")
		letter := broker.Take(topic+"_a.dlq", 1)[0]
		await.Stays(t, 300*time.Millisecond, func() bool {
			return a.count() == 9 && b.count() == 3
		}, "nothing more comes to either")

		assert.Equal(t, "dead", rabbit.UUID(letter))
		hasHeaders(t, letter, headers{header.Queue: topic + "_a", header.Topic: topic, header.Exchange: topic})
		for _, id := range []string{"twice", "dead", "twice-too"} {
			assert.Len(t, a.of(id), 3, id)
			assert.Len(t, b.of(id), 1, id)
			assert.Equal(t, 1, b.of(id)[0].Attempt.Number, id)
		}
		assert.Zero(t, broker.Depth(topic+"_b.dlq"))
		queues := []string{"_a", "_b"}
		if !exactMode {
			queues = append(queues, "_a.retry.60ms", "_b.retry.60ms", "_b.retry.80ms")
		}
		for _, queue := range queues {
			assert.Zero(t, broker.Depth(topic+queue), queue)
		}
	})
}
