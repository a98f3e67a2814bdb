// Change shows a policy that changes while messages wait: the new version continues what waits under the old one, and
// what is left of the old one is found and can be retired.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	id := watermill.NewShortUUID()
	out, topic := play.To(to), "orders-"+id

	old := config.Policy{Delays: []time.Duration{2 * time.Second, 10 * time.Second}}
	now := config.Policy{Delays: []time.Duration{500 * time.Millisecond}, Retries: 3}
	for _, policy := range []config.Policy{old, now} {
		defer play.Remove(uri, amqpretry.Options{Policies: config.Policies{Default: policy}}, topic)
	}

	// The old version fails the message once, and ends while it waits.
	failed := make(chan struct{})
	stopOld, err := serve(ctx, uri, topic, old, func(msg *message.Message) error {
		out.Printf("old version: attempt %d\n", number(msg))
		close(failed)

		return errors.New("not yet")
	})
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(amqp.NewDurableQueueConfig(uri), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	if err := publisher.Publish(topic, message.NewMessage("1", []byte("an order"))); err != nil {
		return err
	}
	select {
	case <-failed:
	case <-ctx.Done():
	}
	if err := stopOld(); err != nil {
		return err
	}

	// The new version may as well have been there before: versions with different policies run side by side.
	handled := make(chan struct{})
	stopNew, err := serve(ctx, uri, topic, now, func(msg *message.Message) error {
		out.Printf("new version: attempt %d\n", number(msg))
		if number(msg) < 3 {
			return errors.New("not yet")
		}
		close(handled)

		return nil
	})
	if err != nil {
		return err
	}
	select {
	case <-handled:
	case <-ctx.Done():
	}
	if err := stopNew(); err != nil {
		return err
	}

	// These retry queues of the old policy are not used any more. topology.Management.Retire deletes them.
	before, err := topology.New(topic, old, topology.Names{})
	if err != nil {
		return err
	}
	after, err := topology.New(topic, now, topology.Names{})
	if err != nil {
		return err
	}
	for _, queue := range topology.Obsolete([]topology.Plan{after}, before) {
		out.Printf("obsolete: %s\n", strings.ReplaceAll(queue.Name, "-"+id, ""))
	}

	return nil
}

func number(msg *message.Message) int {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	return attempt.Number
}

// serve runs one version of the service.
func serve(ctx context.Context, uri, topic string, policy config.Policy,
	handler message.NoPublishHandlerFunc) (stop func() error, err error) {
	retrier, err := amqpretry.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		Policies: config.Policies{Default: policy}, Logger: watermill.NopLogger{},
	})
	if err != nil {
		return nil, err
	}
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(retrier.Middleware)
	router.AddConsumerHandler("orders", topic, subscriber, handler)

	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return nil, fmt.Errorf("the service does not run: %w", err)
	}

	return func() error { return errors.Join(router.Close(), retrier.Close()) }, nil
}
