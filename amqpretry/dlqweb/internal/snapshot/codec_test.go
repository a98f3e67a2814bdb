package snapshot

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

// Each test makes generators anew: rapid names one while another goroutine draws from it, which is
// a data race.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 20).Draw(t, "long") == 0 {
			of := rapid.SampledFrom([]string{"x", "é", "\xff"}).Draw(t, "of")
			return strings.Repeat(of, rapid.IntRange(1, 70_000).Draw(t, "n"))
		}
		return string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
	})
}

// anyBytes has nil and what is empty.
func anyBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.SampledFrom([][]byte{nil, {}}))
}

// anyTime is in no zone with a name: that comes back as one without.
func anyTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		at := time.Unix(rapid.OneOf(rapid.Int64Range(-62135596800, 253402300799), rapid.Int64(),
			rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -62135596800, 0})).Draw(t, "seconds"),
			rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds"))
		if offset := rapid.IntRange(-14*3600, 14*3600).Draw(t, "offset"); offset != 0 && !at.IsZero() {
			return at.In(time.FixedZone("", offset))
		}
		return at.UTC()
	})
}

// anyValue is what amqp091-go reads of a header.
func anyValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Int32().AsAny(),
		rapid.Int64().AsAny(), rapid.Uint8().AsAny(), rapid.Uint16().AsAny(), rapid.Uint32().AsAny(),
		rapid.Uint64().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(), anyText().AsAny(), anyBytes().AsAny(),
		anyTime().AsAny(), rapid.Custom(func(t *rapid.T) any {
			return amqp091.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
	}
	if depth > 0 {
		kinds = append(kinds, rapid.SliceOfN(anyValue(depth-1), 0, 5).AsAny(), anyTable(depth-1).AsAny(),
			rapid.Just[any]([]any(nil)))
	}

	return rapid.OneOf(kinds...)
}

func anyTable(depth int) *rapid.Generator[amqp091.Table] {
	return rapid.Custom(func(t *rapid.T) amqp091.Table {
		return rapid.MapOfN(anyText(), anyValue(depth), 0, 6).Draw(t, "table")
	})
}

// anyDeadLetter is one of any field.
func anyDeadLetter() *rapid.Generator[*dlq.DeadLetter] {
	return rapid.Custom(func(t *rapid.T) *dlq.DeadLetter {
		l := &dlq.DeadLetter{Position: rapid.Int().Draw(t, "position")}
		for _, text := range []*string{&l.UUID, (*string)(&l.Reason), &l.Error, &l.ErrorType, &l.Queue, &l.Topic,
			&l.Handler, &l.Host, &l.Exchange, &l.RoutingKey, &l.Expiration, &l.UserID, &l.Trace, &l.Removed,
			&l.CameBy.Exchange, &l.CameBy.RoutingKey, &l.Unreadable, &l.Message.ContentType, &l.Message.ContentEncoding,
			&l.Message.CorrelationId, &l.Message.ReplyTo, &l.Message.Expiration, &l.Message.MessageId, &l.Message.Type,
			&l.Message.UserId, &l.Message.AppId} {
			*text = anyText().Draw(t, "text")
		}
		for _, at := range []*time.Time{&l.FirstFailure, &l.LastFailure, &l.Since, &l.Deadline, &l.Message.Timestamp} {
			*at = anyTime().Draw(t, "time")
		}
		l.Calls, l.Replays = rapid.Int().Draw(t, "calls"), rapid.Int().Draw(t, "replays")
		l.History = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) retry.FailedCall {
			return retry.FailedCall{Number: rapid.Int().Draw(t, "number"), At: anyTime().Draw(t, "at"),
				Error: anyText().Draw(t, "error"), Type: anyText().Draw(t, "type"),
				Reason: retry.Reason(anyText().Draw(t, "reason"))}
		}), 0, 3).Draw(t, "history")
		if len(l.History) == 0 {
			l.History = nil
		}
		before := "before"
		edit := dlq.Edit{At: time.Unix(7, 8).UTC(), By: "ann@host", Size: 3, SHA256: "00", Body: "{}",
			Headers: map[string]*string{"new": nil, "old": &before}, Properties: map[string]string{"type": ""}}
		l.Edits = rapid.SampledFrom([][]dlq.Edit{nil, {edit, {}}}).Draw(t, "edits")
		m := &l.Message
		m.DeliveryMode, m.Priority = rapid.Byte().Draw(t, "mode"), rapid.Byte().Draw(t, "priority")
		m.Body = anyBytes().Draw(t, "body")
		if rapid.Bool().Draw(t, "headers") {
			m.Headers = anyTable(3).Draw(t, "headers")
		}

		return l
	})
}

