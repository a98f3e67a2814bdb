package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// alternative is one way to deal with a message whose handler fails.
type alternative struct {
	name string
	// circulates says that the message goes from one queue to the other and back.
	circulates bool
	// since is the first version of RabbitMQ that has it.
	since [2]int
	// quorum says that only quorum queues have it.
	quorum bool
	// arguments are those that the main queue gets beside its type. Optional.
	arguments amqp091.Table
	// route changes the router, and returns its subscriber; nil: watermill-amqp's own.
	route func(t *testing.T, a *alternativeRun)
}

// alternativeRun is a service that deals with failures in one of these ways.
type alternativeRun struct {
	queue      string
	poison     string // where the way puts what it gives up; empty: nowhere
	conf       amqp.Config
	router     *message.Router
	subscriber message.Subscriber
	logs       *logs
	stop       func() // ends what runs beside the router
}

var alternatives = []alternative{
	{name: "a plain nack"},
	{name: "Watermill's `Retry`: 3 retries, 1 s apart", route: func(_ *testing.T, a *alternativeRun) {
		a.router.AddMiddleware(middleware.Retry{
			MaxRetries: 3, InitialInterval: time.Second, Multiplier: 1}.Middleware)
	}},
	{name: "Watermill's `PoisonQueue`", route: poisoned},
	{name: "`PoisonQueue` with Watermill's `requeuer`: a delay of 1 s", circulates: true, route: func(t *testing.T, a *alternativeRun) {
		poisoned(t, a)
		subscriber := must(amqp.NewSubscriber(a.conf, a.logs))(t)
		publisher := must(amqp.NewPublisher(a.conf, a.logs))(t)
		requeue := must(requeuer.NewRequeuer(requeuer.Config{Subscriber: subscriber, SubscribeTopic: a.poison,
			Publisher: publisher, Delay: time.Second,
			GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return a.queue, nil },
		}, a.logs))(t)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- requeue.Run(ctx) }()
		a.stop = func() {
			cancel()
			assert.NoError(t, <-ended)
			assert.NoError(t, subscriber.Close())
			assert.NoError(t, publisher.Close())
		}
	}},
	{name: "RabbitMQ's own delayed retry: 1 s", since: [2]int{4, 3}, quorum: true, arguments: delayedRetry},
	{name: "the same, with a marshaler that takes the broker's headers", since: [2]int{4, 3}, quorum: true,
		arguments: delayedRetry, route: func(t *testing.T, a *alternativeRun) {
			policies := config.Policies{Default: config.Policy{Mode: config.ModeOff}}
			a.conf = newRetrier(t, a.conf, amqpretry.Options{Policies: policies, Logger: a.logs}).Config()
		}},
	{name: "**watermill-retry**: 3 retries, 1 s apart", route: func(t *testing.T, a *alternativeRun) {
		options := amqpretry.Options{Policies: retries(ms(1000, 1000, 1000)...), Logger: a.logs}
		retrier := newRetrier(t, a.conf, options)
		plan := must(retrier.Plan(a.queue))(t)
		broker := newRabbit(t, a.conf.Connection.AmqpURI)
		t.Cleanup(func() { broker.RemovePlan(plan) })
		a.router.AddMiddleware(retrier.Middleware)
		a.subscriber = must(retrier.NewSubscriber())(t)
		a.poison = a.queue + ".dlq"
	}},
}

