package dlq_test

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// A long queue is held in several blocks: the first of 32, then of up to 1,000.
const severalBlocks = 1200

func TestBrowsingKeepsEverythingInOrder(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			f.fill(severalBlocks)
			for range 3 {
				n := 0
				for deadLetter, err := range f.queue.Browse(t.Context(), dlq.Filter{}) {
					require.NoError(t, err)
					n++
					require.Equal(t, n, deadLetter.Position)
					require.Equal(t, deadletter.Bodies(n)[n-1], string(deadLetter.Message.Body))
				}
				require.Equal(t, severalBlocks, n)
				f.Has(f.queue.Name(), severalBlocks)
			}
			for range 2 { // and those who leave in the middle
				for deadLetter, err := range f.queue.Browse(t.Context(), dlq.Filter{UUIDs: []string{"uuid-1150"}}) {
					require.NoError(t, err)
					require.Equal(t, "uuid-1150", deadLetter.UUID)
					break
				}
				f.Has(f.queue.Name(), severalBlocks)
			}
			assert.Equal(t, deadletter.Bodies(severalBlocks), rabbit.Bodies(f.drained(f.queue.Name(), severalBlocks)))
		})
	}
}
