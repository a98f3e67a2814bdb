package dlq_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// uuids are those of all dead letters, in the order in which the queue gives them.
func (f *fixture) uuids() []string {
	f.t.Helper()
	var uuids []string
	for l, err := range f.queue.Browse(f.t.Context(), dlq.Filter{}) {
		require.NoError(f.t, err)
		uuids = append(uuids, l.UUID)
	}

	return uuids
}

// browseUntil browses and cancels its context at a position; 0 is before the first. It returns the
// error of the browse.
func browseUntil(t *testing.T, q *dlq.Queue, position int) (failed error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if position == 0 {
		cancel()
	}
	for l, err := range q.Browse(ctx, dlq.Filter{}) {
		if failed = err; l.Position == position {
			cancel()
		}
	}

	return failed
}

// Whenever a context ends, a browse of a long queue gives its messages back as a browse does that
// reads all: in a queue that nobody has read before, then in one that was read a part, and then in
// one that was read to its end.
func TestCancelledBrowsesKeepTheOrder(t *testing.T) {
	t.Parallel()
	const deadLetters, batch = 20_000, 5_000
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			var want []string
			for first := 0; first < deadLetters; first += batch {
				f.fillWith(batch, func(i int) amqp091.Publishing {
					want = append(want, fmt.Sprintf("uuid-%d", first+i))
					return deadletter.New(f.main, first+i)
				})
			}
			q, _ := f.who(dlq.Config{})
			for _, position := range []int{0, 1, 32, 33, 1032, 5_000, 33, deadLetters} {
				require.ErrorIs(t, browseUntil(t, q, position), context.Canceled, "at %d", position)
			}
			require.Equal(t, want, f.uuids())

			for _, limit := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				_, err := q.Get(ctx, want[deadLetters-1])
				cancel()
				assert.NotErrorAs(t, err, new(*dlq.OrderError))
			}
			require.Equal(t, want, f.uuids())
		})
	}
}

// A link may take longer for the rest of a queue than the caller of a browse gives it for all.
func TestCancelledBrowseOverASlowLink(t *testing.T) {
	t.Parallel()
	const deadLetters, size, perSecond = 200, 40 << 10, 512 << 10 // 16 s of the link
	f := onBroker(t, nil)
	filler := bytes.Repeat([]byte("x"), size)
	var want []string
	f.fillWith(deadLetters, func(i int) amqp091.Publishing {
		deadLetter := deadletter.New(f.main, i)
		deadLetter.Body = filler
		want = append(want, fmt.Sprintf("uuid-%d", i))

		return deadLetter
	})
	require.Equal(t, want, f.uuids())

	q, _ := f.who(dlq.Config{AMQP: &amqp091.Config{Dial: network{perSecond: perSecond}.dial}})
	began := time.Now()
	err := browseUntil(t, q, 1)
	require.ErrorIs(t, err, context.Canceled)
	assert.NotErrorAs(t, err, new(*dlq.OrderError))
	assert.Greater(t, time.Since(began), 10*time.Second, "else this test shows nothing")
	require.Equal(t, want, f.uuids())
}

// A client that is closed ends its browses. It keeps its connections until their messages are back.
func TestClosedClientKeepsTheOrder(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(severalBlocks)
	require.Len(t, f.uuids(), severalBlocks)

	closed, passing := make(chan error, 1), make(chan struct{}, 1)
	q, client := f.who(dlq.Config{OnOrder: func(int, int) {
		select {
		case passing <- struct{}{}:
		default:
		}
	}})
	client.Impatient()
	go func() {
		<-passing // the browse was cancelled, and has not reached the end
		closed <- client.Close()
	}()
	err := browseUntil(t, q, 1)
	require.ErrorIs(t, err, context.Canceled)
	assert.NotErrorAs(t, err, new(*dlq.OrderError))
	require.NoError(t, await.Value(t, closed, "the client is closed"))

	_, err = q.Stat(t.Context(), dlq.Filter{})
	require.ErrorContains(t, err, "the client was closed")
	assert.Equal(t, deadletter.Bodies(severalBlocks), rabbit.Bodies(f.drained(f.queue.Name(), severalBlocks)))
}

// A browse that goes on ends with its client.
func TestClosedClientEndsABrowse(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(10)
	q, client := f.who(dlq.Config{})
	first, closed := make(chan struct{}), make(chan error, 1)
	go func() {
		<-first
		closed <- client.Close()
	}()
	var failed error
	seen := 0
	for _, err := range q.Browse(t.Context(), dlq.Filter{}) {
		if failed = err; err != nil {
			break
		}
		if seen++; seen == 1 {
			close(first)
			await.Until(t, func() bool { return client.Ended() }, "the client ends its browses")
		}
	}
	require.ErrorContains(t, failed, "the client was closed")
	assert.Equal(t, 1, seen)
	require.NoError(t, await.Value(t, closed, "the client is closed"))
	assert.Equal(t, deadletter.Bodies(10), rabbit.Bodies(f.drained(f.queue.Name(), 10)))
}
