package consumer

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
)

// BenchmarkStock is the way of a healthy message through a stock subscriber, without a broker and a
// router: from its delivery to its acknowledgement.
func BenchmarkStock(b *testing.B) {
	handler := func(*message.Message) ([]*message.Message, error) { return nil, nil }

	b.Run("alone", func(b *testing.B) { healthy(b, amqp.DefaultMarshaler{}.Unmarshal, handler) })
	b.Run("retrier", func(b *testing.B) {
		queue := testSource(config.Policy{}.WithDefaults())
		engine := &engine.Engine{Logger: watermill.NopLogger{}}
		s := Stock{
			Captures: NewCaptures(), Engine: engine, Logger: watermill.NopLogger{},
			Queue: func(string) (*Queue, error) { return &queue, nil },
		}
		healthy(b, func(d amqp091.Delivery) (*message.Message, error) {
			return s.Captures.Unmarshal(amqp.DefaultMarshaler{}, d), nil
		}, s.Middleware(middleware.Retry{Of: engine}.Middleware(handler)))
	})
}

func healthy(b *testing.B, unmarshal func(amqp091.Delivery) (*message.Message, error), h message.HandlerFunc) {
	b.ReportAllocs()
	body := make([]byte, 130)
	for b.Loop() {
		d := amqp091.Delivery{
			Acknowledger: acknowledger{}, Body: append([]byte(nil), body...),
			Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: "0f2b2d5c-8c4f-4c8a-9d3c-0b9f0a3a5a11",
				"kind": "order"},
		}
		msg, err := unmarshal(d)
		require.NoError(b, err)
		ctx, cancel := context.WithCancel(b.Context())
		msg.SetContext(ctx)
		if _, err := h(msg); err != nil {
			b.Fatal(err)
		}
		msg.Ack()
		<-msg.Acked()
		cancel()
	}
}
