package retrytest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// In a bubble the clock of the system is the fake one: waits, timers and contexts are on one clock.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := play(retrytest.Service{
			Policy: twoRetries(), Clock: retrytest.SystemClock(),
			Middlewares: []message.HandlerMiddleware{wmmiddleware.Timeout(3 * time.Second)},
			ConsumerHandler: func(msg *message.Message) error {
				select {
				case <-time.After(time.Hour):
					return nil
				case <-msg.Context().Done():
					return msg.Context().Err()
				}
			},
		})

		r.AssertDeadLettered(t, retry.ReasonExhausted)
		r.AssertDelays(t, seconds(1, 5)...)
		assert.Equal(t, 3*time.Second, r.Steps[0].Took)
		assert.Equal(t, 15*time.Second, time.Since(began))
		assert.Equal(t, time.Now(), r.Ended)
	})
}

// Without the system's clock, a bubble's time stands still: as outside of one.
func TestBubbleWithAClockOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := play(retrytest.Service{
			Policy: config.Policy{Delays: seconds(1), MaxAge: time.Hour}, ConsumerHandler: returns(errDown, nil),
		})
		r.AssertSucceeded(t, 2)
		assert.Equal(t, began, time.Now())
		assert.Equal(t, began.Add(time.Second), r.Ended)
	})
}

func TestBubbleWithWatermillsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := play(retrytest.Service{
			Policy: twoRetries(), Clock: retrytest.SystemClock(),
			Middlewares: []message.HandlerMiddleware{wmmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Second,
				Multiplier: 1}.Middleware},
			ConsumerHandler: returns(errors.New("once"), nil),
		})
		r.AssertSucceeded(t, 1)
		r.AssertCalls(t, 2)
		assert.Equal(t, time.Second, r.Steps[0].Took)
	})
}
