package dlq_test

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
)

// A message with headers that amqp091-go cannot read stays in its queue: a copy would not be the
// message. A dry run says so, of the queue and of what was read before.
func TestUnreadableStays(t *testing.T) {
	t.Parallel()
	for _, kind := range []dlq.Kind{dlq.Replay, dlq.Move, dlq.Purge} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			deep := any(amqp091.Table{})
			for range 100 {
				deep = amqp091.Table{"x": deep}
			}
			f.fillWith(2, func(i int) amqp091.Publishing {
				message := deadletter.New(f.main, i)
				if i == 0 {
					message.Headers["deep"] = deep
				}
				return message
			})
			plan := dlq.Plan{Kind: kind}
			if kind == dlq.Move {
				plan.To = f.main
			}
			var all []*dlq.DeadLetter
			var read dlq.Stat
			require.NoError(t, f.queue.Read(t.Context(), func(s dlq.Stat) { read = s }, func(l *dlq.DeadLetter) bool {
				all = append(all, l)
				return true
			}))
			left := []dlq.Left{{Why: dlq.LeftUnreadable, Messages: 1}}
			before, err := f.queue.PlanOf(t.Context(), plan, read, func(yield func(*dlq.DeadLetter, error) bool) {
				for _, l := range all {
					if !yield(l, nil) {
						return
					}
				}
			})
			require.NoError(t, err)
			assert.Equal(t, left, before.Counted.Left)
			counted, err := f.queue.Plan(t.Context(), plan)
			require.NoError(t, err)
			assert.Equal(t, left, counted.Counted.Left)

			report, err := f.queue.Run(t.Context(), plan)
			require.NoError(t, err)
			assert.Equal(t, left, report.Left)
			assert.Equal(t, 1, report.Done)
			f.Has(f.queue.Name(), 1)
		})
	}
}
