package amqpretry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// ShipOrder is a command, OrderShipped an event.
type (
	ShipOrder    struct{ ID string }
	OrderShipped struct{ ID string }
)

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// shop is a service with one router and one retrier.
type shop struct {
	id      string // part of all topics, because this broker is shared
	router  *message.Router
	retrier *amqpv2.Retrier
	ended   atomic.Int64
}

func (s *shop) topic(name string) string { return name + "-" + s.id }

// subscriber is of a consumer group: commands have one, each event handler has one, and each group
// of event handlers. All are over one connection.
func (s *shop) subscriber(group string) (message.Subscriber, error) {
	return s.retrier.Group(group).NewSubscriber()
}

func (s *shop) addHandlers(eventBus *cqrs.EventBus) error {
	commands, err := cqrs.NewCommandProcessorWithConfig(s.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic(p.CommandName), nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.subscriber("commands")
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
			return s.subscriber(p.HandlerName)
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
			return s.subscriber(p.EventGroupName)
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}

	return errors.Join(
		commands.AddHandlers(cqrs.NewCommandHandler("ship", func(ctx context.Context, c *ShipOrder) error {
			if err := failing(ctx, "ship", 1); err != nil {
				return err
			}
			return eventBus.Publish(ctx, OrderShipped{ID: c.ID})
		})),
		events.AddHandlers(
			cqrs.NewEventHandler("mail", func(ctx context.Context, _ *OrderShipped) error {
				return failing(ctx, "mail", 3)
			}),
			cqrs.NewEventHandler("stock", func(ctx context.Context, _ *OrderShipped) error {
				return failing(ctx, "stock", 0)
			})),
		groups.AddHandlersGroup("reports", // they share a message: a retry calls the first one again
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *OrderShipped) error {
				return failing(ctx, "reports, the day's", 0)
			}),
			cqrs.NewGroupEventHandler(func(ctx context.Context, _ *OrderShipped) error {
				return failing(ctx, "reports, the year's", 1)
			})))
}

// failing fails in the first n attempts.
func failing(ctx context.Context, name string, n int) error {
	attempt, _ := retry.AttemptFromContext(ctx)
	fmt.Printf("%s: attempt %d\n", name, attempt.Number)
	if attempt.Number <= n {
		return errors.New("the database does not answer")
	}

	return nil
}

// report prints how a message ends in each group, and closes the router after the event has ended
// in all three.
func (s *shop) report(event retry.Event) {
	group := strings.TrimPrefix(event.Queue, event.Topic+"_")
	switch event.Kind {
	case retry.EventSucceeded, retry.EventDeadLettered:
		fmt.Printf("%s: %s\n", group, event.Kind)
		if group != "commands" && s.ended.Add(1) == 3 {
			go func() { _ = s.router.Close() }()
		}
	}
}

// buses publish commands and events.
func (s *shop) buses(publisher message.Publisher) (*cqrs.CommandBus, *cqrs.EventBus, error) {
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

func (s *shop) run(conf amqp.Config) (err error) {
	s.retrier, err = amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}, Retries: 2}},
		OnEvent:  s.report, Logger: watermill.NopLogger{},
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.retrier.Close() }()
	if s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}); err != nil {
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
	if err := s.addHandlers(eventBus); err != nil {
		return err
	}

	ctx, stop := context.WithCancelCause(context.Background())
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

	return errors.Join(s.router.Run(ctx), context.Cause(ctx))
}

// Watermill's cqrs component on one retrier: a command, an event with two handlers, and a group of
// handlers.
func ExampleRetrier_Group() {
	uri := os.Getenv("AMQP_URI")
	s := &shop{id: watermill.NewShortUUID()}
	conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName) // the queues of groups have other names
	if err := s.run(conf); err != nil {
		fmt.Println(err)
	}
	demo.Tidy(uri, s.retrier.Group("commands"), s.topic("ShipOrder"))
	for _, group := range []string{"mail", "stock", "reports"} {
		demo.Tidy(uri, s.retrier.Group(group), s.topic("OrderShipped"))
	}
	demo.TidyExchanges(uri, s.topic("ShipOrder"), s.topic("OrderShipped"))
	// Unordered output:
	// commands: succeeded
	// mail: attempt 1
	// mail: attempt 2
	// mail: attempt 3
	// mail: dead-lettered
	// reports, the day's: attempt 1
	// reports, the year's: attempt 1
	// reports, the day's: attempt 2
	// reports, the year's: attempt 2
	// reports: succeeded
	// ship: attempt 1
	// ship: attempt 2
	// stock: attempt 1
	// stock: succeeded
}
