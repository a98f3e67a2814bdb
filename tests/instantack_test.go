package tests

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// Watermill's InstantAck outside of the retry middleware gives messages up on a stock subscriber.
// The retrier's own waits for what a middleware says that has the message in hand, if that has it
// in hand before the acknowledgement is seen. Both are told of it in the same words, which must
// hold for both.
func TestInstantAckOutside(t *testing.T) {
	t.Parallel()

	each(t, map[string]bool{"retrier": true, "stock": false}, func(t *testing.T, _ string, own bool) {
		svc := newService(t, setup{Options: amqpretry.Options{MiddlewareOrder: middleware.OrderLog}})
		bare(t, svc, wmmiddleware.InstantAck, svc.Retrier.Middleware)
		var subscriber message.Subscriber = svc.Sub
		if !own {
			subscriber = must(amqp.NewSubscriber(svc.Retrier.Config(), svc.Logs))(t)
		}
		patience := await.Bound // a stock subscriber ends the context once it has acknowledged
		if own {
			patience = 50 * time.Millisecond // the retrier's own may wait for the handler
		}
		fails := func(msg *message.Message) error {
			select {
			case <-msg.Context().Done():
			case <-time.After(patience):
			}
			return errors.New("failed")
		}
		svc.Router.AddConsumerHandler(uniqueName("handler"), svc.Queue, subscriber, svc.recorded(fails))
		svc.run()
		ids := rabbit.Numbered("message", 3)
		svc.publish(ids...)

		if own {
			lost := func() int { return len(svc.Logs.with("Handler returned error")) }
			await.Until(t, func() bool {
				return len(svc.Letters())+lost() == len(ids)
			}, "all have failed twice, or were lost and told of")
		} else {
			await.Until(t, func() bool {
				return len(svc.Logs.with("Handler returned error")) == len(ids)
			}, "all have failed")
			svc.close()
			assert.Equal(t, len(ids), svc.Calls.count())
			assert.Empty(t, svc.Events(retry.EventRetried))
			assert.Zero(t, svc.Broker.Depth(svc.Queue), "lost")
			assert.Zero(t, svc.Broker.Depth(svc.dlq()), "lost")
		}
		logged := svc.Logs.with("A middleware is in the wrong place")
		require.NotEmpty(t, logged)
		assert.ErrorContains(t, logged[0].Err, "a stock subscriber loses those that fail, and the retrier's "+
			"own may lose them")
		svc.close()
	})
}
