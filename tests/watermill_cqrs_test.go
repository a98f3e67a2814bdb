package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// These tests hold the section components/cqrs of docs/how-to/use-watermill-parts.md.

type (
	placeOrder  struct{ ID string }
	cancelOrder struct{ ID string }
	orderPlaced struct{ ID string }
	orderPaid   struct{ ID string }
)

var errHandler = errors.New("it fails")

// partsApp is a service of Watermill's components: one router, and what happened in it.
type partsApp struct {
	t      *testing.T
	uri    string
	prefix string // of all topics
	broker *rabbit.Client
	logs   *logs
	router *message.Router

	calls  records[partsCall]
	events records[retry.Event]
}

type partsCall struct {
	handler string
	attempt int
}

// partsPolicies allow three attempts. What is no JSON has one.
var partsPolicies = config.Policies{Default: config.Policy{
	Delays: ms(50, 50), NeverRetry: []config.ErrorMatch{config.TypeName("*json.SyntaxError")},
}}

func newPartsApp(t *testing.T) *partsApp {
	t.Helper()
	uri := brokertest.URI(t)
	a := &partsApp{t: t, uri: uri, prefix: uniqueName("parts"), broker: newRabbit(t, uri), logs: newLogs(t)}
	a.router = newRouter(t, a.logs, middleware.Retry{}.Middleware)

	return a
}

func (a *partsApp) topic(name string) string { return a.prefix + "." + name }

func (a *partsApp) queues(topics ...string) *adapter.Retrier {
	a.t.Helper()
	conf := plainConfig(a.uri, "quorum")

	return a.retrier(conf, topics...)
}

// fanOut makes a retrier for topics that are exchanges, with a queue for each topic and reader.
func (a *partsApp) fanOut(reader string, topics ...string) *adapter.Retrier {
	a.t.Helper()
	conf := amqp.NewDurablePubSubConfig(a.uri, amqp.GenerateQueueNameTopicNameWithSuffix(reader))
	conf.Queue.Arguments = mainQueueArguments("quorum")
	for _, topic := range topics {
		a.t.Cleanup(func() {
			_ = a.broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
		})
	}

	return a.retrier(conf, topics...)
}

func (a *partsApp) retrier(conf amqp.Config, topics ...string) *adapter.Retrier {
	a.t.Helper()
	retrier := newRetrier(a.t, conf, amqpretry.Options{Policies: partsPolicies, Logger: a.logs,
		OnEvent: func(e retry.Event) { a.events.put(e) }})
	for _, topic := range topics {
		plan := must(retrier.Plan(topic))(a.t)
		a.t.Cleanup(func() { a.broker.RemovePlan(plan) })
	}
	a.router.AddPlugin(retrier.CheckRouter)

	return retrier
}

func (a *partsApp) publisher(conf amqp.Config) message.Publisher {
	a.t.Helper()
	conf.Publish.ConfirmDelivery = true
	publisher := must(amqp.NewPublisher(conf, a.logs))(a.t)
	a.t.Cleanup(func() { assert.NoError(a.t, publisher.Close()) })

	return publisher
}

func (a *partsApp) run() {
	a.t.Helper()
	runRouter(a.t, a.router)
}

func (a *partsApp) called(ctx context.Context, handler string, err error) error {
	attempt, _ := retry.AttemptFromContext(ctx)
	a.calls.put(partsCall{handler, attempt.Number})

	return err
}

func (a *partsApp) attemptsOf(handler string) (attempts []int) {
	for _, c := range a.calls.where(func(c partsCall) bool { return c.handler == handler }) {
		attempts = append(attempts, c.attempt)
	}

	return attempts
}

func (a *partsApp) count(kind retry.EventKind) int {
	return len(a.events.where(func(e retry.Event) bool { return e.Kind == kind }))
}

