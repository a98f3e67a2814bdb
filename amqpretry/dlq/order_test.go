package dlq_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// who is a client of its own for the queue of a fixture.
func (f *fixture) who(config dlq.Config) (*dlq.Queue, *dlq.Client) {
	f.t.Helper()
	config.URI, config.NoDeliveryLimitPolicy = f.URI, true
	client, err := dlq.Open(f.t.Context(), config)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = client.Close() })

	return client.Queue(f.main), client
}

// A quorum queue that was read before gives back behind what it got back before. A run that is
// interrupted there goes on to the end of these, tells of it, and leaves the order as it was; or
// says that it has not.
func TestInterruptedAmongThoseThatWereReadBefore(t *testing.T) {
	t.Parallel()
	const deadLetters, limit = 1500, 50
	for name, orderTime := range map[string]time.Duration{"kept": time.Hour, "not kept": time.Nanosecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(deadLetters)
			_, err := f.queue.Stat(t.Context(), dlq.Filter{})
			require.NoError(t, err)

			ctx, cancel := context.WithCancel(t.Context())
			q, _ := f.who(dlq.Config{OrderTime: orderTime})
			report, err := q.Run(ctx, dlq.Plan{Kind: dlq.Replay,
				Filter: dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
					return l.Position%2 == 0
				}}, Progress: func(p dlq.Progress) {
					if p.Done >= limit {
						cancel()
					}
				}})
			require.ErrorIs(t, err, context.Canceled)
			order := (*dlq.OrderError)(nil)
			if orderTime == time.Nanosecond {
				require.ErrorAs(t, err, &order)
				assert.Positive(t, order.Left)
				f.Has(f.queue.Name(), deadLetters-report.Done)
				return
			}
			assert.NotErrorAs(t, err, &order)
			var want []string
			for i, body := range deadletter.Bodies(deadLetters) {
				if i%2 == 0 || i >= 2*report.Done {
					want = append(want, body)
				}
			}
			assert.Equal(t, want, rabbit.Bodies(f.drained(f.queue.Name(), deadLetters-report.Done)))
		})
	}
}

// A browse that wants few of a queue that was read before passes all of it, and says so.
func TestBrowseIsToldOfThePassing(t *testing.T) {
	t.Parallel()
	const deadLetters = 600
	f := onBroker(t, nil)
	f.fill(deadLetters)
	var passed, most int
	q, client := f.who(dlq.Config{OnOrder: func(p, m int) { passed, most = p, m }})
	client.Impatient()
	first := func() {
		for deadLetter, err := range q.Browse(t.Context(), dlq.Filter{}) {
			require.NoError(t, err)
			require.Equal(t, 1, deadLetter.Position)
			break
		}
	}
	first()
	assert.LessOrEqual(t, passed, 32, "of a fresh queue it fills a block")
	passed, most = 0, 0
	_, err := q.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Zero(t, most, "who sees all passes nothing")
	first()
	assert.Equal(t, []int{deadLetters - 1, deadLetters - 1}, []int{passed, most})
	assert.Equal(t, deadletter.Bodies(deadLetters), rabbit.Bodies(f.drained(f.queue.Name(), deadLetters)))
}

// A run that has all that it wanted is not interrupted: it has all the time for the order.
func TestLimitedRunKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const deadLetters = 1200
	f := onBroker(t, nil)
	f.fill(deadLetters)
	_, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	q, _ := f.who(dlq.Config{OrderTime: time.Nanosecond})
	report, err := q.Run(t.Context(), dlq.Plan{Kind: dlq.Purge, Limit: 1})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
	assert.Equal(t, deadletter.Bodies(deadLetters)[1:], rabbit.Bodies(f.drained(f.queue.Name(), deadLetters-1)))
}

// A loop that was left is not called again: its error goes to the logger.
func TestBrowseThatWasLeftAndInterrupted(t *testing.T) {
	t.Parallel()
	const deadLetters = 1500
	f := onBroker(t, nil)
	f.fill(deadLetters)
	_, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	logger := watermill.NewCaptureLogger()
	q, _ := f.who(dlq.Config{OrderTime: time.Nanosecond, Logger: logger})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range q.Browse(ctx, dlq.Filter{}) {
		require.NoError(t, err)
		cancel()
		break
	}
	logged := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, logged, 1)
	assert.ErrorAs(t, logged[0].Err, new(*dlq.OrderError))
	f.Has(f.queue.Name(), deadLetters)
}
