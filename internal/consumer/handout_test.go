package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestHandoutIsWithdrawnWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := &handout{ctx: ctx}
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