func (a *partsApp) ends(handled, dead int) {
	a.t.Helper()
	seen := func() bool {
		return a.count(retry.EventSucceeded) == handled && a.count(retry.EventDeadLettered) == dead
	}
	a.t.Cleanup(func() {
		if a.t.Failed() {
			a.t.Logf("%d handled, %d dead", a.count(retry.EventSucceeded), a.count(retry.EventDeadLettered))
		}
	})
	await.Until(a.t, seen, "%d handled, %d dead", handled, dead)
	await.Stays(a.t, 300*time.Millisecond, seen, "%d handled, %d dead", handled, dead)
}

func (a *partsApp) letter(queue string) amqp091.Delivery {
	a.t.Helper()
	letters := a.broker.Drain(queue + ".dlq")
	require.Len(a.t, letters, 1)

	return letters[0]
}

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// commands makes a command processor with a queue for each command, and a bus for it.
func (a *partsApp) commands(change func(*cqrs.CommandProcessorConfig)) (*cqrs.CommandProcessor, *cqrs.CommandBus) {
	a.t.Helper()
	retrier := a.queues(a.topic("placeOrder"), a.topic("cancelOrder"), a.topic("all"))
	conf := cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return a.topic(p.CommandName), nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return retrier.NewSubscriber()
		},
		Marshaler: marshaler, Logger: a.logs,
	}
	bus := cqrs.CommandBusConfig{Marshaler: marshaler, GeneratePublishTopic: func(
		p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
		params := cqrs.CommandProcessorGenerateSubscribeTopicParams{CommandName: p.CommandName}
		return conf.GenerateSubscribeTopic(params)
	}}
	if change != nil {
		change(&conf)
	}
	processor := must(cqrs.NewCommandProcessorWithConfig(a.router, conf))(a.t)
	sender := must(cqrs.NewCommandBusWithConfig(a.publisher(retrier.Config()), bus))(a.t)

	return processor, sender
}

func (a *partsApp) place(err error) cqrs.CommandHandler {
	return cqrs.NewCommandHandler("place", func(ctx context.Context, _ *placeOrder) error {
		return a.called(ctx, "place", err)
	})
}

func (a *partsApp) cancel(err error) cqrs.CommandHandler {
	return cqrs.NewCommandHandler("cancel", func(ctx context.Context, _ *cancelOrder) error {
		return a.called(ctx, "cancel", err)
	})
}

// A failing command is retried and dead-lettered in its own queue; another command does not wait
// for it.
func TestCQRS_Commands(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	processor, bus := a.commands(nil)
	require.NoError(t, processor.AddHandlers(a.place(errHandler), a.cancel(nil)))
	a.run()
	require.NoError(t, bus.Send(t.Context(), placeOrder{ID: "1"}))
	require.NoError(t, bus.Send(t.Context(), cancelOrder{ID: "2"}))
	a.ends(1, 1)

	assert.Equal(t, []int{1, 2, 3}, a.attemptsOf("place"), "by the attempt in the handler's context")
	assert.Equal(t, []int{1}, a.attemptsOf("cancel"))
	letter := a.letter(a.topic("placeOrder"))
	hasHeaders(t, letter, headers{header.Reason: "exhausted", header.Handler: "place", "name": "placeOrder"})
	assert.Zero(t, a.broker.Depth(a.topic("cancelOrder")+".dlq"))
}

// AckCommandHandlingErrors takes the errors away before the retry middleware sees them.
func TestCQRS_AckCommandHandlingErrors(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	processor, bus := a.commands(func(c *cqrs.CommandProcessorConfig) { c.AckCommandHandlingErrors = true })
	require.NoError(t, processor.AddHandlers(a.place(errHandler)))
	a.run()
	require.NoError(t, bus.Send(t.Context(), placeOrder{ID: "1"}))
	a.ends(1, 0)
	assert.Equal(t, []int{1}, a.attemptsOf("place"))
}

