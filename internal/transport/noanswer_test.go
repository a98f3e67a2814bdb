package transport

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware"
)

// reluctant is as much of a broker as a consumer asks for. Like RabbitMQ with a quorum queue that has no leader, it answers nobody who
// wants to consume before it is willing, and on such a channel nothing else either.
type reluctant struct {
	willing chan struct{}

	mu       sync.Mutex
	asked    int          // to consume
	channels map[int]bool // that are open
}

func (r *reluctant) count() (asked, channels int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.asked, len(r.channels)
}

// dial connects to it.
func (r *reluctant) dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	go r.serve(&peer{broker: broker})

	return client, nil
}

func (r *reluctant) serve(p *peer) {
	defer func() { _ = p.broker.Close() }()
	if _, err := io.ReadFull(p.broker, make([]byte, 8)); err != nil {
		return
	}
	p.method(0, 10, 10, "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	for {
		frame, err := readFrame(p.broker)
		if err != nil {
			return
		}
		if frame[0] == 8 { // heartbeat
			p.write(8, 0, nil)
			continue
		}
		r.answer(p, binary.BigEndian.Uint16(frame[1:]), binary.BigEndian.Uint32(frame[frameStart:]))
	}
}

func (r *reluctant) answer(p *peer, channel uint16, method uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch method {
	case 10<<16 | 50: // close
		p.method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		r.channels[int(channel)] = true
		p.method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		delete(r.channels, int(channel))
		p.method(channel, 20, 41, "")
	case 60<<16 | 10: // qos
		p.method(channel, 60, 11, "")
	case 60<<16 | 20: // consume
		r.asked++
		go func() {
			<-r.willing
			p.method(channel, 60, 21, "\x03tag")
		}()
	case 60<<16 | 30: // cancel
		p.method(channel, 60, 31, "\x03tag")
	default:
		p.answer(method)
	}
}

// Subscribe gives up with an error that says what it is, when the broker does not answer. Who tries again and again has one channel open
// all the same, and when there is an answer in the end, the consumer that nobody waits for is closed.
func TestSubscribe_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &reluctant{willing: make(chan struct{}), channels: map[int]bool{}}
		c, err := NewConsumer(t.Context(), ConsumerSettings{
			Connection: ConnectionSettings{
				URI: "amqp://guest:guest@broker/", AMQP: &amqp091.Config{Dial: broker.dial}, Emit: func(middleware.Event) {},
			},
			Logger: watermill.NopLogger{}, Consumer: "tag", Concurrency: 1, Prefetch: 1, CloseTimeout: time.Second,
			Judge: middleware.Poison{Logger: watermill.NopLogger{}},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		source := Source{Topic: "orders", Queue: "orders"}

		began := time.Now()
		for range 3 {
			_, err = c.Subscribe(t.Context(), source)
			var noAnswer NoAnswerError
			require.ErrorAs(t, err, &noAnswer)
			assert.Equal(t, "orders", noAnswer.Queue)
			assert.Contains(t, err.Error(), "rabbitmq-queues quorum_status")
		}
		assert.Equal(t, openTimeout+2*declareTimeout, time.Since(began), "the others wait for the first, which might still declare")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Subscribe(ctx, source)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		asked, channels := broker.count()
		assert.Equal(t, 1, asked)
		assert.Equal(t, 1, channels)

		close(broker.willing)
		synctest.Wait()
		asked, channels = broker.count()
		assert.Equal(t, 1, asked, "those that have given up do not ask")
		assert.Equal(t, 0, channels, "the consumer that nobody waits for")

		_, err = c.Subscribe(t.Context(), source)
		require.NoError(t, err)
		asked, channels = broker.count()
		assert.Equal(t, 2, asked)
		assert.Equal(t, 1, channels)
	})
}
