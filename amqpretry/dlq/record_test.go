package dlq

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// bits makes values comparable: a float is its bits, so that NaN is NaN and -0 is not 0; a time is
// its seconds. The kinds of nothing stay.
func bits(value any) any {
	switch v := value.(type) {
	case float32:
		return fmt.Sprintf("float32 %x", math.Float32bits(v))
	case float64:
		return fmt.Sprintf("float64 %x", math.Float64bits(v))
	case time.Time:
		return fmt.Sprintf("time %d", v.Unix())
	case []any:
		all := make([]any, 0, len(v))
		for _, element := range v {
			all = append(all, bits(element))
		}

		return all
	case amqp091.Table:
		if v == nil {
			return v
		}
		all := map[string]any{}
		for key := range v {
			all[key] = bits(v[key])
		}

		return all
	}

	return value
}

func requireSame(t require.TestingT, want, got amqp091.Publishing) {
	require.Equal(t, bits(want.Headers), bits(got.Headers))
	require.True(t, want.Timestamp.Equal(got.Timestamp), "%v %v", want.Timestamp, got.Timestamp)
	require.Equal(t, want.Body == nil, got.Body == nil)
	want.Headers, want.Timestamp, got.Headers, got.Timestamp = nil, time.Time{}, nil, time.Time{}
	require.Equal(t, want, got)
}

// text gives valid text mostly, and any bytes.
func text(most int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.OneOf(
			rapid.StringN(0, -1, most),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, most), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"", "base64:", "base64:/w==", "\u2028\u009b31m\x1b\x7f\u202e",
				"\u0080\u009f\u202a\u2066\u2069", "<&>", "\"\\\n\t\r\b\f\x00", "\xed\xa0\x80", "😀"}),
		).Draw(t, "text")

		return s[:min(len(s), most)]
	})
}

func moment() *rapid.Generator[time.Time] {
	return rapid.Map(rapid.OneOf(rapid.Int64(), rapid.Int64Range(firstSecond-2, lastSecond+2)),
		func(s int64) time.Time { return time.Unix(s, 0) })
}

