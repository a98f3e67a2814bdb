package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// everyType is a header of every AMQP type that amqp091-go encodes, with its corner cases.
func everyType() amqp091.Table {
	at := time.Unix(1_700_000_000, 0)

	return amqp091.Table{
		"bool": true, "not": false,
		"int8": int8(-128), "int16": int16(-32768), "int32": int32(-1 << 31), "int64": int64(-1 << 63),
		"max":   int64(1<<63 - 1),
		"uint8": uint8(255), "uint16": uint16(65535), "uint32": uint32(1<<32 - 1),
		"float32": float32(1.5), "float64": 0.1, "decimal": amqp091.Decimal{Scale: 2, Value: -12345},
		"string": "text", "empty": "", "umlaut": "Grüße 🎉", "invalid": "caf\xe9\x00\xff",
		"bytes": []byte{0, 1, 0xff}, "no bytes": []byte{}, "time": at, "void": nil,
		"array": []any{int32(1), "two", nil, []any{}, amqp091.Table{"deep": uint16(3)}},
		"table": amqp091.Table{"": "empty key", "more": amqp091.Table{"list": []any{at, []byte("b"), float32(2)}}},
		"":      "a key without a name", "x-user": "looks like the broker's", "caf\xe9": "an invalid key",
		"count": int64(99), "reason_poisoned": "the publisher's own",
		amqp.DefaultMessageUUIDHeaderKey: "1",
	}
}

func properties(d amqp091.Delivery) amqp091.Publishing {
	p := again(d)
	p.Headers, p.Body = nil, nil
	p.Timestamp = p.Timestamp.UTC()

	return p
}

// utc makes header tables comparable: times are the same in any zone.
func utc(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		out := amqp091.Table{}
		for key := range v {
			out[key] = utc(v[key])
		}

		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = utc(v[i])
		}

		return out
	case time.Time:
		return v.UTC()
	}

	return value
}

func theirs(t *testing.T, d amqp091.Delivery, poisoned bool) amqp091.Table {
	t.Helper()
	headers, ok := utc(d.Headers).(amqp091.Table)
	require.True(t, ok)
	maps.DeleteFunc(headers, func(key string, _ any) bool { return header.IsOwn(key) || header.IsBroker(key) })
	if poisoned {
		maps.DeleteFunc(headers, func(key string, _ any) bool { return header.IsPoison(key) })
	}

	return headers
}

// hostile is a marshaler that works on what it is given as if it were its own.
type hostile struct{ amqp.DefaultMarshaler }

func (m hostile) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	for key := range d.Headers {
		if key == "table" || key == "bytes" {
			delete(d.Headers, key)
		} else {
			d.Headers[key] = "spoilt"
		}
	}
	d.Headers["added"] = "by the marshaler"

	return msg, err
}

