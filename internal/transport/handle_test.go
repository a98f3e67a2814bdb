package transport

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

func TestHandleWaitsForTheLastMiddleware(t *testing.T) {
	h := &handle{}
	require.True(t, h.wait(t.Context()), "no middleware was there")

	h.Enter()
	h.Enter() // one inside the other

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, h.wait(ended), "both are inside")
	left := h.left

	h.Leave()
	select {
	case <-left:
		require.Fail(t, "the outer one is still inside")
	default:
	}

	waited := make(chan bool, 1)
	go func() { waited <- h.wait(t.Context()) }()
	h.Leave()
	require.True(t, <-waited)
	<-left
	require.True(t, h.wait(ended), "all have left")

	h.Enter()
	h.Leave()
	require.True(t, h.wait(ended), "a second one may come and go")
}

func TestHandleIsWithdrawnWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := &handle{ctx: ctx}
	assert.False(t, h.Withdrawn())
	cancel()
	assert.True(t, h.Withdrawn())
}

// A timeout around our middlewares is the user's, and its end no end of the subscription.
func TestStockDeliveryIsWithdrawnByCancellation(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	timedOut, stop := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer stop()
	cancel()

	assert.False(t, (&stockDelivery{ctx: t.Context()}).Withdrawn())
	assert.False(t, (&stockDelivery{ctx: timedOut}).Withdrawn())
	assert.True(t, (&stockDelivery{ctx: cancelled}).Withdrawn())
}

// What a broker adds on the way back, as it encodes it, fits into what is kept free for it.
func TestReturnSize(t *testing.T) {
	for _, queue := range []string{"orders", strings.Repeat("q", 200)} {
		plan, err := topology.New(queue, config.Policy{}.WithDefaults(), topology.Names{})
		require.NoError(t, err)

		waited := queue + ".retry.10m"
		added := amqp091.Table{
			"x-death": []any{amqp091.Table{
				"count": int64(1), "exchange": queue + ".retry", "queue": waited, "reason": "expired",
				"routing-keys": []any{queue}, "time": time.Unix(1, 0),
			}},
			"x-first-death-exchange": queue + ".retry", "x-first-death-queue": waited, "x-first-death-reason": "expired",
			"x-last-death-exchange": queue + ".retry", "x-last-death-queue": waited, "x-last-death-reason": "expired",
			"x-delivery-count": int64(3), "x-acquired-count": int64(3),
		}

		before := amqp091.Publishing{Headers: amqp091.Table{"a": "b"}}
		after := amqp091.Publishing{Headers: amqp091.Table{"a": "b"}}
		for key, value := range added {
			after.Headers[key] = value
		}
		assert.LessOrEqual(t, len(headerFrame(after))-len(headerFrame(before)), returnSize(plan))
		assert.Less(t, returnSize(plan), 4<<10, "there is room left for a message")
	}
}
