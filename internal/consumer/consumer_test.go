package consumer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// Initialize ends although the broker does not answer a declaration: after a time, with its
// context, and with Close.
func TestInitialize_NoAnswer(t *testing.T) {
	unanswered := unanswered("orders")

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

// unanswered is a queue whose declaration the broker does not answer.
func unanswered(name string) Queue {
	return Queue{Topic: name, Name: name, Declare: func(_ *connection.Link, channel *amqp091.Channel) error {
		return <-channel.NotifyClose(make(chan *amqp091.Error, 1))
	}}
}

// Prepare gives up when no declaration ends for a time. A subscription to a queue that has no
// answer waits for it as long as without Prepare, and with the same error.
func TestPrepare_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestConsumer(t, fakebroker.NewReluctant(true))
		silent := unanswered("silent")
		all := []Preparation{{c, &silent}}
		for range 2 * preparations {
			queue := Queue{Topic: "t", Name: fmt.Sprintf("q%d", len(all))}
			queue.Declare = func(*connection.Link, *amqp091.Channel) error {
				<-time.After(7 * time.Second)
				return nil
			}
			all = append(all, Preparation{c, &queue})
		}
		ended := map[int]error{}
		began := time.Now()
		err := Prepare(t.Context(), 10*time.Second, all, func(i int, err error) { ended[i] = err })
		assert.Equal(t, &topology.NoAnswerError{Queue: "silent", VirtualHost: "/", For: 10 * time.Second}, err)
		assert.Equal(t, (3*7+10)*time.Second, time.Since(began), "three rounds over the other 7 channels")
		assert.Len(t, ended, 2*preparations)
		assert.NotContains(t, ended, 0)

		began = time.Now()
		_, err = c.Subscribe(t.Context(), silent)
		assert.Equal(t, &topology.NoAnswerError{Queue: "silent", VirtualHost: "/", For: declareTimeout}, err)
		assert.Equal(t, declareTimeout, time.Since(began))

		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(publish.ErrGone) })
		require.ErrorIs(t, Prepare(ctx, 0, all[:1], nil), publish.ErrGone)
	})
}
