package dlq

import (
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// filled is a quorum queue with n messages, for a client with sockets of the test's own.
func filled(t *testing.T, n int, wrap func(net.Conn) net.Conn) *Queue {
	t.Helper()
	uri := brokertest.URI(t)
	other := rabbit.New(t, uri)
	main := "scan-" + watermill.NewShortUUID()
	other.Declare(main+".dlq", amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1)})
	one := amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("x")}
	other.Publish(main+".dlq", slices.Repeat([]amqp091.Publishing{one}, n)...)

	client, err := Open(t.Context(), Config{URI: uri, NoDeliveryLimitPolicy: true,
		AMQP: &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			socket, err := amqp091.DefaultDial(time.Minute)(network, address)
			if err == nil && wrap != nil {
				socket = wrap(socket)
			}
			return socket, err
		}}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	return client.Queue(main)
}

// What is held of a channel that is gone comes again, behind the rest: nobody may take the browse
// for a whole one.
func TestScanNoticesAChannelThatIsGone(t *testing.T) {
	t.Parallel()
	const n = 200
	q := filled(t, n, nil)
	// Nothing is released: that would wait long for what the closed channel has held to come back
	// once more.
	s, err := q.scan(t.Context(), false)
	require.NoError(t, err)
	for seen := 0; ; seen++ {
		f, err := s.next(t.Context())
		if err != nil {
			assert.NotErrorIs(t, err, io.EOF)
			require.ErrorContains(t, err, "the connection was closed")
			assert.Less(t, seen, n+firstPrefetch)
			return
		}
		f.keep()
		if seen == 100 {
			require.Len(t, s.blocks, 2)
			require.NoError(t, s.blocks[0].channel.Close())
		}
	}
}

// Who has not seen all must not say that there is no more.
func TestScanMissesWhatOthersTake(t *testing.T) {
	t.Parallel()
	const n = 100
	q := filled(t, n, nil)
	s, err := q.scan(t.Context(), false)
	require.NoError(t, err)
	defer func() { _ = s.release() }()
	f, err := s.next(t.Context())
	require.NoError(t, err)
	f.keep()

	others := rabbit.Consume(t, rabbit.New(t, brokertest.URI(t)).Channel(), q.name)
	for range n - firstPrefetch {
		await.Closed(t, others, "the others take the rest")
	}
	seen := 1
	for ; err == nil; seen++ {
		if f, err = s.next(t.Context()); err == nil {
			f.keep()
		}
	}
	incomplete := (*IncompleteError)(nil)
	require.ErrorAs(t, err, &incomplete)
	assert.Equal(t, IncompleteError{Queue: q.name, Total: n, Missing: n - firstPrefetch}, *incomplete)
	assert.Equal(t, firstPrefetch+1, seen)
}

// deaf is a socket that takes what is written and sends none of it, once it is told to.
type deaf struct {
	net.Conn
	now *atomic.Bool
}

func (d deaf) Write(p []byte) (int, error) {
	if d.now.Load() {
		return len(p), nil
	}

	return d.Conn.Write(p)
}

// What has not come to the broker is not out of the queue, so nobody may say that it is.
func TestAcknowledgementsAreWaitedFor(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	q := filled(t, 100, func(socket net.Conn) net.Conn { return deaf{socket, &silent} })
	s, err := q.scan(t.Context(), false)
	require.NoError(t, err)
	f, err := s.next(t.Context())
	require.NoError(t, err)

	silent.Store(true)
	f.block.openAcks()
	done := make(chan error, 1)
	go func() { done <- f.block.ack([]uint64{f.delivery.DeliveryTag}, false) }()
	select {
	case err := <-done:
		require.Fail(t, "said to be out", "%v", err)
	case <-time.After(500 * time.Millisecond):
	}
	require.NoError(t, q.client.Close())
	require.Error(t, await.Value(t, done, "it fails"))
}

// A first block that has had to acknowledge gets others for that: it is not cancelled while these
// are on their way.
func TestScanGoesOnAfterSettling(t *testing.T) {
	t.Parallel()
	q := filled(t, 2*firstPrefetch, nil)
	s, err := q.scan(t.Context(), false)
	require.NoError(t, err)
	defer func() { _ = s.release() }()
	for i := range 2 * firstPrefetch {
		f, err := s.next(t.Context())
		require.NoError(t, err)
		if i == 0 {
			s.settle()
		}
		require.NoError(t, f.block.ack([]uint64{f.delivery.DeliveryTag}, false))
		require.Len(t, s.blocks, 1)
		require.False(t, f.block.sealed, i)
	}
}
