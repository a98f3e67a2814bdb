package tests

import (
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

func address(t *testing.T, uri string) string {
	t.Helper()
	u := must(url.Parse(uri))(t)

	return u.Host
}

// nobody is a URI like that of the broker, at an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	u := must(url.Parse(brokertest.URI(t)))(t)
	u.Host = "127.0.0.1:1"

	return u.String()
}

// The first address is dead from the beginning, the second dies later: all of the retrier's
// connections go on with the third.
func TestAddressesMoveOn(t *testing.T) {
	t.Parallel()

	second, third := newProxy(t, brokertest.URI(t)), newProxy(t, brokertest.URI(t))
	svc := start(t, setup{
		URI: nobody(t),
		Options: amqpretry.Options{Policies: retries(ms(100, 100)...), Addresses: []string{address(t, second.URI),
			address(t, third.URI)}},
		Handler: byFate,
	})
	svc.Broker = newRabbit(t, brokertest.URI(t))

	svc.publish(fates(10)...)
	await.Until(t, func() bool {
		return svc.deadLettered() == 4 && svc.processed() == 6
	}, "all is done through the second")
	assert.NotZero(t, second.dialled(subscriber))
	assert.NotZero(t, second.dialled(forwarder))
	assert.Empty(t, third.matching(anyone))

	second.stop()
	svc.Broker.Publish(svc.Queue, rabbit.Messages(rabbit.Numbered("never-again", 5)...)...)
	await.Until(t, func() bool { return svc.deadLettered() == 9 }, "all is done through the third")
	assert.NotZero(t, third.dialled(subscriber))
	assert.NotZero(t, third.dialled(forwarder))
}

// Stock watermill-amqp, with the retrier's config, does the same.
func TestAddressesMoveOnStock(t *testing.T) {
	t.Parallel()

	second, third := newProxy(t, brokertest.URI(t)), newProxy(t, brokertest.URI(t))
	logs, queue := newLogs(t), uniqueName("addresses")
	conf := amqp.NewDurableQueueConfig(nobody(t))
	conf.Connection.Reconnect = fastReconnect()
	retrier := newRetrier(t, conf, amqpretry.Options{
		Policies: retries(ms(100)...), Logger: logs, Addresses: []string{address(t, second.URI), address(t, third.URI)},
	})
	broker := newRabbit(t, brokertest.URI(t))
	t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.100ms", queue+".dlq") })

	sub := must(amqp.NewSubscriber(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = sub.Close() })
	pub := must(amqp.NewPublisher(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = pub.Close() })
	messages := must(sub.Subscribe(t.Context(), queue))(t)

	got := make(chan string, 100)
	go func() {
		for msg := range messages {
			msg.Ack()
			got <- msg.UUID
		}
	}()
	arrives := func(id string, pub *amqp.Publisher) {
		t.Helper()
		await.Until(t, func() bool { return pub.Publish(queue, message.NewMessage(id, nil)) == nil })
		await.Until(t, func() bool {
			select {
			case found := <-got:
				return found == id
			default:
				return false
			}
		}, "%s arrives", id)
	}
	arrives("by the second", pub)
	second.stop()
	// A new publisher: that of watermill-amqp has a data race while it reconnects.
	again := must(amqp.NewPublisher(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = again.Close() })
	arrives("by the third", again)
	assert.NotEmpty(t, third.matching(anyone))
}