// normal has empty arrays for those that are nil: the broker sends the same for both.
func normal(value any) any {
	switch v := value.(type) {
	case []any:
		out := []any{}
		for _, element := range v {
			out = append(out, normal(element))
		}
		return out
	case amqp091.Table:
		if v == nil {
			return v
		}
		out := amqp091.Table{}
		for name, element := range v {
			out[name] = normal(element)
		}
		return out
	default:
		return value
	}
}

// A dead letter comes back from the file as it went in.
func TestCodec(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := anyDeadLetter().Draw(t, "dead letter")
		record, err := encode([]byte("before"), l)
		require.NoError(t, err)
		found, err := decode(record[len("before"):])
		require.NoError(t, err)
		l.Message.Headers, _ = normal(l.Message.Headers).(amqp091.Table)
		require.Equal(t, l, found)
	})
}

// A named zone loses its name, and neither the instant nor the time of day.
func TestCodecOfZones(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{
		time.Now(), time.Unix(1, 0).In(time.FixedZone("CET", 3600)), time.Unix(1, 0).In(time.FixedZone("WET", 0)),
		time.Date(1890, 1, 1, 0, 0, 0, 1, time.FixedZone("LMT", 1172)),
	} {
		l := &dlq.DeadLetter{Message: amqp091.Publishing{Timestamp: at}}
		record, err := encode(nil, l)
		require.NoError(t, err)
		found, err := decode(record)
		require.NoError(t, err)
		assert.True(t, at.Equal(found.Message.Timestamp))
		assert.Equal(t, at.Format(time.RFC3339Nano), found.Message.Timestamp.Format(time.RFC3339Nano))
	}
}

// A header that amqp091-go does not read is not kept, and no reason to keep something else.
func TestCodecOfAnotherType(t *testing.T) {
	t.Parallel()
	_, err := encode(nil, &dlq.DeadLetter{Message: amqp091.Publishing{Headers: amqp091.Table{"x": struct{}{}}}})
	require.ErrorContains(t, err, "struct {}")
}

// Whatever is damaged in a record, reading it is an error at worst.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		record, err := encode(nil, anyDeadLetter().Draw(t, "dead letter"))
		require.NoError(t, err)
		short := record[:rapid.IntRange(0, len(record)-1).Draw(t, "cut")]
		_, err = decode(short)
		require.Error(t, err)
		_, err = decode(append(record[:len(record):len(record)], 0))
		require.Error(t, err)

		for range rapid.IntRange(1, 4).Draw(t, "damages") {
			at := rapid.IntRange(0, len(record)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				record[at] = rapid.Byte().Draw(t, "byte")
			case 1: // a hostile length
				n := rapid.SampledFrom([]int64{-1, -2, math.MaxInt64, math.MinInt64, 1 << 40}).Draw(t, "length")
				record = append(binary.AppendVarint(record[:at:at], n), record[at:]...)
			default:
				record = append(record[:at:at], record[min(len(record), at+3):]...)
			}
			if len(record) == 0 {
				break
			}
		}
		_, _ = decode(record)
		_, _ = decode(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	})
}
