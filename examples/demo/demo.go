// Package demo is what examples need and services do not: messages to begin with, an end, and
// queues that are deleted afterwards.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/retry"
)

// Publish declares the queue of a topic, and publishes a message for each id, which is its UUID and
// its payload.
func Publish(
	publisher message.Publisher, subscriber message.SubscribeInitializer, topic string, ids ...string,
) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}

// CloseAfter returns a function for Options.OnEvent. It closes router when n messages have
// succeeded, were dropped, or are dead letters.
func CloseAfter(router *message.Router, n int) func(retry.Event) {
	var ended atomic.Int64

	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded, retry.EventDropped, retry.EventDeadLettered:
			if ended.Add(1) == int64(n) {
				go router.Close()
			}
		}
	}
}

// Service is a router with one handler.
type Service struct {
	// Config defaults to amqp.NewDurableQueueConfig(os.Getenv("AMQP_URI")).
	Config amqp.Config
	// Options are the retrier's. Without a Logger, it logs nothing.
	Options amqpretry.Options
	// Stock leaves the retrier out: the subscriber is watermill-amqp's own.
	Stock bool

	// Topic defaults to a new one.
	Topic string
	// Middlewares follow the retrier's, as in router.AddMiddleware(retrier.Middleware, others...).
	Middlewares []message.HandlerMiddleware
	Handler     message.NoPublishHandlerFunc
	// Messages have these UUIDs and payloads. They are published when all services have their
	// queues.
	Messages []string
	// Ends is how many messages the service handles, or gives up, before it closes. Defaults to the
	// number of Messages.
	Ends int
	// Until is an event that counts as an end as well.
	Until retry.EventKind
	// Keep leaves the queues on the broker.
	Keep bool
}

// Run runs services side by side, and returns when all are closed. It prints an error.
func Run(services ...Service) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := run(ctx, services); err != nil {
		fmt.Println(err)
	}
}

func run(ctx context.Context, services []Service) error {
	running := make([]*service, len(services))
	for i, s := range services {
		r, err := start(s)
		if err != nil {
			return err
		}
		defer r.close()
		running[i] = r
	}
	for _, r := range running {
		if err := Publish(r.publisher, r.subscriber, r.Topic, r.Messages...); err != nil {
			return err
		}
	}

	errs := make([]error, len(running))
	var wg sync.WaitGroup
	for i, r := range running {
		wg.Go(func() { errs[i] = r.router.Run(ctx) })
	}
	wg.Wait()

	return errors.Join(append(errs, ctx.Err())...)
}

// subscriber is one of the retrier, or of watermill-amqp.
type subscriber interface {
	message.Subscriber
	message.SubscribeInitializer
}

// service is a Service that has its queues.
type service struct {
	Service
	router     *message.Router
	retrier    *amqpv2.Retrier
	subscriber subscriber
	publisher  message.Publisher
}

func start(s Service) (*service, error) {
	if s.Config.Connection.AmqpURI == "" {
		s.Config = amqp.NewDurableQueueConfig(os.Getenv("AMQP_URI"))
	}
	s.Config.Publish.ConfirmDelivery = true
	if s.Options.Logger == nil {
		s.Options.Logger = watermill.NopLogger{}
	}
	if s.Topic == "" {
		s.Topic = "orders-" + watermill.NewShortUUID()
	}
	if s.Ends == 0 {
		s.Ends = len(s.Messages)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	r := &service{Service: s, router: router}
	done := CloseAfter(router, s.Ends)
	if err := r.connect(done); err != nil {
		return nil, err
	}
	router.AddMiddleware(s.Middlewares...)
	router.AddConsumerHandler("handler", s.Topic, r.subscriber, func(msg *message.Message) error {
		err := s.Handler(msg)
		if err == nil { // under policy off, and without the retrier, no event tells it
			done(retry.Event{Kind: retry.EventSucceeded})
		}

		return err
	})

	return r, r.subscriber.SubscribeInitialize(s.Topic)
}

func (r *service) connect(done func(retry.Event)) (err error) {
	if r.publisher, err = amqp.NewPublisher(r.Config, watermill.NopLogger{}); err != nil {
		return err
	}
	if r.Stock {
		r.subscriber, err = amqp.NewSubscriber(r.Config, watermill.NopLogger{})
		return err
	}
	options := r.Options
	options.OnEvent = func(event retry.Event) {
		if r.Options.OnEvent != nil {
			r.Options.OnEvent(event)
		}
		switch event.Kind {
		case retry.EventSucceeded: // its handler has returned nil
		case r.Until:
			done(retry.Event{Kind: retry.EventSucceeded})
		default:
			done(event)
		}
	}
	if r.retrier, err = amqpv2.New(r.Config, options); err != nil {
		return err
	}
	r.router.AddMiddleware(r.retrier.Middleware)
	r.router.AddPlugin(r.retrier.CheckRouter)
	r.subscriber, err = r.retrier.NewSubscriber()

	return err
}

func (r *service) close() {
	uri := r.Config.Connection.AmqpURI
	_, _ = r.publisher.Close(), r.subscriber.Close()
	if r.retrier != nil {
		defer r.retrier.Close()
	}
	switch {
	case r.Keep:
	case r.Stock:
		TidyTopic(uri, r.Topic)
	default:
		Tidy(uri, r.retrier, r.Topic)
	}
}