// P6: body, properties and headers of a message are the same after its retries and in the dead-
// letter queue, whatever marshaler and handler do to what they are given.
func TestP6_MessageStaysItself(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name, queueType string
		classic         bool // retry queues
		mode            uint8
		stock           bool
	}{
		{"classic", "classic", true, amqp091.Persistent, false},
		{"quorum", "quorum", false, amqp091.Persistent, false},
		{"classic transient", "classic", true, amqp091.Transient, false},
		{"classic, quorum retries, transient", "classic", false, amqp091.Transient, false},
		{"stock subscriber, classic", "classic", false, amqp091.Persistent, true},
		{"stock subscriber, quorum", "quorum", true, amqp091.Transient, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			uri, queue := brokertest.URI(t), uniqueName("promise")
			exchange, other := queue+"-in", queue+"-other"
			broker := newRabbit(t, uri)
			body := []byte{0, 1, 2, 0xff, 0xfe, '\r', '\n', 0xce, 'A', 'M', 'Q', 'P'}

			var s seen
			c := setup{URI: uri, Queue: queue, QueueType: test.queueType}
			c.Options.Policies.Default = config.Policy{Delays: ms(60, 80), ClassicQueues: test.classic}
			c.Configure = func(conf *amqp.Config) { conf.Marshaler = hostile{} }
			c.Handler = s.handler(func(msg *message.Message) error {
				for i := range msg.Payload {
					msg.Payload[i] = 'X' // in place
				}
				maps.DeleteFunc(msg.Metadata, func(string, string) bool { return true })
				msg.Metadata["kind"] = "the handler's"
				msg.UUID = "another"

				return failing(9)(msg)
			})
			if test.stock {
				startStock(t, c)
			} else {
				start(t, c)
			}

			broker.Declare(other, nil)
			bound(t, broker, exchange, "direct", queue, "orders")
			bound(t, broker, exchange, "direct", other, "carbon")

			sent := amqp091.Publishing{
				Headers: everyType(), ContentType: "application/octet-stream", ContentEncoding: "gzip",
				DeliveryMode: test.mode,
				Priority:     7, CorrelationId: "correlation", ReplyTo: "amq.rabbitmq.reply-to.none",
				Expiration: "3600000",
				MessageId:  "message", Timestamp: time.Unix(1_600_000_000, 0), Type: "order.created", UserId: "guest",
				AppId: "shop",
				Body:  body,
			}
			sent.Headers["CC"] = []any{"carbon"}
			sent.Headers["BCC"] = []any{"nobody"}
			broker.PublishTo(exchange, "orders", sent)

			carbon := broker.Take(other, 1)[0]
			dead := broker.Take(queue+".dlq", 1)[0]

			// Attempts saw the same message each time.
			calls := s.of("1")
			require.Len(t, calls, 3)
			for _, v := range calls {
				assert.Equal(t, string(body), v.Payload)
				assert.Equal(t, calls[0].Metadata, v.Metadata)
				assert.Equal(t, "-123.45", v.Metadata["decimal"])
			}

			// And so does whoever looks at the dead letter. The carbon copy is what the broker
			// makes of the message by itself.
			assert.Equal(t, body, dead.Body)
			assert.Equal(t, properties(carbon), properties(dead))
			assert.Equal(t, amqp091.Publishing{
				ContentType: "application/octet-stream", ContentEncoding: "gzip", DeliveryMode: test.mode, Priority: 7,
				CorrelationId: "correlation", ReplyTo: "amq.rabbitmq.reply-to.none", MessageId: "message",
				Timestamp: time.Unix(1_600_000_000, 0).UTC(), Type: "order.created", AppId: "shop",
			}, properties(dead))

			want, _ := utc(everyType()).(amqp091.Table)
			// a dead letter has its own
			maps.DeleteFunc(want, func(key string, _ any) bool { return header.IsPoison(key) })
			assert.Equal(t, want, theirs(t, dead, true))

			// What must not be published again is kept aside, and only there.
			for _, key := range []string{"CC", "BCC"} {
				assert.NotContains(t, dead.Headers, key)
			}
			assert.Empty(t, dead.Expiration)
			assert.Empty(t, dead.UserId)
			hasHeaders(t, dead, headers{header.Expiration: "3600000", header.UserID: "guest"})
			var cc []string
			require.NoError(t, json.Unmarshal([]byte(rabbit.Text(dead, header.CC)), &cc))
			assert.Equal(t, []string{"carbon"}, cc)
			hasHeaders(t, dead, headers{header.Exchange: exchange, header.RoutingKey: "orders"})
			assert.Zero(t, broker.Depth(other), "the carbon copy was sent once")
		})
	}
}

// P6: an expiration is not published again: it would end the wait before its time, and the dead
// letter.
func TestP6_ExpirationEndsNeitherWaitNorDeadLetter(t *testing.T) {
	t.Parallel()

	var s seen
	svc := start(t, setup{Delays: ms(700), Handler: s.handler(func(msg *message.Message) error {
		if msg.UUID == "permanent" {
			return retry.Permanent(errors.New("at once"))
		}

		return failing(1)(msg)
	})})
	messages := rabbit.Messages("permanent", "retried")
	for i := range messages {
		messages[i].Expiration = "4000"
	}
	svc.Broker.Publish(svc.Queue, messages...)
	published := time.Now()

	await.Until(t, func() bool { return s.count() == 3 }, "two failures, and the success")
	calls := s.of("retried")
	require.Len(t, calls, 2)
	assert.GreaterOrEqual(t, calls[1].At.Sub(calls[0].Left), 699*time.Millisecond)

	await.Until(t, func() bool { return time.Since(published) > 4200*time.Millisecond }, "its expiration has passed")
	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, "4000", rabbit.Text(dead, header.Expiration))
	assert.Empty(t, dead.Expiration)
}