// A command processor acknowledges commands of other types, so two handlers on one queue lose each
// other's commands.
func TestCQRS_CommandsOfOneQueueAreLost(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	processor, bus := a.commands(func(c *cqrs.CommandProcessorConfig) {
		c.GenerateSubscribeTopic = func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return a.topic("all"), nil
		}
	})
	require.NoError(t, processor.AddHandlers(a.place(nil)))
	a.run()
	require.NoError(t, bus.Send(t.Context(), cancelOrder{ID: "1"}))
	a.ends(1, 0)
	assert.Empty(t, a.attemptsOf("place"))
}

// A body that is no JSON fails before OnHandle. The policy's NeverRetry keeps it from being
// retried.
func TestCQRS_MalformedCommands(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	onHandle := 0
	processor, _ := a.commands(func(c *cqrs.CommandProcessorConfig) {
		c.OnHandle = func(cqrs.CommandProcessorOnHandleParams) error {
			onHandle++
			return nil
		}
	})
	require.NoError(t, processor.AddHandlers(a.place(nil)))
	a.run()
	malformed := rabbit.Message("1", `{"ID": `)
	malformed.Headers["name"] = "placeOrder"
	a.broker.Publish(a.topic("placeOrder"), malformed)
	a.ends(0, 1)
	assert.Zero(t, onHandle)
	letter := a.letter(a.topic("placeOrder"))
	hasHeaders(t, letter, headers{header.Reason: "permanent", header.Attempts: "1"})
}

// OnHandle can say what an error means, for all handlers of a processor.
func TestCQRS_OnHandleMarksErrors(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	processor, bus := a.commands(func(c *cqrs.CommandProcessorConfig) {
		c.OnHandle = func(p cqrs.CommandProcessorOnHandleParams) error {
			err := p.Handler.Handle(p.Message.Context(), p.Command)
			if errors.Is(err, errHandler) {
				return retry.Permanent(err)
			}

			return err
		}
	})
	require.NoError(t, processor.AddHandlers(a.place(errHandler)))
	a.run()
	require.NoError(t, bus.Send(t.Context(), placeOrder{ID: "1"}))
	a.ends(0, 1)
	assert.Equal(t, "permanent", rabbit.Text(a.letter(a.topic("placeOrder")), header.Reason))
	assert.Equal(t, []int{1}, a.attemptsOf("place"))
}

func (a *partsApp) eventBus(conf amqp.Config, topic func(event string) string) *cqrs.EventBus {
	a.t.Helper()
	bus := must(cqrs.NewEventBusWithConfig(a.publisher(conf), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return topic(p.EventName), nil
		}, Marshaler: marshaler, Logger: a.logs,
	}))(a.t)

	return bus
}

// onEvents adds event handlers, each with the subscriber that its name has.
func (a *partsApp) onEvents(
	subscribers func(handler string) (message.Subscriber, error), topic func(event string) string,
	ackUnknown bool, handlers ...cqrs.EventHandler) {
	a.t.Helper()
	processor := must(cqrs.NewEventProcessorWithConfig(a.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return topic(p.EventName), nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscribers(p.HandlerName)
		},
		AckOnUnknownEvent: ackUnknown, Marshaler: marshaler, Logger: a.logs,
	}))(a.t)
	require.NoError(a.t, processor.AddHandlers(handlers...))
}

func (a *partsApp) placed(handler string, err error) cqrs.EventHandler {
	return cqrs.NewEventHandler(handler, func(ctx context.Context, _ *orderPlaced) error {
		return a.called(ctx, handler, err)
	})
}

// Each event handler has a queue, and a retrier that names it: a failure is retried for the handler
// that failed.
func TestCQRS_Events(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	topic := a.topic("orderPlaced")
	a.onEvents(func(handler string) (message.Subscriber, error) {
		return a.fanOut(handler, topic).NewSubscriber()
	}, a.topic, false, a.placed("mail", errHandler), a.placed("stock", nil))
	bus := a.eventBus(amqp.NewDurablePubSubConfig(a.uri, nil), a.topic)
	a.run()
	require.NoError(t, bus.Publish(t.Context(), orderPlaced{ID: "1"}))
	a.ends(1, 1)

	assert.Equal(t, []int{1, 2, 3}, a.attemptsOf("mail"))
	assert.Equal(t, []int{1}, a.attemptsOf("stock"))
	assert.Equal(t, "exhausted", rabbit.Text(a.letter(topic+"_mail"), header.Reason))
	assert.Zero(t, a.broker.Depth(topic+"_stock.dlq"))
}

