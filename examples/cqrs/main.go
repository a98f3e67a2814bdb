// Cqrs shows Watermill's cqrs component on one retrier: a command, an event with two handlers, and
// a group of handlers. Look at
//
//   - the three lines SubscriberConstructor: a consumer group for the commands, for each event
//     handler and for the group, all over one connection,
//   - the output of the group: its handlers share a message, so that a retry calls the first one
//     again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
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

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// service is a service with one router and one retrier.
type service struct {
	id      string // part of all topics
	out     io.Writer
	router  *message.Router
	retrier *amqpv2.Retrier
	ended   atomic.Int64
}

func (s *service) topic(name string) string { return name + "-" + s.id }

func (s *service) handlers(eventBus *cqrs.EventBus) error {
	commands, err := cqrs.NewCommandProcessorWithConfig(s.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic(p.CommandName), nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.retrier.Group("commands").NewSubscriber()
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventProcessorWithConfig(s.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic(p.EventName), nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.retrier.Group(p.HandlerName).NewSubscriber()
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	groups, err := cqrs.NewEventGroupProcessorWithConfig(s.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic("OrderShipped"), nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.retrier.Group(p.EventGroupName).NewSubscriber()
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

// report prints how a message ends in each group, and closes the router after the event has ended
// in all three.
func (s *service) report(event retry.Event) {
	group := strings.TrimPrefix(event.Queue, event.Topic+"_")
	switch event.Kind {
	case retry.EventSucceeded:
		fmt.Fprintf(s.out, "%s: done\n", group)
	case retry.EventDeadLettered:
		fmt.Fprintf(s.out, "%s: dead letter, %s\n", group, event.Verdict.Reason)
	default:
		return
	}
	if group != "commands" && s.ended.Add(1) == 3 {
		go s.router.Close()
	}
}

// buses publish commands and events.
func (s *service) buses(publisher message.Publisher) (*cqrs.CommandBus, *cqrs.EventBus, error) {
	commandBus, err := cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return s.topic(p.CommandName), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	eventBus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return s.topic(p.EventName), nil
		},
		Marshaler: marshaler,
	})

	return commandBus, eventBus, err
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
	s := &service{id: watermill.NewShortUUID(), out: out}
	conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName) // the queues of groups have other names
	s.retrier, err = amqpv2.New(conf, amqpretry.Options{Policies: policies, OnEvent: s.report, Logger: logger})
	if err != nil {
		return err
	}
	defer tidy.Exchanges(uri, s.topic("ShipOrder"), s.topic("OrderShipped")) // no service deletes its queues
	defer func() {
		tidy.Up(uri, s.retrier.Group("commands"), s.topic("ShipOrder"))
		for _, group := range []string{"mail", "stock", "reports"} {
			tidy.Up(uri, s.retrier.Group(group), s.topic("OrderShipped"))
		}
	}()
	defer s.retrier.Close()
	if s.router, err = message.NewRouter(message.RouterConfig{}, logger); err != nil {
		return err
	}
	s.router.AddMiddleware(s.retrier.Middleware)
	s.router.AddPlugin(s.retrier.CheckRouter)

	publisher, err := s.retrier.NewPublisher()
	if err != nil {
		return err
	}
	commandBus, eventBus, err := s.buses(publisher)
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
