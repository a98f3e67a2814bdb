package dlq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// A run at a low rate gives what stays in the queue back from time to time, as RabbitMQ would take it back after its consumer_timeout.
func TestRunThatTakesLong(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": {amqp091.QueueTypeArg: "classic"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			f.client.HoldFor(200 * time.Millisecond)
			for n := range 300 {
				letter := letterOf(f.main, n)
				if n%10 == 4 { // failed by another queue: it stays, and is counted once
					letter = letterOf("another", n)
				}
				f.publish(f.queue.Name(), letter)
			}
			f.confirmed()

			report, err := f.queue.Replay(t.Context(), dlq.ReplayOptions{Filter: dlq.Filter{Headers: map[string]string{"tenant": "1"}}, Rate: 50})
			require.NoError(t, err)
			assert.Equal(t, dlq.Progress{Total: 300, Seen: 300, Matched: 100, Done: 90}, report.Progress)
			assert.Equal(t, map[dlq.Obstacle]int{dlq.ObstacleStranger: 10}, report.Left)

			var replayed, stay []string
			for n := range 300 {
				if text := fmt.Sprintf(`{"n":%d}`, n); n%3 == 1 && n%10 != 4 {
					replayed = append(replayed, text)
				} else {
					stay = append(stay, text)
				}
			}
			assert.Equal(t, replayed, bodies(f.drained(f.main, len(replayed))), "each once, in their order")
			left := f.drained(f.queue.Name(), len(stay))
			assert.Equal(t, stay, bodies(left), "and the others in theirs")
			if name == "quorum" { // classic queues count nothing
				counted, _ := left[0].Headers["x-delivery-count"].(int64)
				acquired, _ := left[0].Headers["x-acquired-count"].(int64)
				assert.Greater(t, max(counted, acquired), int64(3), "given back several times")
			}
		})
	}
}