// P6: a message without any header or property is handed on without any; one without a Watermill
// UUID keeps a name.
func TestP6_BareMessage(t *testing.T) {
	t.Parallel()

	var called records[string]
	svc := start(t, setup{Delays: ms(50, 60), Handler: func(msg *message.Message) error {
		called.put(msg.UUID)

		return failing(9)(msg)
	}})

	svc.Broker.Publish(svc.Queue, amqp091.Publishing{})
	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Empty(t, dead.Body)
	assert.Empty(t, theirs(t, dead, true))
	assert.Equal(t, amqp091.Publishing{DeliveryMode: dead.DeliveryMode, Timestamp: time.Time{}.UTC()}, properties(dead))
	assert.NotEqual(t, amqp091.Persistent, dead.DeliveryMode)

	ids := called.All()
	require.Len(t, ids, 3)
	assert.NotEmpty(t, ids[1])
	assert.Equal(t, ids[1], ids[2], "the same message, by its name")
	assert.Equal(t, ids[1], rabbit.Text(dead, header.UUID))

	svc.Broker.Publish(svc.Queue, amqp091.Publishing{MessageId: "m1", Body: []byte("body")})
	dead = svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, []string{"m1", "m1", "m1"}, called.All()[3:], "its message id, from the start")
	assert.Equal(t, []string{"m1", "body"}, []string{dead.MessageId, string(dead.Body)})
	assert.NotContains(t, dead.Headers, amqp.DefaultMessageUUIDHeaderKey, "the publisher gave none")
}

// P1, P6: RabbitMQ 4.4 acts on x-opt-delivery-time, so no copy has it: in a retry queue, as a dead
// letter, replayed, moved or imported. The handler sees it at each attempt.
func TestP6_DeliveryTimeIsKeptAside(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		const far = int64(253402300799000) // year 9999
		var s seen
		c := setup{Tiers: true, QueueType: "classic",
			Handler: s.handler(func(msg *message.Message) error {
				if msg.UUID == "permanent" {
					return retry.Permanent(errors.New("at once"))
				}

				return errors.New("again")
			})}
		c.Options.Policies = retries(50*time.Millisecond, time.Hour)
		svc := run(t, c)
		other := uniqueName("other")
		svc.Broker.Declare(other, nil)

		messages := rabbit.Messages("permanent", "retried")
		for i := range messages {
			messages[i].Headers["x-opt-delivery-time"], messages[i].Headers["x-opt-more"] = far, []byte{0xff}
		}
		svc.Broker.Publish(svc.Queue, messages...)
		isClean := func(what, queue string) {
			t.Helper()
			for _, d := range svc.Broker.Take(queue, 1) {
				for key := range d.Headers {
					assert.NotContains(t, key, "x-opt-", what)
				}
				assert.JSONEq(t, `{"x-opt-delivery-time":"253402300799000","x-opt-more":"/w=="}`,
					rabbit.Text(d, header.Opt), what)
			}
		}
		isClean("waiting", svc.retryQueue(time.Hour))
		calls := s.of("retried")
		require.Len(t, calls, 2)
		for _, call := range calls {
			assert.Equal(t, "253402300799000", call.Metadata["x-opt-delivery-time"])
			assert.Equal(t, "/w==", call.Metadata["x-opt-more"])
		}

		letters := lettersOf(t, svc)
		var exported bytes.Buffer
		await.Until(t, func() bool {
			report, err := letters.Export(t.Context(), &exported, dlq.ExportOptions{})
			return err == nil && report.Done == 1
		}, "a dead letter")
		line := bytes.Clone(exported.Bytes())

		_, err := letters.Import(t.Context(), bytes.NewReader(line), dlq.ImportOptions{To: other})
		require.NoError(t, err)
		isClean("imported", other)
		_, err = letters.Import(t.Context(), bytes.NewReader(line), dlq.ImportOptions{})
		require.NoError(t, err)
		_, err = letters.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: other, Limit: 1})
		require.NoError(t, err)
		isClean("moved", other)
		_, err = letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: other})
		require.NoError(t, err)
		isClean("replayed", other)
	})
}
