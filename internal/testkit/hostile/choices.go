package hostile

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// Choices makes things of the bytes that a fuzzer gives: each byte is a choice, and when there are
// no more, every choice is the first, which ends things.
type Choices struct{ data []byte }

// From takes them from data.
func From(data []byte) *Choices { return &Choices{data} }

// Byte is the next choice.
func (c *Choices) Byte() byte {
	if len(c.data) == 0 {
		return 0
	}
	b := c.data[0]
	c.data = c.data[1:]

	return b
}

// N is one of so many.
func (c *Choices) N(limit int) int { return int(c.Byte()) % limit }

// Bytes are the next n, or as many as there are.
func (c *Choices) Bytes(n int) []byte {
	n = min(n, len(c.data))
	b := c.data[:n:n]
	c.data = c.data[n:]

	return b
}

// Uint64 is a number of any size.
func (c *Choices) Uint64() uint64 {
	var b [8]byte
	copy(b[:], c.Bytes(8))

	return binary.BigEndian.Uint64(b[:])
}

// hostileKeys are those that somebody could want to forge.
var hostileKeys = []string{
	header.Count, header.Queue, header.Version, header.Delay, header.Death, header.Attempts, header.Replays,
	header.History,
	header.Error, header.ErrorType, header.Deadline, header.Since, header.NotBefore, header.LastFailure,
	header.FirstFailure,
	header.Exchange, header.RoutingKey, header.Expiration, header.UserID, header.CC, header.UUID, header.Reason,
	header.Topic,
	header.Handler, header.Host, header.Removed, header.ID, header.Retire, header.Trace, header.Prefix,
	header.Prefix + "future",
	header.Prefix + "\xff",
	header.DeliveryCount, header.AcquiredCount, header.BrokerCC, header.BrokerBCC, "x-first-death-queue",
	"x-last-death-reason",
	header.PoisonReason, header.PoisonTopic, header.PoisonHandler, header.PoisonSubscriber, "_watermill_message_uuid",
	"", "x-match",
}

var hostileTexts = []string{
	"", "orders", "1", "-1", "0", "2", "3", "30s", "1s", "-7", "1000000000", "99999999999999999999",
	"-9223372036854775808", "NaN", "1e9", "0x1", "٣", "+1", " 1",
	"2", "60s", "forever", "orders.retry", "orders.retry.30s", "orders.dlq", "canary", "amq.direct", "\x00", "\xff",
	"caf\xe9", "世",
	"2026-01-01T00:00:00.000Z", "1999-01-01T00:00:00Z", "9999-12-31T23:59:59.999+14:00", "0000-01-01T00:00:00Z", "now",
	`[{"n":1,"at":"2026-01-02T03:04:05.678Z","error":"x"}]`, `[{}]`, `[`, `[{"n":1e999}]`, "null",
	`[{"n":9223372036854775807,"error":"\ud800"}]`,
	"amq.rabbitmq.reply-to", "exhausted", "too-large", "expired", "rejected", "delivery_limit", "1h", "\u2028",
	"<script>", "\x1b[31m",
}

// Text makes a text of the kind that breaks things.
func (c *Choices) Text() string {
	switch c.N(8) {
	default:
		return hostileTexts[c.N(len(hostileTexts))]
	case 5:
		return string(c.Bytes(c.N(64)))
	case 6:
		return strings.Repeat(hostileTexts[c.N(len(hostileTexts))], c.N(256))
	case 7:
		return strings.Repeat(string(c.Bytes(1+c.N(4))), 1<<c.N(12))
	}
}

// Short is a text with room in a short string.
func (c *Choices) Short() string {
	s := c.Text()
	return s[:min(len(s), 255)]
}

// Key makes the name of a header.
func (c *Choices) Key() string {
	switch c.N(4) {
	default:
		return hostileKeys[c.N(len(hostileKeys))]
	case 2:
		return string(c.Bytes(c.N(16)))
	case 3:
		return c.Short()
	}
}

// Field makes a header value of any type that amqp091-go reads.
func (c *Choices) Field(depth int) any {
	switch c.N(20) {
	case 0, 1, 2, 3:
		return c.Text()
	case 4:
		return nil
	case 5:
		return c.N(2) == 1
	case 6:
		return c.Byte()
	case 7:
		return int8(c.Byte())
	case 8:
		return int16(c.Uint64())
	case 9:
		return uint16(c.Uint64())
	case 10:
		return int32(c.Uint64())
	case 11:
		return uint32(c.Uint64())
	case 12:
		return []int64{-1, 0, 1, 2, 99, 1e9, math.MaxInt64, math.MinInt64, int64(c.Uint64())}[c.N(9)]
	case 13:
		return math.Float32frombits(uint32(c.Uint64()))
	case 14:
		return []float64{math.NaN(), math.Inf(1), -1, 2, 1e300, math.Float64frombits(c.Uint64())}[c.N(6)]
	case 15:
		return amqp091.Decimal{Scale: c.Byte(), Value: int32(c.Uint64())}
	case 16:
		return []time.Time{time.Unix(int64(c.Uint64()), 0), time.Unix(math.MaxInt64, 0), time.Unix(-62135596800, 0),
			time.Unix(0, 0)}[c.N(4)]
	case 17:
		return []byte(c.Text())
	case 18:
		if depth == 0 {
			return []any(nil)
		}
		list := make([]any, c.N(5))
		for i := range list {
			list[i] = c.Field(depth - 1)
		}

		return list
	default:
		if depth == 0 {
			return amqp091.Table{}
		}

		return c.table(depth - 1)
	}
}

func (c *Choices) table(depth int) amqp091.Table {
	table := amqp091.Table{}
	for range c.N(16) {
		table[c.Key()] = c.Field(depth)
	}

	return table
}

// Delivery makes a message as a foreign publisher could have sent it, or as if it came from one of
// our own retry queues.
func (c *Choices) Delivery() amqp091.Delivery {
	d := amqp091.Delivery{
		DeliveryMode: c.Byte(), Priority: c.Byte(), ContentType: c.Short(), ContentEncoding: c.Short(),
		CorrelationId: c.Short(),
		ReplyTo:       c.Short(), Expiration: c.Short(), MessageId: c.Short(), Type: c.Short(), UserId: c.Short(),
		AppId:    c.Short(),
		Exchange: c.Short(), RoutingKey: c.Short(), Redelivered: c.N(4) == 3, Headers: c.table(3),
		Body: c.Bytes(c.N(32)),
	}
	if c.N(2) == 1 {
		d.Timestamp, _ = amqp091.Table{"t": time.Unix(int64(c.Uint64()>>c.N(64)), 0)}["t"].(time.Time)
	}
	for i := range max(0, c.N(16)-12) { // large ones
		d.Headers[fmt.Sprintf("large-%d", i)] = strings.Repeat("x", c.N(256)<<c.N(9))
	}
	if c.N(256) == 255 { // many
		for i := range 8000 + c.N(200) {
			d.Headers[fmt.Sprintf("%04x", i)] = nil
		}
	}
	if c.N(2) == 1 { // as good as ours
		d.Headers[header.Version], d.Headers[header.Queue] = header.FormatVersion, "orders"
		d.Headers[header.Count] = c.Field(1)
	}
	if c.N(2) == 1 {
		d.Headers[header.Delay] = c.Text()
		d.Headers[header.Death] = []any{amqp091.Table{"queue": "orders.retry." + c.Text(), "reason": c.Field(0),
			"count": c.Field(0)}, c.Field(2)}
	}

	return d
}
