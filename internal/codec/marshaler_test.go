package codec

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

var nan = math.NaN()

func TestHeaderText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))

	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"void":             {nil, ""},
		"string":           {"a\xff", "a\xff"},
		"bytes of text":    {[]byte("世"), "世"},
		"other bytes":      {[]byte{0xff, 0}, "/wA="},
		"no bytes":         {[]byte(nil), ""},
		"true":             {true, "true"},
		"false":            {false, "false"},
		"byte":             {byte(255), "255"},
		"int8":             {int8(-128), "-128"},
		"int16":            {int16(-300), "-300"},
		"uint16":           {uint16(65535), "65535"},
		"int32":            {int32(math.MinInt32), "-2147483648"},
		"uint32":           {uint32(math.MaxUint32), "4294967295"},
		"int64":            {int64(math.MaxInt64), "9223372036854775807"},
		"float32":          {float32(0.1), "0.1"},
		"float64":          {0.1, "0.1"},
		"large float":      {1e21, "1e+21"},
		"not a number":     {nan, "NaN"},
		"infinite":         {math.Inf(-1), "-Inf"},
		"time":             {at, "2026-01-02T02:04:05Z"},
		"decimal":          {amqp091.Decimal{Scale: 2, Value: 12345}, "123.45"},
		"whole decimal":    {amqp091.Decimal{Scale: 0, Value: -7}, "-7"},
		"small decimal":    {amqp091.Decimal{Scale: 3, Value: 7}, "0.007"},
		"below one":        {amqp091.Decimal{Scale: 2, Value: 45}, "0.45"},
		"negative decimal": {amqp091.Decimal{Scale: 2, Value: -5}, "-0.05"},
		"lowest decimal":   {amqp091.Decimal{Scale: 1, Value: math.MinInt32}, "-214748364.8"},
		"list": {[]any{"a", int64(1), nil, true, at, []byte{0xff}, []byte("x"),
			amqp091.Decimal{Scale: 1, Value: 5}}, `["a",1,null,true,"2026-01-02T02:04:05Z","/w==","x","0.5"]`},
		"table":           {amqp091.Table{"b": []any{}, "a": amqp091.Table{"x": 0.5}}, `{"a":{"x":0.5},"b":[]}`},
		"no JSON numbers": {[]any{nan, math.Inf(1), float32(math.Inf(-1))}, `["NaN","+Inf","-Inf"]`},
		"empty list":      {[]any{}, `[]`},
		"empty table":     {amqp091.Table{}, `{}`},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, HeaderText(test.value)) })
	}
}

func TestDecimalText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := amqp091.Decimal{Scale: rapid.ByteRange(0, 12).Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}

		var got float64
		_, err := fmt.Sscan(decimalText(d), &got)
		require.NoError(t, err)
		require.InEpsilon(t, 1+math.Abs(float64(d.Value)), 1+math.Abs(got)*math.Pow10(int(d.Scale)), 1e-9)
		require.Equal(t, d.Value < 0, got < 0)
	})
}

// marshalerFunc is a user's marshaler.
type marshalerFunc func(amqp091.Delivery) (*message.Message, error)

func (marshalerFunc) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{}, nil
}

func (f marshalerFunc) Unmarshal(d amqp091.Delivery) (*message.Message, error) { return f(d) }

func TestDecodeShowsTheMarshalerPlainHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := hostile.AnyDelivery(10).Draw(t, "delivery")
		before := fmt.Sprintf("%#v", d)

		msg, err := Decode(marshalerFunc(func(seen amqp091.Delivery) (*message.Message, error) {
			for key, value := range d.Headers {
				text, shown := seen.Headers[key]
				require.Equal(t, !header.IsOwn(key) && (!header.IsBroker(key) || header.IsOpt(key)), shown, key)
				if shown {
					require.Equal(t, HeaderText(value), text)
				}
			}
			require.Equal(t, d.Body, seen.Body)
			require.Equal(t, d.MessageId, seen.MessageId)

			for key := range seen.Headers { // whatever it does
				delete(seen.Headers, key)
			}
			seen.Headers["new"] = "x"
			seen.Body[0] = 'X'

			return message.NewMessage("", seen.Body), nil
		}), &d)

		require.NoError(t, err)
		msg.Payload[1] = 'X'
		require.Equal(t, before, fmt.Sprintf("%#v", d), "what goes into a retry is what arrived")
	})
}

// Watermill's own marshaler refuses all but strings; through us it takes everything.
func TestDecodeWithWatermillsMarshaler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := hostile.AnyDelivery(10).Draw(t, "delivery")

		msg, err := Decode(amqp.DefaultMarshaler{}, &d)
		require.NoError(t, err)
		for key := range msg.Metadata {
			require.False(t, header.IsOwn(key) || header.IsBroker(key), key)
		}

		r := Undecoded(&d)
		require.Equal(t, d.Body, []byte(r.Payload))
		require.Empty(t, r.UUID)
		for key, value := range d.Headers {
			if !header.IsOwn(key) && !header.IsBroker(key) {
				require.Equal(t, HeaderText(value), r.Metadata[key])
			}
		}
	})
}

func TestDecodeTellsEveryRejection(t *testing.T) {
	errBad := errors.New("bad")

	gives := func(msg *message.Message, err error) marshalerFunc {
		return func(amqp091.Delivery) (*message.Message, error) { return msg, err }
	}
	panics := func(value any) marshalerFunc {
		return func(amqp091.Delivery) (*message.Message, error) { panic(value) }
	}
	for name, test := range map[string]struct {
		marshaler marshalerFunc
		want      string
	}{
		"error":       {gives(nil, errBad), "bad"},
		"both":        {gives(message.NewMessage("", nil), errBad), "bad"},
		"neither":     {gives(nil, nil), "marshaler gave neither a message nor an error"},
		"panic":       {panics("oh"), "marshaler panicked: oh"},
		"panic error": {panics(errBad), "marshaler panicked: bad"},
		"panic nil":   {panics(nil), "marshaler panicked: panic called with nil argument"},
		"index": {func(d amqp091.Delivery) (*message.Message, error) {
			return message.NewMessage(string(d.Body[9]), nil), nil
		}, "marshaler panicked: runtime error: index out of range [9] with length 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(test.marshaler, &amqp091.Delivery{})
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestPublishStripsOurHeaders(t *testing.T) {
	msg := message.NewMessage("uuid", []byte("x"))
	for _, test := range []struct {
		metadata message.Metadata
		want     amqp091.Table
	}{
		{message.Metadata{"a": "b", "amqpretry-count": "1", "amqpretry-queue": "q", "x-death": "forged",
			"reason_poisoned": "r"}, amqp091.Table{"a": "b", "reason_poisoned": "r"}},
		{message.Metadata{"x-delay": "5"}, amqp091.Table{"x-delay": "5"}},
		{message.Metadata{"CC": "audit", "amqpretry-count": "1"}, amqp091.Table{"CC": "audit"}}, // its own routing
	} {
		msg.Metadata, test.want[amqp.DefaultMessageUUIDHeaderKey] = test.metadata, "uuid"
		p, err := Publish(amqp.DefaultMarshaler{}, msg)
		require.NoError(t, err)
		assert.Equal(t, test.want, p.Headers)
	}

	_, err := Publish(failingMarshaler{}, msg)
	assert.EqualError(t, err, "no")
}

type failingMarshaler struct{ marshalerFunc }

func (failingMarshaler) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Headers: amqp091.Table{"amqpretry-v": "1"}}, errors.New("no")
}
