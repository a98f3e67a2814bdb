package dlq_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// The report of a run with a canary is told once: not of the canary if others follow.
func TestSettledIsToldOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ limit, consumed, done int }{
		"others follow": {0, 1, 12}, "no others": {3, 1, 3}, "nobody handles them": {0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(12)
			if test.consumed > 0 {
				f.service(all(wire.Handled))
			}
			var told []dlq.Report
			report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Limit: test.limit,
				Canary: dlq.Canary{Messages: 3}, Settled: func(r dlq.Report, err error) {
					require.NoError(t, err)
					told = append(told, r)
				}})
			require.NoError(t, err)
			assert.Equal(t, test.done, report.Done)
			if test.done > 0 {
				assert.Equal(t, []dlq.Report{report}, told)
			} else {
				assert.Empty(t, told, "nothing has begun")
			}
		})
	}
}
