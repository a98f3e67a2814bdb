package dlq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// A run at a low rate gives what stays in the queue back from time to time, as RabbitMQ would take
// it back after its consumer_timeout.
func TestRunThatTakesLong(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"quorum": 200 * time.Millisecond,
		"classic": 200 * time.Millisecond, "quorum, at once": 0, "no room": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var arguments amqp091.Table
			if name == "classic" {
				arguments = amqp091.Table{amqp091.QueueTypeArg: "classic"}
			}
			f := onBroker(t, arguments)
			f.client.HoldFor(limit)
			if name == "no room" { // for more than one message
				f.client.HoldFor(time.Hour)
				f.client.RoomFor(1)
			}
			deadLetters := 300
			if limit == 0 { // back after each message
				deadLetters = 90
			}
			var replayed, stay []string
			foreign := 0
			f.fillWith(deadLetters, func(n int) amqp091.Publishing {
				deadLetter := deadletter.New(f.main, n)
				if n%10 == 4 { // failed by another queue: it stays, and is counted once
					deadLetter = deadletter.New("another", n)
				}
				switch text := fmt.Sprintf(`{"n":%d}`, n); {
				case n%3 != 1:
					stay = append(stay, text)
				case n%10 == 4:
					stay = append(stay, text)
					foreign++
				default:
					replayed = append(replayed, text)
				}

				return deadLetter
			})

			report, err := f.queue.Run(t.Context(),
				dlq.Plan{Kind: dlq.Replay, Filter: dlq.Filter{Headers: map[string]string{"tenant": "1"}}, Rate: 50})
			require.NoError(t, err)
			assert.Equal(t, dlq.Progress{Total: deadLetters, Seen: deadLetters, Matched: len(replayed) + foreign,
				Done: len(replayed)}, report.Progress)
			assert.Equal(t, []dlq.Left{{Why: dlq.LeftForeign, Messages: foreign}}, report.Left)

			assert.Equal(t, replayed, rabbit.Bodies(f.drained(f.main, len(replayed))), "each once, in their order")
			left := f.drained(f.queue.Name(), len(stay))
			assert.Equal(t, stay, rabbit.Bodies(left), "and the others in theirs")
			if name != "classic" { // classic queues count nothing
				counted, _ := left[0].Headers["x-delivery-count"].(int64)
				acquired, _ := left[0].Headers["x-acquired-count"].(int64)
				assert.Greater(t, max(counted, acquired), int64(3), "given back several times")
			}
		})
	}
}

// A run that gives back what it holds may have been sent messages that it has not come to. It waits
// until the broker has counted these, too: else it would take them for messages that somebody else
// has taken.
func TestRunGivesBackWhatItHasNotComeTo(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const deadLetters, replayed = 200, 40
			f := onBroker(t, arguments)
			f.client.HoldFor(0) // it gives back after each message
			f.fillWith(deadLetters, func(n int) amqp091.Publishing {
				if n == 0 { // stays, so that there is something to give back
					return deadletter.New("another", n)
				}

				return deadletter.New(f.main, n)
			})

			report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Rate: 100, Limit: replayed})
			require.NoError(t, err)
			assert.Equal(t, replayed, report.Done)
			f.Has(f.queue.Name(), deadLetters-replayed)
		})
	}
}