func value(depth int) *rapid.Generator[any] {
	as := func(gens ...*rapid.Generator[any]) *rapid.Generator[any] { return rapid.OneOf(gens...) }
	leaf := as(
		text(300).AsAny(), rapid.Just[any](nil), rapid.Bool().AsAny(),
		rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Int32().AsAny(), rapid.Int64().AsAny(),
		rapid.Uint8().AsAny(), rapid.Uint16().AsAny(), rapid.Uint32().AsAny(), rapid.Float32().AsAny(),
		rapid.Float64().AsAny(),
		rapid.Map(rapid.Uint32(), func(n uint32) any { return math.Float32frombits(n | 0x7f800000) }),
		rapid.Map(rapid.Uint64(), func(n uint64) any { return math.Float64frombits(n | 0x7ff0000000000000) }),
		rapid.SampledFrom([]any{
			math.NaN(), float32(math.NaN()), math.Inf(1), math.Inf(-1), float32(math.Inf(-1)), math.Copysign(0, -1),
			float32(math.Copysign(0, -1)),
			int64(1<<53 - 1), int64(1 << 53), int64(1<<53 + 1), int64(-1<<53 - 1), int64(math.MinInt64),
			int64(math.MaxInt64),
			math.MaxFloat64, math.SmallestNonzeroFloat64, float32(math.MaxFloat32),
			float32(math.SmallestNonzeroFloat32), 1e21, 1e-7,
		}),
		rapid.Custom(func(t *rapid.T) any {
			return amqp091.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
		rapid.Map(moment(), func(at time.Time) any { return at }),
		rapid.Map(text(300), func(s string) any { return []byte(s) }),
	)
	if depth == 0 {
		return leaf
	}

	return rapid.OneOf(leaf, leaf, leaf,
		rapid.Map(rapid.SliceOfN(value(depth-1), 0, 4), func(all []any) any { return all }),
		rapid.Map(table(depth-1), func(table amqp091.Table) any { return table }),
	)
}

func table(depth int) *rapid.Generator[amqp091.Table] {
	return rapid.Map(rapid.MapOfN(text(maxShort), value(depth), 0, 5), func(m map[string]any) amqp091.Table {
		return amqp091.Table(m)
	})
}

func publishing() *rapid.Generator[amqp091.Publishing] {
	return rapid.Custom(func(t *rapid.T) amqp091.Publishing {
		short := func(name string) string { return text(maxShort).Draw(t, name) }
		p := amqp091.Publishing{
			ContentType: short("content type"), ContentEncoding: short("encoding"),
			DeliveryMode: rapid.Uint8().Draw(t, "mode"),
			Priority:     rapid.Uint8().Draw(t, "priority"), CorrelationId: short("correlation id"),
			ReplyTo:    short("reply to"),
			Expiration: short("expiration"), MessageId: short("message id"), Type: short("type"),
			UserId: short("user id"), AppId: short("app id"),
		}
		if rapid.Bool().Draw(t, "has timestamp") {
			p.Timestamp = moment().Draw(t, "timestamp")
		}
		if rapid.Bool().Draw(t, "has headers") {
			p.Headers = table(3).Draw(t, "headers")
		}
		if rapid.Bool().Draw(t, "has body") {
			p.Body = []byte(text(2000).Draw(t, "body"))
		}

		return p
	})
}

// What is written and read again is the message, with its types, bit by bit, also when other tools
// have sorted or indented it; and the same message is the same line.
func TestRecordIsLossless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := publishing().Draw(t, "message")
		queue := text(maxShort).Draw(t, "queue")
		came := Route{text(maxShort).Draw(t, "exchange"), text(maxShort).Draw(t, "routing key")}
		d := deliveryOf(record{Message: p, CameBy: came})
		l := newDeadLetter(&d, "", "orders", "uuid", 1)

		line, err := encodeRecord(&l, queue, Taken{})
		require.NoError(t, err)
		require.True(t, json.Valid(line), "%s", line)
		require.NotContains(t, string(line), "\n")
		require.False(t, strings.ContainsAny(string(line), "\x7f\u0080\u009b\u009f\u2028\u202a\u202e\u2066\u2069"),
			"%s", line)

		got, err := decodeRecord(line)
		require.NoError(t, err, "%s", line)
		requireSame(t, p, got.Message)
		require.Equal(t, came, got.CameBy)
		require.Equal(t, queue, got.Queue)

		again, err := encodeRecord(&l, queue, Taken{})
		require.NoError(t, err)
		require.Equal(t, string(line), string(again))

		got, err = decodeRecord(sortedByAnotherTool(t, line))
		require.NoError(t, err)
		requireSame(t, p, got.Message)

		shown, err := json.Marshal(&l)
		require.NoError(t, err)
		got, err = decodeRecord(shown)
		require.NoError(t, err)
		requireSame(t, p, got.Message)
	})
}

// sortedByAnotherTool is what a tool leaves that computes with float64.
func sortedByAnotherTool(t require.TestingT, line []byte) []byte {
	var all any
	require.NoError(t, json.Unmarshal(line, &all))
	sorted, err := json.MarshalIndent(all, "", "\t")
	require.NoError(t, err)

	return sorted
}

