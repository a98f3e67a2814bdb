package hostile

import (
	"math"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// anyKey draws the name of a header.
func anyKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z-]{1,12}`),
		rapid.Map(rapid.IntRange(1, 255), func(n int) string { return strings.Repeat("k", n) }),
		rapid.SampledFrom([]string{"", "\xff", "x-death", "CC", "x-delivery-count", "reason_poisoned", "amqpretry-v",
			"amqpretry-queue", "世"}),
	)
}

// AnyField draws a header value of any AMQP type.
func AnyField(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(), rapid.Byte().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(),
		rapid.Float64().AsAny(),
		rapid.SampledFrom([]any{math.NaN(), math.Inf(-1), float32(math.Inf(1)), "\xff", []byte("\xff"), []byte(nil),
			""}),
		rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return amqp091.Decimal{Scale: rapid.Byte().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
		rapid.Map(rapid.Int64(), func(s int64) any { return time.Unix(s, 0) }),
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}

	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(AnyField(depth-1), 0, 4).AsAny(),
		rapid.Map(AnyTable(depth-1, 4), func(t amqp091.Table) any { return t }),
	)...)
}

// AnyTable draws headers.
func AnyTable(depth, entries int) *rapid.Generator[amqp091.Table] {
	return rapid.Map(rapid.MapOfN(anyKey(), AnyField(depth), 0, entries), func(m map[string]any) amqp091.Table {
		return m
	})
}

// AnyShort draws a short string.
func AnyShort() *rapid.Generator[string] {
	return rapid.Map(rapid.SampledFrom([]int{0, 0, 1, 20, 255}), func(n int) string { return strings.Repeat("p", n) })
}

// AnyDelivery draws a message of any publisher.
func AnyDelivery(headers int) *rapid.Generator[amqp091.Delivery] {
	return rapid.Custom(func(t *rapid.T) amqp091.Delivery {
		return amqp091.Delivery{
			Headers: AnyTable(2, headers).Draw(t, "headers"), DeliveryMode: rapid.Byte().Draw(t, "mode"),
			Priority: rapid.Byte().Draw(t, "priority"), ContentType: AnyShort().Draw(t, "content type"),
			ContentEncoding: AnyShort().Draw(t, "encoding"), CorrelationId: AnyShort().Draw(t, "correlation"),
			ReplyTo: AnyShort().Draw(t, "reply"), Expiration: rapid.SampledFrom([]string{"", "60000"}).Draw(t,
				"expiration"),
			MessageId: AnyShort().Draw(t, "id"),
			Timestamp: time.Unix(rapid.Int64Range(0, 1e10).Draw(t, "timestamp"), 0),
			Type:      AnyShort().Draw(t, "type"), UserId: AnyShort().Draw(t, "user"), AppId: AnyShort().Draw(t, "app"),
			Exchange: AnyShort().Draw(t, "exchange"), RoutingKey: AnyShort().Draw(t, "routing key"),
			Body: []byte("body"),
		}
	})
}