// Two handlers of an event share the queue of a queue config: each event reaches one of them.
func TestCQRS_EventsOfOneQueueReachOneHandler(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	retrier := a.queues(a.topic("orderPlaced"))
	a.onEvents(func(string) (message.Subscriber, error) {
		return retrier.NewSubscriber()
	}, a.topic, false, a.placed("mail", nil), a.placed("stock", nil))
	bus := a.eventBus(retrier.Config(), a.topic)
	a.run()
	for i := range 10 {
		require.NoError(t, bus.Publish(t.Context(), orderPlaced{ID: fmt.Sprint(i)}))
	}
	a.ends(10, 0)
	assert.Len(t, append(a.attemptsOf("mail"), a.attemptsOf("stock")...), 10)
}

// With one topic for all events, a handler gets those of others: an error, or nothing, as
// AckOnUnknownEvent says.
func TestCQRS_AckOnUnknownEvent(t *testing.T) {
	t.Parallel()

	for ack, ends := range map[bool][2]int{false: {1, 1}, true: {2, 0}} {
		t.Run(fmt.Sprint(ack), func(t *testing.T) {
			t.Parallel()

			a := newPartsApp(t)
			one := func(string) string { return a.topic("events") }
			a.onEvents(func(handler string) (message.Subscriber, error) {
				return a.fanOut(handler, a.topic("events")).NewSubscriber()
			}, one, ack, a.placed("mail", nil))
			bus := a.eventBus(amqp.NewDurablePubSubConfig(a.uri, nil), one)
			a.run()
			require.NoError(t, bus.Publish(t.Context(), orderPaid{ID: "1"}))
			require.NoError(t, bus.Publish(t.Context(), orderPlaced{ID: "2"}))
			a.ends(ends[0], ends[1])
			assert.Equal(t, []int{1}, a.attemptsOf("mail"))
			if !ack {
				letter := a.letter(a.topic("events") + "_mail")
				hasHeaders(t, letter, headers{"name": "orderPaid", header.Attempts: "3"})
			}
		})
	}
}

// The handlers of a group share an attempt: those before the one that failed are called again,
// those after it never.
func TestCQRS_EventGroups(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	events := a.topic("events")
	processor, err := cqrs.NewEventGroupProcessorWithConfig(a.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return events, nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.fanOut(p.EventGroupName, events).NewSubscriber()
		},
		AckOnUnknownEvent: true, Marshaler: marshaler, Logger: a.logs,
	})
	require.NoError(t, err)
	placed := func(handler string, err error) cqrs.GroupEventHandler {
		return cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderPlaced) error {
			return a.called(ctx, handler, err)
		})
	}
	require.NoError(t, processor.AddHandlersGroup("billing", placed("first", nil), placed("second", errHandler),
		placed("third", nil)))
	require.NoError(t, processor.AddHandlersGroup("shipping", placed("fourth", nil)))
	bus := a.eventBus(amqp.NewDurablePubSubConfig(a.uri, nil), func(string) string { return events })
	a.run()
	require.NoError(t, bus.Publish(t.Context(), orderPlaced{ID: "1"}))
	a.ends(1, 1)

	assert.Equal(t, []int{1, 2, 3}, a.attemptsOf("first"), "it is called again, though it has succeeded")
	assert.Equal(t, []int{1, 2, 3}, a.attemptsOf("second"))
	assert.Empty(t, a.attemptsOf("third"))
	assert.Equal(t, []int{1}, a.attemptsOf("fourth"), "another group is not affected")
	letter := a.letter(events + "_billing")
	assert.Equal(t, "billing", rabbit.Text(letter, header.Handler), "the group, not the handler in it")
}
