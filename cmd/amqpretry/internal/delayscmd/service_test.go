package delayscmd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

// A retry whose landing queue was deleted while it waited is unroutable; sent on, its handler gets
// it with its history.
func TestSendToAService(t *testing.T) {
	t.Parallel()
	l := newLabOf(t, brokertest.URI(t), config.Ladder{Levels: 2})
	policies, err := policyfile.Load(l.environ[cli.EnvPolicies])
	require.NoError(t, err)
	policies.Default.Delays = []time.Duration{5 * time.Second}
	plan, err := topology.New(l.queue, policies.Default, topology.Names{})
	require.NoError(t, err)
	t.Cleanup(func() { l.RemovePlan(plan) })

	retried := make(chan struct{}, 10)
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(l.URI), amqpretry.Options{Policies: policies,
		Logger: watermill.NopLogger{}, OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventRetried {
				retried <- struct{}{}
			}
		}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, retrier.Close()) })
	subscriber, err := retrier.NewSubscriber()
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(retrier.Middleware)
	attempts := make(chan retry.Attempt, 10)
	router.AddConsumerHandler("handler", l.queue, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		attempts <- attempt
		if attempt.Calls == 0 {
			return errors.New("not now")
		}

		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() { assert.NoError(t, router.Close()); assert.NoError(t, <-ended) })
	await.Closed(t, router.Running(), "the router runs")

	publisher, err := amqp.NewPublisher(retrier.Config(), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	require.NoError(t, publisher.Publish(l.queue, message.NewMessage("order-1", []byte("{}"))))
	await.Closed(t, retried, "the message waits for its retry")
	l.Remove("", l.queue+".landing")
	l.Has(l.ladder.Unroutable(), 1)
	assert.Equal(t, 1, (<-attempts).Number)

	d := l.ok("unroutable", "list")
	assert.Regexp(t, `(?m)^1 +`+l.queue+` +5s +\S+ +order-1 +`+l.queue+` +2$`, d.out)
	d = l.ok("unroutable", "list", "--position", "1", "--ladder", l.ladder.Name())
	assert.Regexp(t, `(?m)^  error +not now$`, d.out)
	l.ok("unroutable", "send", "--target", l.queue, "--yes", "--no-undo", "--ladder", l.ladder.Name())
	attempt := await.Value(t, attempts, "the message arrives")
	assert.Equal(t, []int{1, 1, 1}, []int{attempt.Number, attempt.Calls, attempt.Replays})
	assert.Equal(t, "not now", attempt.LastError)
	l.Has(l.ladder.Unroutable(), 0)
}
