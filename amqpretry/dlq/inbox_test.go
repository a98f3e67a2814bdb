package dlq

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// Of what nobody takes there is never more in memory than there is room for, and one message.
func TestInboxIsBounded(t *testing.T) {
	t.Parallel()
	const room = 10_000
	deliveries := make(chan amqp091.Delivery)
	b := newInbox(deliveries, room, nil)
	sizes := []int{1, room * 3, 1, room - 3000, room / 2, 1}
	for i, size := range sizes {
		deliveries <- amqp091.Delivery{DeliveryTag: uint64(i), Redelivered: i == 3, Body: make([]byte, size),
			Headers: amqp091.Table{"x": "y"}}
	}
	close(deliveries)
	await.Until(t, func() bool { // taking one would make room for those that have not arrived
		b.mu.Lock()
		defer b.mu.Unlock()

		return len(b.waiting) == len(sizes)
	})
	var kept []int
	b.rest(func(a arrived) {
		assert.Equal(t, uint64(len(kept)), a.delivery.DeliveryTag)
		assert.Equal(t, a.lost, a.delivery.Body == nil)
		assert.Equal(t, a.lost, a.delivery.Headers == nil)
		assert.Equal(t, a.delivery.DeliveryTag == 3, a.delivery.Redelivered, "the order depends on it")
		assert.Greater(t, a.size, sizes[a.delivery.DeliveryTag], "also of one that was given up")
		kept = append(kept, len(a.delivery.Body))
	})
	assert.Equal(t, []int{1, 0, 1, room - 3000, 0, 1}, kept)
	assert.Zero(t, b.bytes)
	_, ok, ended := b.take()
	assert.Equal(t, []bool{false, true}, []bool{ok, ended})

	empty := newInbox(deliveries, room, nil)
	empty.put(amqp091.Delivery{Body: make([]byte, 3*room)})
	a, _, _ := empty.take()
	assert.Len(t, a.delivery.Body, 3*room, "one has room whatever its size")
}

// Small messages promise that many have room, and large ones follow: those that have none are
// fetched again, each comes once and in its place.
func TestScanOfSmallMessagesBeforeLargeOnes(t *testing.T) {
	t.Parallel()
	const small, large, size = 40, 60, 10_000
	q := filled(t, 0, nil)
	q.client.room = 5 * size
	publishBodies(t, q, small+large+small, func(i int) string {
		body := fmt.Sprintf("%03d", i)
		if i >= small && i < small+large {
			body += string(make([]byte, size))
		}
		return body
	})

	s, err := q.scan(t.Context(), false)
	require.NoError(t, err)
	for i := range small + large + small {
		f, err := s.next(t.Context())
		require.NoError(t, err)
		f.keep()
		require.Equal(t, fmt.Sprintf("%03d", i), string(f.delivery.Body[:3]))
		require.Equal(t, i+1, f.position)
		require.Equal(t, i+1, s.seen())
		inbox := s.blocks[len(s.blocks)-1].inbox
		bounded := func() bool {
			inbox.mu.Lock()
			defer inbox.mu.Unlock()
			assert.LessOrEqual(t, inbox.bytes, q.client.room)
			return len(inbox.waiting) > 100
		}
		if i == firstPrefetch { // the others come while nobody takes them
			await.Until(t, bounded)
		}
		bounded()
	}
	assert.Positive(t, s.losses)
	assert.LessOrEqual(t, s.losses, mostGrowth+1)
	_, err = s.next(t.Context())
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, s.release())
	n, err := q.Depth(t.Context())
	require.NoError(t, err)
	assert.Equal(t, small+large+small, n)
}

// What makes room waits for who sends: the first block acknowledges nothing before it is full, or
// told that it need not be.
func TestRunOfLargeMessagesGoesOn(t *testing.T) {
	t.Parallel()
	const messages, size = 24, 1 << 20 // large enough to come one after the other
	q := filled(t, 0, nil)
	q.client.room = 5 * size
	publishBodies(t, q, messages, func(i int) string { return fmt.Sprintf("%03d", i) + string(make([]byte, size)) })
	ctx, cancel := context.WithTimeout(t.Context(), await.Bound)
	defer cancel()
	report, err := q.Run(ctx, Plan{Kind: Purge, Filter: Filter{Where: func(l *DeadLetter) bool {
		return l.Position%3 != 0
	}}})
	require.NoError(t, err)
	assert.Equal(t, []int{messages, messages * 2 / 3}, []int{report.Seen, report.Done})
	n := 0
	for deadLetter, err := range q.Browse(t.Context(), Filter{}) {
		require.NoError(t, err)
		n++
		assert.Equal(t, fmt.Sprintf("%03d", 3*n-1), string(deadLetter.Message.Body[:3]), "in the old order")
	}
	assert.Equal(t, messages/3, n)
}

func publishBodies(t *testing.T, q *Queue, n int, body func(int) string) {
	t.Helper()
	messages := make([]amqp091.Publishing, n)
	for i := range messages {
		messages[i] = amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte(body(i))}
	}
	rabbit.New(t, q.client.config.URI).Publish(q.name, messages...)
}
