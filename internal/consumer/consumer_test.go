package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// Initialize ends although the broker does not answer a declaration: after a time, with its
// context, and with Close.
func TestInitialize_NoAnswer(t *testing.T) {
	unanswered := Queue{Topic: "orders", Name: "orders", Declare: func(channel *amqp091.Channel, _ string) error {
		return <-channel.NotifyClose(make(chan *amqp091.Error, 1))
	}}

	for name, test := range map[string]struct {
		end   func(*Consumer, context.CancelCauseFunc)
		want  error
		after time.Duration
	}{
		"by itself": {func(*Consumer, context.CancelCauseFunc) {}, &topology.NoAnswerError{Queue: "orders",
			VirtualHost: "/", For: declareTimeout}, declareTimeout},
		"its context": {func(_ *Consumer, cancel context.CancelCauseFunc) {
			cancel(publish.ErrGone)
		}, publish.ErrGone, time.Second},
		"Close": {func(c *Consumer, _ context.CancelCauseFunc) { _ = c.Close() }, connection.ErrClosed, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestConsumer(t, fakebroker.NewReluctant(false))
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)

				began := time.Now()
				time.AfterFunc(time.Second, func() { test.end(c, cancel) })
				assert.Equal(t, test.want, c.Initialize(ctx, unanswered))
				assert.Equal(t, test.after, time.Since(began))
			})
		})
	}
}
