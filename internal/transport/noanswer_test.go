package transport

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// reluctant is as much of a broker as a consumer asks for. Like RabbitMQ with a quorum queue that has no leader, it answers nobody who
// wants to consume before it is willing, and on such a channel nothing else either.
type reluctant struct {
	willing chan struct{}

	mu       sync.Mutex
	asked    int          // to consume
	channels map[int]bool // that are open
	network  []net.Conn
	peers    []*peer
	// cancelling are consumers that are being cancelled, and overtaken whether a channel was closed meanwhile, or before anything else.
	cancelling int
	overtaken  bool
	slow       time.Duration // until a cancel is answered
}

func (r *reluctant) count() (asked, channels int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.asked, len(r.channels)
}

// dial connects to it.
func (r *reluctant) dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	answers := newSocket(broker)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = append(r.network, answers)
	p := &peer{broker: answers}
	r.peers = append(r.peers, p)
	go r.serve(p)

	return client, nil
}

// socket is a connection whose writes do not wait for who reads, as those of a socket. A broker that waited with an answer for a client
// that is writing itself would never read what that writes.
type socket struct {
	net.Conn

	out  chan []byte
	over chan struct{}
	once sync.Once
}

func newSocket(conn net.Conn) *socket {
	q := &socket{Conn: conn, out: make(chan []byte, 1000), over: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-q.out:
				if _, err := conn.Write(b); err != nil {
					return
				}
			case <-q.over:
				return
			}
		}
	}()

	return q
}

func (q *socket) Write(b []byte) (int, error) {
	select {
	case q.out <- slices.Clone(b):
		return len(b), nil
	case <-q.over:
		return 0, net.ErrClosed
	}
}

func (q *socket) Close() error {
	q.once.Do(func() { close(q.over) })
	return q.Conn.Close()
}

// cut ends all connections; from then on nobody is answered who wants to consume.
func (r *reluctant) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.willing = make(chan struct{})
	for _, conn := range r.network {
		_ = conn.Close()
	}
	clear(r.channels)
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

	if channel > 0 && method != 20<<16|10 && !r.channels[int(channel)] {
		r.overtaken = true // RabbitMQ closes the connection
	}
	switch method {
	case 10<<16 | 50: // close
		p.method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		r.channels[int(channel)] = true
		p.method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		r.overtaken = r.overtaken || r.cancelling > 0
		delete(r.channels, int(channel))
		p.method(channel, 20, 41, "")
	case 60<<16 | 10: // qos
		p.method(channel, 60, 11, "")
	case 60<<16 | 20: // consume
		r.asked++
		willing := r.willing
		go func() {
			<-willing
			p.method(channel, 60, 21, "\x03tag")
		}()
	case 60<<16 | 30: // cancel
		if r.slow == 0 {
			p.method(channel, 60, 31, "\x03tag")
			return
		}
		r.cancelling++
		time.AfterFunc(r.slow, func() {
			r.mu.Lock()
			r.cancelling--
			r.mu.Unlock()
			p.method(channel, 60, 31, "\x03tag")
		})
	default:
		p.answer(method)
	}
}

// Subscribe gives up with an error that says what it is, when the broker does not answer. Who tries again and again has one channel open
// all the same, and when there is an answer in the end, the consumer that nobody waits for is closed.
func TestSubscribe_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &reluctant{willing: make(chan struct{}), channels: map[int]bool{}}
		c := broker.consumer(t)
		source := Source{Topic: "orders", Queue: "orders"}

		began := time.Now()
		for range 3 {
			_, err := c.Subscribe(t.Context(), source)
			var noAnswer *topology.NoAnswerError
			require.ErrorAs(t, err, &noAnswer)
			assert.Equal(t, "orders", noAnswer.Queue)
			assert.Contains(t, err.Error(), "`rabbitmq-queues quorum_status -p '/' 'orders'`")
		}
		assert.Equal(t, openTimeout+2*declareTimeout, time.Since(began), "the others wait for the first, which might still declare")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Subscribe(ctx, source)
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

// The consumer that comes when nobody waits for it any more is cancelled before its channel is closed: RabbitMQ closes the connection, and with it all
// other sessions, when a method follows a channel's close.
func TestSubscribe_AnswerComesLate(t *testing.T) {
	for range 20 { // the two goroutines are in another order most of the time
		synctest.Test(t, func(t *testing.T) {
			broker := &reluctant{willing: make(chan struct{}), channels: map[int]bool{}, slow: time.Millisecond}
			c := broker.consumer(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Subscribe(ctx, Source{Topic: "orders", Queue: "orders"})
			require.ErrorIs(t, err, context.DeadlineExceeded)

			<-time.After(10 * time.Second)
			close(broker.willing)
			<-time.After(10 * time.Second)
			asked, channels := broker.count()
			assert.Equal(t, 1, asked)
			assert.Zero(t, channels)
			broker.mu.Lock()
			defer broker.mu.Unlock()
			assert.False(t, broker.overtaken)
		})
	}
}

// A subscription ends while the broker does not answer it after a lost connection. The consumer that comes in the end is closed: nobody
// would be given what it takes away.
func TestSubscriptionEnds_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		willing := make(chan struct{})
		close(willing)
		broker := &reluctant{willing: willing, channels: map[int]bool{}}
		c := broker.consumer(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		messages, err := c.Subscribe(ctx, Source{Topic: "orders", Queue: "orders"})
		require.NoError(t, err)

		broker.cut()
		<-time.After(10 * time.Second)
		asked, channels := broker.count()
		require.Equal(t, 2, asked, "it consumes again")
		require.Equal(t, 1, channels)
		cancel()
		_, open := <-messages
		require.False(t, open, "the end does not wait for the broker")

		close(broker.willing)
		<-time.After(10 * time.Second)
		asked, channels = broker.count()
		assert.Equal(t, 2, asked)
		assert.Equal(t, 0, channels, "the consumer that nobody waits for")
	})
}

// When the broker has cancelled a consumer, its channel is closed only when nothing else is on its way: RabbitMQ closes the connection, and with it
// all other sessions, when a method follows a channel's close.
func TestBrokerCancels_ChannelIsClosedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		willing := make(chan struct{})
		close(willing)
		broker := &reluctant{willing: willing, channels: map[int]bool{}, slow: 10 * time.Millisecond}
		c := broker.consumer(t)
		_, err := c.Subscribe(t.Context(), Source{Topic: "orders", Queue: "orders"})
		require.NoError(t, err)

		for range 5 {
			broker.mu.Lock()
			for channel := range broker.channels {
				broker.peers[0].method(uint16(channel), 60, 30, "\x03tag\x01") //nolint:gosec // few
			}
			broker.mu.Unlock()
			<-time.After(10 * time.Second)
		}
		asked, channels := broker.count()
		assert.Equal(t, 6, asked, "it consumes again each time")
		assert.Equal(t, 1, channels)
		broker.mu.Lock()
		defer broker.mu.Unlock()
		assert.False(t, broker.overtaken)
	})
}
