package consumer

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// What the retrier does to each message, by the number of its headers, beside what watermill-amqp's
// marshaler does alone.

var codecs = []int{0, 5, 20, 100}

func BenchmarkMarshal(b *testing.B) {
	eachCodec(b, func(b *testing.B, msg *message.Message, _ *amqp091.Delivery) {
		measure(b, "stock", func() error { _, err := amqp.DefaultMarshaler{}.Marshal(msg); return err })
		measure(b, "retrier", func() error { _, err := codec.Publish(amqp.DefaultMarshaler{}, msg); return err })
	})
}

// BenchmarkUnmarshal is the way of a delivery to a message. Stock cannot read a retry: it has
// headers that are no strings.
func BenchmarkUnmarshal(b *testing.B) {
	queue := benchSource(b)
	decoded := func(d *amqp091.Delivery) func() error {
		return func() error {
			queue.arrive(d, time.Now(), broker{}, watermill.NopLogger{})
			_, err := codec.Decode(amqp.DefaultMarshaler{}, d)
			return err
		}
	}
	eachCodec(b, func(b *testing.B, _ *message.Message, d *amqp091.Delivery) {
		retry := comeBack(copied(d), "orders.retry.1s")
		require.Equal(b, 1, queue.arrive(&retry, time.Now(), broker{}, watermill.NopLogger{}).State.Count)

		measure(b, "stock", func() error { _, err := amqp.DefaultMarshaler{}.Unmarshal(*d); return err })
		measure(b, "retrier", decoded(d))
		measure(b, "retrier-retry", decoded(&retry))
	})
}

// BenchmarkCopy makes what is published in place of a failed delivery.
func BenchmarkCopy(b *testing.B) {
	eachCodec(b, func(b *testing.B, _ *message.Message, d *amqp091.Delivery) {
		retry := comeBack(copied(d), "orders.retry.1s")
		measure(b, "first", func() error { copied(d); return nil })
		measure(b, "again", func() error { copied(&retry); return nil })
	})
}

// BenchmarkReadable reads the frames of a delivery as amqp091-go does: from the connection, and
// through the readable.
func BenchmarkReadable(b *testing.B) {
	eachCodec(b, func(b *testing.B, _ *message.Message, d *amqp091.Delivery) {
		header := fakebroker.HeaderFrame(amqp091.Publishing{Headers: d.Headers, DeliveryMode: amqp091.Persistent})
		frames := bytes.Join([][]byte{fakebroker.Frame(1, 1, make([]byte, 60)), header, fakebroker.Frame(3, 1, d.Body)},
			nil)
		into := make([]byte, len(frames))
		read := func(from io.Reader) func() error {
			return func() error { _, err := io.ReadFull(from, into); return err }
		}
		readable := codec.Readable(&endless{data: frames})
		readable.LimitFrames(128 << 10)

		measure(b, "connection", read(&endless{data: frames}))
		measure(b, "readable", read(readable))
		require.Equal(b, frames, into)
	})
}

// endless is a connection that brings the same again and again.
type endless struct {
	net.Conn

	data []byte
	at   int
}

func (e *endless) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		k := copy(p[n:], e.data[e.at:])
		n, e.at = n+k, (e.at+k)%len(e.data)
	}

	return n, nil
}

func eachCodec(b *testing.B, run func(b *testing.B, msg *message.Message, d *amqp091.Delivery)) {
	b.Helper()
	for _, headers := range codecs {
		msg := message.NewMessage(watermill.NewUUID(), bytes.Repeat([]byte("x"), 120))
		for i := range headers {
			msg.Metadata.Set(fmt.Sprintf("header-%d", i), "a value of some length")
		}
		p, err := amqp.DefaultMarshaler{}.Marshal(msg)
		require.NoError(b, err)
		d := &amqp091.Delivery{Headers: p.Headers, Body: p.Body, DeliveryMode: p.DeliveryMode, RoutingKey: "orders"}
		b.Run(fmt.Sprintf("headers=%d", headers), func(b *testing.B) { run(b, msg, d) })
	}
}

func measure(b *testing.B, name string, once func() error) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := once(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchSource(b *testing.B) Queue {
	b.Helper()
	policy := config.Policy{}.WithDefaults()
	plan, err := topology.New("orders", policy, topology.Names{})
	require.NoError(b, err)

	return Queue{Topic: "orders", Name: "orders", Policy: policy, Plan: plan, Names: topology.Names{}.WithDefaults()}
}

// copied is the copy of a delivery that has failed for the first time.
func copied(d *amqp091.Delivery) amqp091.Publishing {
	at := time.Now()
	p, _ := codec.CopyOf(&codec.CopyRequest{Delivery: d, State: wire.State{
		Count: 1, Delay: "1s", Attempts: 1, Queue: "orders", Topic: "orders", Handler: "charge", Host: "host",
		FirstFailure: at, LastFailure: at, Since: at,
		Error: "payment refused", ErrorType: "*errors.errorString",
		History: wire.Append(nil, retry.FailedCall{Number: 1, At: at, Error: "payment refused",
			Type: "*errors.errorString"}),
	}}, 128<<10)

	return p
}