var delayedRetry = amqp091.Table{"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1000)}

func poisoned(t *testing.T, a *alternativeRun) {
	t.Helper()
	publisher := must(amqp.NewPublisher(a.conf, a.logs))(t)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	a.poison = a.queue + ".poison"
	poison := must(middleware.PoisonQueue(publisher, a.poison))(t)
	a.router.AddMiddleware(poison)
}

// The table of docs/concepts/comparison.md: one message that fails for good comes before five
// healthy ones, and all ways to deal with it are watched for 6 s, or longer on a busy machine.
func TestAlternatives(t *testing.T) {
	t.Parallel()

	text := must(os.ReadFile("../docs/concepts/comparison.md"))(t)
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	for _, queueType := range []string{"classic", "quorum"} {
		for _, a := range alternatives {
			if a.quorum && queueType != "quorum" || !broker.AtLeast(a.since[0], a.since[1]) {
				continue
			}
			queue := queueType
			switch {
			case queueType == "classic":
			case broker.AtLeast(4, 3):
				queue = "quorum, 4.3 and later"
			case broker.AtLeast(4, 0):
				queue = "quorum, 4.0 to 4.2"
			default:
				queue = "quorum, before 4.0"
			}
			t.Run(a.name+", "+queue, func(t *testing.T) {
				t.Parallel()
				row := fmt.Sprintf("| %s | %s | ", a.name, queue)
				expected := func(begin string) bool { return strings.Contains(string(text), row+begin) }
				row += a.watch(t, uri, queueType, expected) + " |"
				assert.Contains(t, string(text), row, "a row of the page")
			})
		}
	}
}

// watch tells in words what happens to a message that fails and to those behind it. After 6 s it
// goes on for a while if the words are not the expected ones: on a busy machine fewer calls than
// usual find room in 6 s.
func (a alternative) watch(t *testing.T, uri, queueType string, expected func(begin string) bool) string {
	t.Helper()
	run := a.start(t, uri, queueType)
	broker := newRabbit(t, uri)
	var calls calls
	run.router.AddConsumerHandler(uniqueName("handler"), run.queue, run.subscriber, func(msg *message.Message) error {
		calls.add(msg)
		if msg.UUID == "fails" {
			return errors.New("it fails")
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- run.router.Run(context.Background()) }()
	<-run.router.Running()

	began := time.Now()
	healthy := rabbit.Numbered("healthy", 5)
	broker.Publish(run.queue, rabbit.Messages(append([]string{"fails"}, healthy...)...)...)
	<-time.After(time.Until(began.Add(6 * time.Second)))
	told := inWords(calls.All())
	for time.Since(began) < time.Minute && !expected(told+" | ") {
		<-time.After(tick)
		told = inWords(calls.All())
	}
	require.NoError(t, run.router.Close())
	require.NoError(t, <-ended)
	if s, ok := run.subscriber.(*amqp.Subscriber); ok {
		require.NoError(t, s.Close())
	}
	run.stop()

	return told + " | " + run.where(broker, a.circulates)
}

// inWords tells in words what the handler was called with. The others wait for the retries of the
// message that fails if all calls for it come before theirs, and there are several.
func inWords(calls []call) string {
	failed, before := 0, 0
	handled := map[string]bool{}
	for _, c := range calls {
		if c.ID != "fails" {
			handled[c.ID] = true
			continue
		}
		if failed++; len(handled) == 0 {
			before++
		}
	}

	return timesCalled(failed) + " | " + othersMeanwhile(len(handled), failed > 1 && before == failed)
}

func (a alternative) start(t *testing.T, uri, queueType string) *alternativeRun {
	t.Helper()
	run := &alternativeRun{queue: uniqueName("alternative"), logs: newLogs(t), stop: func() {}}
	run.conf = amqp.NewDurableQueueConfig(uri)
	run.conf.Queue.Arguments = mainQueueArguments(queueType)
	maps.Copy(run.conf.Queue.Arguments, a.arguments)
	broker := newRabbit(t, uri)
	broker.Declare(run.queue, run.conf.Queue.Arguments)
	broker.Declare(run.queue+".poison", run.conf.Queue.Arguments)

	run.router = newRouter(t, run.logs)
	if a.route != nil {
		a.route(t, run)
	}
	if run.subscriber == nil {
		run.subscriber = must(amqp.NewSubscriber(run.conf, run.logs))(t)
	}

	return run
}

func timesCalled(n int) string {
	switch {
	case n == 1:
		return "once"
	case n > 4:
		return "again and again"
	default:
		return fmt.Sprint(n, " times")
	}
}

func othersMeanwhile(handled int, wait bool) string {
	switch {
	case handled == 0:
		return "none is handled"
	case handled < 5:
		return fmt.Sprintf("%d of 5 are handled", handled)
	case wait:
		return "wait for its retries"
	default:
		return "go on"
	}
}

// where finds the message that fails. A queue that delays its own retries shows it only after the
// delay.
func (a *alternativeRun) where(broker *rabbit.Client, circulates bool) string {
	has := func(queue string) bool {
		return queue != "" && slices.ContainsFunc(broker.Drain(queue), func(d amqp091.Delivery) bool {
			return rabbit.UUID(d) == "fails"
		})
	}
	for range 20 {
		switch inMain := has(a.queue); {
		case circulates && (inMain || has(a.poison)):
			return "on its way round"
		case inMain:
			return "in the main queue"
		case has(a.poison):
			return "in " + strings.Replace(strings.TrimPrefix(a.poison, a.queue), ".", "`Q.", 1) + "`"
		}
		<-time.After(300 * time.Millisecond)
	}

	return "**lost**"
}
