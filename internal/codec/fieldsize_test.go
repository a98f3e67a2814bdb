package codec

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
)

func TestFieldSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := hostile.AnyField(3).Draw(t, "value")

		var e fakebroker.Encoder
		e.Field(value)
		require.Equal(t, e.Len(), fieldSize(value))
	})
}

func TestFieldSizeOfEveryType(t *testing.T) {
	for _, value := range []any{
		nil, true, byte(1), int8(1), int16(1), uint16(1), int32(1), uint32(1), 1, int64(1), float32(1), float64(1),
		amqp091.Decimal{Scale: 1, Value: 1}, time.Unix(1, 0), "text", []byte("bytes"), []any{"x", int64(1), []any{}},
		amqp091.Table{"x": int64(1), "y": amqp091.Table{"z": nil}},
	} {
		require.NoError(t, amqp091.Table{"": value}.Validate(), "%T is one of amqp091's types", value)

		var e fakebroker.Encoder
		e.Field(value)
		assert.Equal(t, e.Len(), fieldSize(value), "%T", value)
	}
	assert.Zero(t, fieldSize(struct{}{}))
}

func TestHeaderFrameSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := amqp091.Publishing{
			Headers:      hostile.AnyTable(2, 8).Draw(t, "headers"),
			DeliveryMode: 2, Priority: 1, Timestamp: time.Unix(1, 0),
			ContentType: hostile.AnyShort().Draw(t, "content type"), ContentEncoding: hostile.AnyShort().Draw(t,
				"encoding"),
			CorrelationId: hostile.AnyShort().Draw(t, "correlation"), ReplyTo: hostile.AnyShort().Draw(t, "reply"),
			Expiration: hostile.AnyShort().Draw(t, "expiration"), MessageId: hostile.AnyShort().Draw(t, "id"),
			Type:   hostile.AnyShort().Draw(t, "type"),
			UserId: hostile.AnyShort().Draw(t, "user"), AppId: hostile.AnyShort().Draw(t, "app"),
			Body: []byte("does not count"),
		}
		p.Headers["one"] = "at least"
		require.Equal(t, len(fakebroker.HeaderFrame(p)), headerFrameSize(p))

		p.DeliveryMode, p.Priority, p.Timestamp = 0, 0, time.Time{}
		require.Equal(t, len(fakebroker.HeaderFrame(p))+10, headerFrameSize(p), "what is not set is counted: never "+
			"too little")
	})

	assert.Equal(t, len(fakebroker.HeaderFrame(amqp091.Publishing{}))+10+4, headerFrameSize(amqp091.Publishing{}))
}
