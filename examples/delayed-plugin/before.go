package main

import (
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// declareDelayed declares the plugin's exchange, which holds a message for as long as its header
// x-delay says.
func declareDelayed(channel *amqp091.Channel, queue string) error {
	err := channel.ExchangeDeclare("delayed", "x-delayed-message", true, false, false, false,
		amqp091.Table{"x-delayed-type": "direct"})
	if err != nil {
		return err
	}

	return channel.QueueBind(queue, queue, "delayed", false, nil)
}

// retryByPlugin is a middleware as services write it. It counts in a header, publishes a copy that
// the exchange delays, and acknowledges without knowing whether a queue will get the copy: the
// plugin confirms and routes later.
func retryByPlugin(channel *amqp091.Channel, queue string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				return produced, nil
			}
			failures, _ := strconv.Atoi(msg.Metadata.Get("failures"))
			if failures == len(delays) {
				return nil, nil // given up: the message is gone
			}
			return nil, channel.PublishWithContext(msg.Context(), "delayed", queue, false, false, amqp091.Publishing{
				DeliveryMode: amqp091.Persistent, Body: msg.Payload,
				Headers: amqp091.Table{
					"x-delay": delays[failures].Milliseconds(), "failures": strconv.Itoa(failures + 1),
				},
			})
		}
	}
}

// publishLaterByPlugin publishes a message that the exchange holds for a delay.
func publishLaterByPlugin(ctx context.Context, channel *amqp091.Channel, queue, id string, after time.Duration) error {
	return channel.PublishWithContext(ctx, "delayed", queue, false, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Body: []byte(id), Headers: amqp091.Table{"x-delay": after.Milliseconds()},
	})
}

var _ = []any{declareDelayed, retryByPlugin, publishLaterByPlugin}
