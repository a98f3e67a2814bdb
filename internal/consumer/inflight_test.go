package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHandleWaitsForTheLastMiddleware(t *testing.T) {
	h := &inFlight{}
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
	h := &inFlight{ctx: ctx}
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
