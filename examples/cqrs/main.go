// Cqrs shows Watermill's cqrs component on the retrier: a command, an event with two handlers, and a group of handlers.
// Look at
//
//   - service.subscriber, which all three processors get their subscribers from: a queue and a retrier for each name,
//   - the output of the group: its handlers share a message, so that a retry calls the first one again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}, Retries: 2}}

// ShipOrder is a command, OrderShipped an event.
type (
	ShipOrder    struct{ ID string }
	OrderShipped struct{ ID string }
)

// service is a service with one router.
type service struct {
	uri, id  string // the id is part of all names
	out      io.Writer
	router   *message.Router
	retriers []*amqpretry.Retrier
	ended    atomic.Int64
}

// subscriber consumes from a queue for a command handler, an event handler or a group. It has a retrier of its own,
// whose middleware leaves the messages of the others alone.
func (s *service) subscriber(name string, conf amqp.Config) (message.Subscriber, error) {
	retrier, err := amqpretry.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: s.report(name), Logger: watermill.NopLogger{},
	})
	if err != nil {
		return nil, err
	}
	s.retriers = append(s.retriers, retrier)
	s.router.AddMiddleware(retrier.Middleware)
	s.router.AddPlugin(retrier.CheckRouter)

	return retrier.NewSubscriber()
}

// commands are for one consumer, events for each that has a name of its own.
func (s *service) commands() amqp.Config { return amqp.NewDurableQueueConfig(s.uri) }
func (s *service) events(name string) amqp.Config {
	return amqp.NewDurablePubSubConfig(s.uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
}

func (s *service) handlers(eventBus *cqrs.EventBus) error {
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	commands, err := cqrs.NewCommandProcessorWithConfig(s.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.CommandName + "-" + s.id, nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.subscriber(p.HandlerName, s.commands())
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventProcessorWithConfig(s.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.EventName + "-" + s.id, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.subscriber(p.HandlerName, s.events(p.HandlerName))
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	groups, err := cqrs.NewEventGroupProcessorWithConfig(s.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return "OrderShipped-" + s.id, nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.subscriber(p.EventGroupName, s.events(p.EventGroupName))
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}

	return errors.Join(
		commands.AddHandlers(cqrs.NewCommandHandler("ship", func(ctx context.Context, c *ShipOrder) error {
			if s.fails(ctx, "ship", 1) {
				return errors.New("the warehouse does not answer")
			}
			return eventBus.Publish(ctx, OrderShipped{ID: c.ID})
		})),
		events.AddHandlers(
			cqrs.NewEventHandler("mail", func(ctx context.Context, _ *OrderShipped) error {
				s.fails(ctx, "mail", 3)
				return errors.New("the mail server does not answer")
			}),
			cqrs.NewEventHandler("stock", func(ctx context.Context, _ *OrderShipped) error {
				s.fails(ctx, "stock", 0)
				return nil
			})),
		groups.AddHandlersGroup("reports",
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *OrderShipped) error {
				s.fails(ctx, "reports, the day's", 0)
				return nil
			}),
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *OrderShipped) error {
				if s.fails(ctx, "reports, the year's", 1) {
					return errors.New("the database does not answer")
				}
				return nil
			})))
}

// fails prints a call, and reports whether it is one of the first n attempts.
func (s *service) fails(ctx context.Context, name string, n int) bool {
	attempt, _ := retry.AttemptFromContext(ctx)
	fmt.Fprintf(s.out, "%s: attempt %d\n", name, attempt.Number)

	return attempt.Number <= n
}

// report prints how the event ends in each queue, and closes the router after the last of three.
func (s *service) report(name string) func(retry.Event) {
	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded:
			fmt.Fprintf(s.out, "%s: done\n", name)
		case retry.EventDeadLettered:
			fmt.Fprintf(s.out, "%s: dead letter, %s\n", name, event.Verdict.Reason)
		default:
			return
		}
		if name != "ship" && s.ended.Add(1) == 3 {
			go s.router.Close()
		}
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) (err error) {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	s := &service{uri: uri, id: watermill.NewShortUUID(), out: out}
	if s.router, err = message.NewRouter(message.RouterConfig{}, logger); err != nil {
		return err
	}
	defer tidy.Exchanges(uri, "OrderShipped-"+s.id)
	defer func() {
		for _, retrier := range s.retriers {
			tidy.Up(uri, retrier, "ShipOrder-"+s.id, "OrderShipped-"+s.id) // no service deletes its queues
			retrier.Close()
		}
	}()

	commandPublisher, err := amqp.NewPublisher(s.commands(), logger)
	if err != nil {
		return err
	}
	defer commandPublisher.Close()
	eventPublisher, err := amqp.NewPublisher(s.events(""), logger)
	if err != nil {
		return err
	}
	defer eventPublisher.Close()
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	commandBus, err := cqrs.NewCommandBusWithConfig(commandPublisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return p.CommandName + "-" + s.id, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	eventBus, err := cqrs.NewEventBusWithConfig(eventPublisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return p.EventName + "-" + s.id, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	if err := s.handlers(eventBus); err != nil {
		return err
	}

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-s.router.Running(): // from then on the queues exist
			if err := commandBus.Send(ctx, ShipOrder{ID: "order-1"}); err != nil {
				stop(err)
			}
		case <-ctx.Done():
		}
	}()
	if err := s.router.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}

	return nil
}