// The format is public: what is here is in files of users.
func TestRecordFormat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	state := wire.State{
		Count: header.CountDead, Attempts: 4, Replays: 1, Queue: "orders", Topic: "topic", Handler: "ship",
		Host: "host", UUID: "uuid",
		FirstFailure: at, LastFailure: at.Add(time.Minute), Since: at.Add(-time.Hour), Deadline: at.Add(time.Hour),
		Reason: retry.ReasonExhausted, Error: "a < b", ErrorType: "*errors.errorString",
		History: []retry.FailedCall{{Number: 1, At: at, Error: "a < b", Type: "*errors.errorString", Reason: "panic"}},
		Arrival: wire.NewArrival("shop", "orders.eu", "5000", "ann", ""),
		Trace:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Edits:   `[{"at":"2026-01-01T00:00:00Z","by":"ann@host","headers":{"a":"b","c":null},"properties":{"type":"t"}}]`,
	}
	headers := amqp091.Table{header.Removed: "huge"}
	for key, value := range state.Headers("id") {
		headers[key] = value
	}

	for name, test := range map[string]struct {
		delivery amqp091.Delivery
		want     string
	}{
		"nothing": {
			amqp091.Delivery{},
			`{"v":1,"queue":"orders.dlq","failure":{"queue":"orders","calls":0,"replays":0},"came_by":{"exchange":"","routing_key":""},"properties":{}}`,
		},
		"properties": {
			amqp091.Delivery{
				Exchange: "x", RoutingKey: "\xff", ContentType: "text/plain", ContentEncoding: "\xff", DeliveryMode: 2,
				Priority: 9, CorrelationId: "c",
				ReplyTo: "r", Expiration: "5", MessageId: "m", Timestamp: at.Truncate(time.Second), Type: "t",
				UserId: "u", AppId: "a", Headers: amqp091.Table{}, Body: []byte{},
			},
			`{"v":1,"queue":"orders.dlq","failure":{"uuid":"m","queue":"orders","calls":0,"replays":0},` +
				`"came_by":{"exchange":"x","routing_key":{"type":"string","base64":"/w=="}},"properties":{"content_type":"text/plain",` +
				`"content_encoding":{"type":"string","base64":"/w=="},"delivery_mode":2,"priority":9,"correlation_id":"c","reply_to":"r","expiration":"5",` +
				`"message_id":"m","timestamp":"2026-01-02T03:04:05Z","type":"t","user_id":"u","app_id":"a"},"headers":{},"body":""}`,
		},
		"headers": {
			amqp091.Delivery{Body: []byte("\xff"), Headers: amqp091.Table{
				"text": "a < b", "bytes": []byte("a"), "bytes*": []byte("\xff"), "bool": true, "void": nil,
				"int8": int8(-1), "int16": int16(2), "int32": int32(3),
				"int64": int64(4), "int64*": int64(math.MaxInt64), "int64-": int64(-1<<53 - 1),
				"uint8": byte(5), "uint16": uint16(6),
				"uint32": uint32(7), "float32": float32(0.1),
				"float64": 1e100, "nan": math.NaN(), "nan*": math.Float64frombits(0x7ff8000000000000),
				"inf": math.Inf(-1), "zero": math.Copysign(0, -1),
				"decimal": amqp091.Decimal{Scale: 2, Value: -5}, "time": at, "time*": time.Unix(1<<60, 0),
				"array": []any{"a", int32(1)},
				"table": amqp091.Table{"": "b"}, "\xff": "c", "base64:": "d",
			}},
			`{"v":1,"queue":"orders.dlq","failure":{"queue":"orders","calls":0,"replays":0},"came_by":{"exchange":"","routing_key":""},"properties":{},"headers":{` +
				`"array":{"type":"array","value":["a",{"type":"int32","value":1}]},"base64:/w==":"c","base64:YmFzZTY0Og==":"d",` +
				`"bool":{"type":"bool","value":true},"bytes":{"type":"bytes","value":"a"},"bytes*":{"type":"bytes","base64":"/w=="},` +
				`"decimal":{"type":"decimal","value":"-0.05"},"float32":{"type":"float32","value":0.1},"float64":{"type":"float64","value":1e+100},` +
				`"inf":{"type":"float64","value":"-Infinity"},"int16":{"type":"int16","value":2},"int32":{"type":"int32","value":3},` +
				`"int64":{"type":"int64","value":4},"int64*":{"type":"int64","value":"9223372036854775807"},` +
				`"int64-":{"type":"int64","value":"-9007199254740993"},"int8":{"type":"int8","value":-1},` +
				`"nan":{"type":"float64","value":"NaN"},"nan*":{"type":"float64","value":"NaN:7ff8000000000000"},` +
				`"table":{"type":"table","value":{"":"b"}},"text":"a < b","time":{"type":"time","value":"2026-01-02T03:04:05Z"},` +
				`"time*":{"type":"time","value":"@1152921504606846976"},"uint16":{"type":"uint16","value":6},"uint32":{"type":"uint32","value":7},` +
				`"uint8":{"type":"uint8","value":5},"void":{"type":"void"},"zero":{"type":"float64","value":"-0"}},"body_base64":"/w=="}`,
		},
		"failure": {
			amqp091.Delivery{Headers: headers, RoutingKey: "orders.dlq", Body: []byte("{\"id\":1}\n\u009b")},
			`{"v":1,"queue":"orders.dlq","failure":{"uuid":"uuid","reason":"exhausted","error":"a < b","error_type":"*errors.errorString",` +
				`"queue":"orders","topic":"topic","handler":"ship","host":"host","calls":4,"replays":1,` +
				`"first_failure":"2026-01-02T03:04:05.678Z","last_failure":"2026-01-02T03:05:05.678Z","since":"2026-01-02T02:04:05.678Z",` +
				`"deadline":"2026-01-02T04:04:05.678Z","exchange":"shop","routing_key":"orders.eu","expiration":"5000","user_id":"ann",` +
				`"trace":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","removed":"huge",` +
				`"history":[{"number":1,"at":"2026-01-02T03:04:05.678Z","error":"a < b","error_type":"*errors.errorString","reason":"panic"}],` +
				`"edits":` + state.Edits +
				`},"came_by":{"exchange":"","routing_key":"orders.dlq"},"properties":{},"headers":` +
				string(headersJSON(t, headers)) +
				`,"body":"{\"id\":1}\n\u009b"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newDeadLetter(&test.delivery, "", "orders", "", 3)
			line, err := encodeRecord(&l, "orders.dlq", Taken{})
			require.NoError(t, err)
			assert.Equal(t, test.want, string(line))

			read, err := decodeRecord([]byte(test.want))
			require.NoError(t, err)
			requireSame(t, l.Message, read.Message)

			shown, err := l.MarshalJSON()
			require.NoError(t, err)
			assert.Equal(t, strings.Replace(test.want, `"queue":"orders.dlq"`, `"position":3`, 1), string(shown))
		})
	}
}

func headersJSON(t *testing.T, headers amqp091.Table) []byte {
	var e encoder
	require.NoError(t, e.table(headers))

	return e.out
}

// What cannot be read is shown, but no line that somebody could import.
func TestRecordOfAnUnreadableMessage(t *testing.T) {
	l := newDeadLetter(&amqp091.Delivery{}, "a, b", "orders", "", 1)
	_, err := encodeRecord(&l, "orders.dlq", Taken{})
	require.ErrorIs(t, err, errUnreadable)

	shown, err := json.Marshal(l)
	require.NoError(t, err)
	require.Contains(t, string(shown), `"unreadable":"a, b"`)
	_, err = decodeRecord(shown)
	require.ErrorIs(t, err, errUnreadable)
}

func TestRecordOfWhatIsNotAMQP(t *testing.T) {
	l := DeadLetter{Message: amqp091.Publishing{Headers: amqp091.Table{"a": []any{amqp091.Table{"b-c": struct{}{}}}}}}
	_, err := encodeRecord(&l, "orders.dlq", Taken{})
	require.EqualError(t, err, `.headers.a[0]["b-c"]: must be a value as amqp091-go reads it, got a struct {}`)
}

func TestRecordErrors(t *testing.T) {
	const names = "array, bool, bytes, decimal, float32, float64, int16, int32, int64, int8, string, table, time, " +
		"uint16, uint32, uint8, void"
	for _, test := range []struct{ line, want string }{
		{``, `.: must be JSON, got unexpected end of JSON input at byte 0`},
		{`[]`, `.: must be an object, got []`},
		{"{\"v\":1,\"body\":\"\xff\"}", `.: must be UTF-8, got other bytes`},
		{`{}`, `.v: must be 1, the version of the format that is known here, got nothing`},
		{`{"v":2,"payload":5}`, `.v: must be 1, the version of the format that is known here, got 2`},
		{`{"payload":5,"v":2}`, `.v: must be 1, the version of the format that is known here, got 2`},
		{`{"v":"1"}`, `.v: must be 1, the version of the format that is known here, got "1"`},
		{`{"v":1`, `.: must be JSON, got unexpected end of JSON input at byte 6`},
		{`{"v":1,"position":-`, `.: must be JSON, got invalid character ' ' in numeric literal at byte 19`},
		{`{"v":1,"position":1.}`,
			`.: must be JSON, got invalid character '}' after decimal point in numeric literal at byte 21`},
		{`{"v":1,"position":1e+}`,
			`.: must be JSON, got invalid character '}' in exponent of numeric literal at byte 22`},
		{`{"v":1,"position":tru}`,
			`.: must be JSON, got invalid character '}' in literal true (expecting 'e') at byte 22`},
		{`{"v":1}x`, `.: must be JSON, got invalid character 'x' after top-level value at byte 8`},
		{`{"v":1,}`, `.: must be JSON, got invalid character '}' looking for beginning of object key string at byte 8`},
		{`{"v":1,"boddy":""}`,
			`.boddy: must be one of v, queue, taken, position, wait, failure, unreadable, came_by, properties, headers, body, body_base64, got an unknown field`},
		{`{"v":1,"body":"","body":""}`, `.body: must be there once, got it twice`},
		{`{"v":1,"body":"","body_base64":""}`, `.body_base64: must be the only body, got body and body_base64`},
		{`{"v":1,"body":{"id":1}}`, `.body: must be a string, got {"id":1}`},
		{`{"v":1,"body":"\ud800"}`, `.: must be JSON, got half a character, \ud800, at byte 16`},
		{`{"v":1,"body":"\ud800\u0041"}`, `.: must be JSON, got half a character, \ud800, at byte 16`},
		{`{"v":1,"body":"\\\ud83d\ude00\\ud800\uDE00\ud83d"}`,
			`.: must be JSON, got half a character, \uDE00, at byte 37`},
		{`{"v":1,"headers":{"\udbff":""}}`, `.: must be JSON, got half a character, \udbff, at byte 20`},
		{"{\"v\":1,\"body\":\"\x1b[31m\"}",
			`.: must be JSON, got invalid character '\x1b' in string literal at byte 16`},
		{`{"v":1,"body":"\x"}`, `.: must be JSON, got invalid character 'x' in string escape code at byte 17`},
		{`{"v":1,"body":"`, `.: must be JSON, got unexpected end of JSON input at byte 15`},
		{`{"v":1,"body_base64":"?"}`, `.body_base64: must be base64, got "?"`},
		{`{"v":1,"came_by":{"exchange":5}}`,
			`.came_by.exchange: must be a string, or an object such as {"type":"int32","value":5}, got 5`},
		{`{"v":1,"came_by":{"exchange":{"type":"bool","value":true}}}`,
			`.came_by.exchange: must be a string, got {"type":"bool","value":true}`},
		{`{"v":1,"properties":{"priority":256}}`, `.properties.priority: must be an integer that fits uint8, got 256`},
		{`{"v":1,"properties":{"priority":1.5}}`, `.properties.priority: must be an integer that fits uint8, got 1.5`},
		{`{"v":1,"properties":{"timestamp":5}}`, `.properties.timestamp: must be a string, got 5`},
		{`{"v":1,"properties":{"timestamp":"2026-01-02T03:04:05.5Z"}}`,
			`.properties.timestamp: must be a time in whole seconds, as RFC 3339 or as @seconds since 1970, got "2026-01-02T03:04:05.5Z"`},
		{`{"v":1,"properties":{"type":"` + strings.Repeat("x", 256) + `"}}`,
			`.properties.type: must be at most 255 bytes, got 256`},
		{`{"v":1,"properties":{"headers":{}}}`,
			`.properties.headers: must be one of content_type, content_encoding, delivery_mode, priority, correlation_id, ` +
				`reply_to, expiration, message_id, timestamp, type, user_id, app_id, got an unknown field`},
		{`{"v":1,"headers":null}`, `.headers: must be an object, got null`},
		{`{"v":1,"headers":{"a-b":5}}`,
			`.headers["a-b"]: must be a string, or an object such as {"type":"int32","value":5}, got 5`},
		{`{"v":1,"headers":{"a":"1","a":"2"}}`, `.headers.a: must be there once, got it twice`},
		{`{"v":1,"headers":{"a":"1","base64:YQ==":"2"}}`, `.headers["base64:YQ=="]: must be there once, got it twice`},
		{`{"v":1,"headers":{"base64:?":"2"}}`, `.headers["base64:?"]: must be base64, got "?"`},
		{`{"v":1,"headers":{"` + strings.Repeat("x", 256) + `":""}}`, `.headers.` + strings.Repeat("x", 57) +
			`…: must be at most 255 bytes, got 256`},
		{`{"v":1,"headers":{"a":{}}}`, `.headers.a.type: must be one of ` + names + `, got ""`},
		{`{"v":1,"headers":{"a":{"type":"int"}}}`, `.headers.a.type: must be one of ` + names + `, got "int"`},
		{`{"v":1,"headers":{"a":{"type":"int8"}}}`, `.headers.a.value: must be there, got nothing`},
		{`{"v":1,"headers":{"a":{"type":"int8","value":128}}}`,
			`.headers.a.value: must be an integer that fits int8, got 128`},
		{`{"v":1,"headers":{"a":{"type":"int8","value":true}}}`,
			`.headers.a.value: must be an integer that fits int8, got true`},
		{`{"v":1,"headers":{"a":{"type":"int64","value":"9223372036854775808"}}}`,
			`.headers.a.value: must be an integer that fits int64, got "9223372036854775808"`},
		{`{"v":1,"headers":{"a":{"type":"bool","value":1}}}`, `.headers.a.value: must be true or false, got 1`},
		{`{"v":1,"headers":{"a":{"type":"void","value":1}}}`, `.headers.a.value: must be null, got 1`},
		{`{"v":1,"headers":{"a":{"type":"float32","value":1e39}}}`,
			`.headers.a.value: must be a number that fits float32, got 1e39`},
		{`{"v":1,"headers":{"a":{"type":"float64","value":01}}}`,
			`.: must be JSON, got invalid character '1' after object key:value pair at byte 50`},
		{`{"v":1,"headers":{"a":{"type":"float64","value":"NaN:1"}}}`,
			`.headers.a.value: must be the bits of a NaN, got "NaN:1"`},
		{`{"v":1,"headers":{"a":{"type":"float32","value":"NaN:7f800000"}}}`,
			`.headers.a.value: must be the bits of a NaN, got "NaN:7f800000"`},
		{`{"v":1,"headers":{"a":{"type":"float64","value":"one"}}}`,
			`.headers.a.value: must be a number that fits float64, got "one"`},
		{`{"v":1,"headers":{"a":{"type":"decimal","value":"1e5"}}}`,
			`.headers.a.value: must be a decimal such as "1.50": a 32-bit integer with at most 255 digits behind the point, got "1e5"`},
		{`{"v":1,"headers":{"a":{"type":"array","value":["a",{"type":"table","value":{"b":5}}]}}}`,
			`.headers.a.value[1].value.b: must be a string, or an object such as {"type":"int32","value":5}, got 5`},
		{`{"v":1,"headers":{"a":{"type":"bytes","value":"","base64":""}}}`,
			`.headers.a: must be either value or base64, got both`},
		{`{"v":1,"headers":{"a":{"type":"time","base64":""}}}`,
			`.headers.a.type: must be string or bytes, where there is base64, got "time"`},
		{`{"v":1,"headers":{"a":{"type":"bytes","base64":5}}}`, `.headers.a.base64: must be a string, got 5`},
		{`{"v":1,"headers":{"a":{"kind":5}}}`,
			`.headers.a.kind: must be one of type, value, base64, got an unknown field`},
		{`{"v":1,"headers":{"a":{"type":"array","value":` + strings.Repeat("[", maxDepth) +
			strings.Repeat("]", maxDepth) + `}}}`,
			`.headers.a.value` + strings.Repeat("[0]", maxDepth-3) + `: must be at most 100 deep, got more`},
		{`{"v":1,"headers":` + strings.Repeat(`{"a":`, maxDepth) + `1` + strings.Repeat("}", maxDepth) + `}`,
			`.headers` + strings.Repeat(".a", maxDepth-1) + `: must be at most 100 deep, got more`},
		{`{"v":1,"failure":` + strings.Repeat("[", 1e6),
			`.: must be JSON, got invalid character '[' exceeded max depth at byte 10017`},
		{`{"failure":` + strings.Repeat("[", 1e6),
			`.: must be JSON, got invalid character '[' exceeded max depth at byte 10011`},
		{`{"v":2,"V":1}`,
			`.V: must be one of v, queue, taken, position, wait, failure, unreadable, came_by, properties, headers, body, body_base64, got an unknown field`},
		{`{"v":2,"v":1}`, `.v: must be there once, got it twice`},
		{`null`, `.v: must be 1, the version of the format that is known here, got nothing`},
	} {
		_, err := decodeRecord([]byte(test.line))
		require.Error(t, err, test.line)
		assert.Equal(t, test.want, err.Error(), "%.100s", test.line)
	}
}

// What people write by hand need not look like what we write.
func TestRecordByHand(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		want amqp091.Publishing
	}{
		"spaces": {" { \"v\" :\t1 ,\r\n\"body\" : \"\\u0041\\/\\ud83d\\ude00\" } ",
			amqp091.Publishing{Body: []byte("A/😀")}},
		"type last": {`{"v":1,"headers":{"a":{"value":5,"type":"int8"}}}`,
			amqp091.Publishing{Headers: amqp091.Table{"a": int8(5)}}},
		"typed text": {`{"v":1,"headers":{"a":{"type":"string","value":"b"}}}`,
			amqp091.Publishing{Headers: amqp091.Table{"a": "b"}}},
		"null": {`{"v":1,"headers":{"a":{"type":"void","value":null}}}`,
			amqp091.Publishing{Headers: amqp091.Table{"a": nil}}},
		"a zone": {`{"v":1,"properties":{"timestamp":"1970-01-01T01:00:01+01:00"}}`,
			amqp091.Publishing{Timestamp: time.Unix(1, 0)}},
		"quoted": {`{"v":1,"headers":{"a":{"type":"int8","value":"5"},"b":{"type":"decimal","value":1.50}}}`,
			amqp091.Publishing{Headers: amqp091.Table{"a": int8(5), "b": amqp091.Decimal{Scale: 2, Value: 150}}}},
		"deep": {`{"v":1,"failure":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`,
			amqp091.Publishing{}},
		"a failure": {`{"v":1,"failure":"of mine","position":[{"a":-1.5e+5,"b":[true,false,null,{}]}]}`,
			amqp091.Publishing{}},
	} {
		t.Run(name, func(t *testing.T) {
			read, err := decodeRecord([]byte(test.line))
			require.NoError(t, err)
			requireSame(t, test.want, read.Message)
		})
	}
}

// As deep as amqp091-go reads them.
func TestRecordOfDeepHeaders(t *testing.T) {
	var deep any = "deep"
	for range 32 {
		deep = amqp091.Table{"a": deep}
	}
	p := amqp091.Publishing{Headers: amqp091.Table{"a": deep}}
	line, err := encodeRecord(&DeadLetter{Message: p}, "orders.dlq", Taken{})
	require.NoError(t, err)
	read, err := decodeRecord(line)
	require.NoError(t, err)
	requireSame(t, p, read.Message)
}

// A line is used again for the next one.
func TestRecordKeepsNothingOfTheLine(t *testing.T) {
	line := []byte(`{"v":1,"properties":{"type":"abc"},"headers":{"key":"value"},"body":"body"}`)
	read, err := decodeRecord(line)
	require.NoError(t, err)
	clear(line)
	requireSame(t, amqp091.Publishing{Type: "abc", Headers: amqp091.Table{"key": "value"}, Body: []byte("body")},
		read.Message)
}

// No line can do harm, and what is read from one is read again from what we would write of it.
func FuzzRecord(f *testing.F) {
	typical := typicalDeadLetter()
	line, err := encodeRecord(&typical, "orders.dlq", Taken{})
	require.NoError(f, err)
	f.Add(line)
	for _, line := range []string{
		`{"v":1}`,
		`{"v":1,"body":"\ud83d\ude00\n","headers":{"base64:/w==":{"type":"float32","value":"NaN:7fc00001"}}}`,
		`{"v":1,"headers":{"a":{"type":"array","value":[{"type":"table","value":{"b":{"type":"decimal","value":"-0.05"}}},{"type":"void"}]}}}`,
		`{"v":1,"properties":{"timestamp":"@-62135596800","priority":9},"came_by":{"exchange":{"type":"string","base64":"/w=="}}}`,
		`{"v":1,"headers":{"t":{"type":"time","value":"0000-01-01T00:00:00+14:00"},"d":{"type":"float64","value":-1.5E-7}},"body_base64":"/w=="}`,
	} {
		f.Add([]byte(line))
	}

	f.Fuzz(func(t *testing.T, line []byte) {
		read, err := decodeRecord(line)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, json.Valid(line), "%q", line)
		d := deliveryOf(read)
		l := newDeadLetter(&d, "", "orders", "uuid", 1)
		written, err := encodeRecord(&l, read.Queue, Taken{})
		require.NoError(t, err)
		again, err := decodeRecord(written)
		require.NoError(t, err, "%s", written)
		requireSame(t, read.Message, again.Message)
		require.Equal(t, read.CameBy, again.CameBy)
		require.Equal(t, read.Queue, again.Queue)
	})
}

// typicalDeadLetter has what an ordinary message has that has failed four times: 4 headers of its
// own and ours.
func typicalDeadLetter() DeadLetter {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	state := wire.State{
		Count: header.CountDead, Attempts: 4, Queue: "orders", Topic: "orders", Handler: "ship-order",
		Host: "worker-7d9f", UUID: "3f9a0c1e-0000-4000-8000-000000000000",
		FirstFailure: at, LastFailure: at.Add(time.Minute), Since: at, Reason: retry.ReasonExhausted,
		Error: "cannot ship: dial tcp 10.0.0.1:5432: connect: connection refused", ErrorType: "*net.OpError",
		Arrival: wire.NewArrival("shop", "orders.eu", "", "", ""),
	}
	headers := amqp091.Table{}
	for key, value := range state.Headers("id") {
		headers[key] = value
	}
	maps.DeleteFunc(headers, func(key string, _ any) bool { return header.IsPoison(key) })
	headers["_watermill_message_uuid"] = "3f9a0c1e-0000-4000-8000-000000000000"
	headers["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	d := amqp091.Delivery{
		RoutingKey: "orders.dlq", Headers: headers, ContentType: "application/json", DeliveryMode: 2, Timestamp: at,
		Body: []byte(`{"id":1,"customer":{"id":17,"name":"Ann"},"items":[` + strings.Repeat(`{"sku":"A1","n":2},`, 13) +
			`{}]}`),
	}

	return newDeadLetter(&d, "", "orders", "_watermill_message_uuid", 1)
}

func BenchmarkRecord(b *testing.B) {
	l := typicalDeadLetter()
	line, err := encodeRecord(&l, "orders.dlq", Taken{})
	require.NoError(b, err)
	b.Logf("%d headers, body of %d bytes, line of %d bytes", len(l.Message.Headers), len(l.Message.Body), len(line))

	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var e encoder
		for b.Loop() {
			e.out = e.out[:0]
			err = e.line(&l, "orders.dlq", Taken{})
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err = decodeRecord(line)
		}
	})
	require.NoError(b, err)
}
