package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	wmforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/message/router/plugin"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// These tests hold what docs/how-to/use-watermill-parts.md says of the forwarder, the requeuer and
// smaller parts.

type downFor struct {
	message.Publisher
	topic string

	mu    sync.Mutex
	times int
}

func (p *downFor) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	refuse := topic == p.topic && p.times > 0
	if refuse {
		p.times--
	}
	p.mu.Unlock()
	if refuse {
		return errors.New("it is down")
	}

	return p.Publisher.Publish(topic, messages...)
}

func envelope(t *testing.T, uuid, topic string) amqp091.Publishing {
	t.Helper()
	body := must(json.Marshal(map[string]any{"destination_topic": topic, "uuid": uuid, "payload": []byte(uuid),
		"metadata": map[string]string{"kind": "order"}}))(t)

	return rabbit.Message("envelope-"+uuid, string(body))
}

// A forwarder on a router with the middleware: what cannot be forwarded is retried, and is a dead
// letter of the outbox that can be replayed.
func TestForwarder(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	outbox, fine, broken := a.topic("outbox"), a.topic("fine"), a.topic("broken")
	retrier := a.queues(outbox)
	a.broker.Declare(fine, mainQueueArguments("classic"))
	a.broker.Declare(broken, mainQueueArguments("classic"))
	subscriber := must(retrier.NewSubscriber())(t)
	out := &downFor{Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), topic: broken, times: 3}
	_, err := wmforwarder.NewForwarder(subscriber, out, a.logs,
		wmforwarder.Config{ForwarderTopic: outbox, Router: a.router})
	require.NoError(t, err)
	a.run()
	sender := wmforwarder.NewPublisher(a.publisher(retrier.Config()),
		wmforwarder.PublisherConfig{ForwarderTopic: outbox})
	for _, topic := range []string{broken, fine} {
		msg := message.NewMessage(topic, []byte("body"))
		msg.Metadata.Set("kind", "order")
		require.NoError(t, sender.Publish(topic, msg))
	}
	a.ends(1, 1)

	forwarded := a.broker.Drain(fine)
	require.Len(t, forwarded, 1)
	assert.Equal(t, []string{"_watermill_message_uuid", "kind"}, slices.Sorted(maps.Keys(forwarded[0].Headers)))
	client := openDLQ(t, a.uri)
	for letter, err := range client.Queue(outbox).Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, retry.ReasonExhausted, letter.Reason)
		assert.Equal(t, 3, letter.Calls)
		assert.Contains(t, letter.Error, "it is down")
	}
	report := must(client.Queue(outbox).Run(t.Context(), dlq.Plan{Kind: dlq.Replay}))(t)
	assert.Equal(t, 1, report.Done)
	a.ends(2, 1)
	assert.Equal(t, []string{"body"}, rabbit.Bodies(a.broker.Drain(broken)), "a replay forwards it")
}

// A message that is no envelope is a dead letter at once under NeverRetry, or lost with
// AckWhenCannotUnwrap.
func TestForwarder_NoEnvelope(t *testing.T) {
	t.Parallel()

	for name, acked := range map[string]bool{"dead letter": false, "AckWhenCannotUnwrap": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newPartsApp(t)
			outbox := a.topic("outbox")
			subscriber := must(a.queues(outbox).NewSubscriber())(t)
			_, err := wmforwarder.NewForwarder(subscriber, a.publisher(amqp.NewDurableQueueConfig(a.uri)), a.logs,
				wmforwarder.Config{ForwarderTopic: outbox, Router: a.router, AckWhenCannotUnwrap: acked})
			require.NoError(t, err)
			a.run()
			a.broker.Publish(outbox, rabbit.Message("1", "no envelope"))
			if acked {
				a.ends(1, 0)
				return
			}
			a.ends(0, 1)
			letter := a.letter(outbox)
			hasHeaders(t, letter, headers{header.Reason: "permanent", header.Attempts: "1"})
		})
	}
}

// A forwarder with a router of its own needs the middleware in its config; without it nothing is
// counted.
func TestForwarder_OwnRouter(t *testing.T) {
	t.Parallel()

	for name, forgotten := range map[string]bool{"with the middleware": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newPartsApp(t)
			outbox, broken := a.topic("outbox"), a.topic("broken")
			retrier := a.queues(outbox)
			subscriber := must(retrier.NewSubscriber())(t)
			out := &downFor{Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), topic: broken, times: 1000}
			conf := wmforwarder.Config{ForwarderTopic: outbox}
			if !forgotten {
				conf.Middlewares = []message.HandlerMiddleware{retrier.Middleware}
			}
			f := must(wmforwarder.NewForwarder(subscriber, out, a.logs, conf))(t)
			runs(t, f.Run, f.Running(), f.Close)
			a.broker.Publish(outbox, envelope(t, "1", broken))
			if !forgotten {
				a.ends(0, 1)
				return
			}
			await.Until(t, func() bool { return len(a.logs.with("Handler returned error")) >= 4 }, "it comes back")
			assert.Len(t, a.logs.with(noMiddlewareLog), 1)
			assert.Zero(t, a.count(retry.EventCall), "nothing is counted")
			assert.Zero(t, a.broker.Depth(outbox+".dlq"))
		})
	}
}

func (a *partsApp) requeue(subscriber message.Subscriber, from, to string) {
	a.t.Helper()
	router := newRouter(a.t, a.logs)
	r := must(requeuer.NewRequeuer(requeuer.Config{Subscriber: subscriber, SubscribeTopic: from, Router: router,
		Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), Delay: 10 * time.Millisecond,
		GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return to, nil },
	}, a.logs))(a.t)
	runs(a.t, r.Run, router.Running(), router.Close)
}

// A requeuer sends dead letters back for ever. From the retrier's dead-letter subscriber each life
// begins anew; read as they are in the queue, they count as replays.
func TestRequeuer(t *testing.T) {
	t.Parallel()

	for name, stock := range map[string]bool{"dead-letter subscriber": false, "stock subscriber": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newPartsApp(t)
			queue := a.topic("orders")
			retrier := a.queues(queue)
			s := a.failing(retrier, queue)
			a.run()
			if stock {
				conf := amqp.NewDurableQueueConfig(a.uri)
				plan := must(retrier.Plan(queue))(t)
				for _, q := range plan.Queues {
					if q.Name == queue+".dlq" {
						conf.Queue.Arguments = q.Arguments
					}
				}
				a.requeue(stockOf(t, conf), queue+".dlq", queue)
			} else {
				letters := must(retrier.NewDeadLetterSubscriber())(t)
				a.requeue(letters, queue, queue)
			}
			a.broker.Publish(queue, rabbit.Message("1", "body"))
			await.Until(t, func() bool { return len(s.of("1")) >= 9 }, "three lives, and no end")

			for i, v := range s.of("1")[:9] {
				life := i / 3
				assert.Equal(t, i%3+1, v.Attempt.Number, "each has all attempts")
				replays := 0
				if stock {
					replays = life
				}
				assert.Equal(t, replays, v.Attempt.Replays)
				assert.Equal(t, map[bool]string{true: "", false: strconv.Itoa(life)}[life == 0],
					v.Metadata[requeuer.RetriesKey])
				_, poisoned := v.Metadata[wmmiddleware.ReasonForPoisonedKey]
				assert.Equal(t, life > 0 && !stock, poisoned, "Watermill's metadata of a dead letter")
			}
		})
	}
}

func TestReplayWhereARequeuerLoops(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	queue := a.topic("orders")
	s := a.failing(a.queues(queue), queue)
	a.run()
	a.broker.Publish(queue, rabbit.Message("1", "body"))
	a.ends(0, 1)
	client := openDLQ(t, a.uri)
	_, err := client.Queue(queue).Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	a.ends(0, 2)
	assert.Len(t, s.of("1"), 6, "one more life")
	assert.Empty(t, s.of("1")[3].Metadata, "as it was published")
	letter := must(client.Queue(queue).Get(t.Context(), "1"))(t)
	assert.Equal(t, 1, letter.Replays)
	assert.Equal(t, 6, letter.Calls)
}

func (a *partsApp) failing(retrier *adapter.Retrier, queue string) *seen {
	a.t.Helper()
	subscriber := must(retrier.NewSubscriber())(a.t)
	s := &seen{}
	a.router.AddConsumerHandler("handler", queue, subscriber, s.handler(func(*message.Message) error {
		return errHandler
	}))

	return s
}

// A delay in the metadata delays nothing on RabbitMQ, without the retrier's delay publisher.
func TestDelayMetadata(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	queue := a.topic("orders")
	retrier := a.queues(queue)
	subscriber := must(retrier.NewSubscriber())(t)
	var s seen
	a.router.AddConsumerHandler("handler", queue, subscriber, s.handler(succeed))
	a.run()
	publisher := must(delay.NewPublisher(a.publisher(retrier.Config()), delay.PublisherConfig{}))(t)
	msg := message.NewMessage("1", nil)
	msg.SetContext(delay.WithContext(t.Context(), delay.For(time.Hour)))
	require.NoError(t, publisher.Publish(queue, msg))
	a.ends(1, 0)
	assert.Equal(t, "1h0m0s", s.of("1")[0].Metadata[delay.DelayedForKey])
}

// Fan-in from a plain subscriber is right: retries begin at its target. From the retrier's
// subscriber it is a router without the middleware.
func TestFanIn(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	one, two, all := a.topic("one"), a.topic("two"), a.topic("all")
	retrier := a.queues(all)
	for _, queue := range []string{one, two} {
		a.broker.Declare(queue, mainQueueArguments("quorum"))
	}
	conf := plainConfig(a.uri, "quorum")
	f := must(fanin.NewFanIn(stockOf(t, conf), a.publisher(retrier.Config()), fanin.Config{
		SourceTopics: []string{one, two}, TargetTopic: all}, a.logs))(t)
	subscriber := must(retrier.NewSubscriber())(t)
	var s seen
	a.router.AddConsumerHandler("handler", all, subscriber, s.handler(func(msg *message.Message) error {
		if msg.UUID == "1" {
			return errHandler
		}

		return nil
	}))
	a.run()
	runs(t, f.Run, f.Running(), f.Close)
	a.broker.Publish(one, rabbit.Message("1", ""))
	a.broker.Publish(two, rabbit.Message("2", ""))
	a.ends(1, 1)
	assert.Len(t, s.of("1"), 3)
	assert.Len(t, s.of("2"), 1)
	assert.Equal(t, all, rabbit.Text(a.letter(all), header.Queue))
}

// Handlers that pass messages on take the place of a fan-in: a message that cannot be published is
// retried, and is a dead letter of its source.
func TestFanIn_ByHandlers(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	one, two, all := a.topic("one"), a.topic("two"), a.topic("all")
	a.broker.Declare(all, mainQueueArguments("quorum"))
	subscriber := must(a.queues(one, two).NewSubscriber())(t)
	out := &downFor{Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), topic: all, times: 4}
	for _, source := range []string{one, two} {
		a.router.AddHandler("fan-in-"+source, source, subscriber, all, out, message.PassthroughHandler)
	}
	a.run()
	a.broker.Publish(one, rabbit.Message("1", "")) // four refusals are one life, and one attempt of the next message
	a.ends(0, 1)
	a.broker.Publish(two, rabbit.Message("2", ""))
	a.ends(1, 1)
	assert.Equal(t, one, rabbit.Text(a.letter(one), header.Queue))
	assert.Zero(t, a.broker.Depth(two+".dlq"))
	arrived := a.broker.Drain(all)
	require.Len(t, arrived, 1)
	assert.Equal(t, "2", rabbit.UUID(arrived[0]))
}

func TestFanIn_FromTheRetriersSubscriber(t *testing.T) {
	t.Parallel()

	a := newPartsApp(t)
	one, all := a.topic("one"), a.topic("all")
	retrier := a.queues(one)
	subscriber := must(retrier.NewSubscriber())(t)
	out := &downFor{Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), topic: all, times: 1000}
	f := must(fanin.NewFanIn(subscriber, out, fanin.Config{SourceTopics: []string{one}, TargetTopic: all}, a.logs))(t)
	runs(t, f.Run, f.Running(), f.Close)
	a.broker.Publish(one, rabbit.Message("1", ""))
	await.Until(t, func() bool {
		return len(a.logs.with("Publishing produced messages failed")) >= 4
	}, "it comes back")
	assert.Len(t, a.logs.with(noMiddlewareLog), 1)
	assert.Zero(t, a.broker.Depth(one+".dlq"))
}

// Deduplicator.PublisherDecorator takes an output for published before it is: the output of the
// retry is dropped, and the message is acknowledged as a success.
func TestPublisherDecoratorLosesOutputs(t *testing.T) {
	t.Parallel()

	each(t, map[string]int{"without": 1, "with": 0}, func(t *testing.T, _ string, published int) {
		a := newPartsApp(t)
		queue, outputs := a.topic("orders"), a.topic("outputs")
		retrier := a.queues(queue)
		a.broker.Declare(outputs, mainQueueArguments("classic"))
		subscriber := must(retrier.NewSubscriber())(t)
		if published == 0 {
			a.router.AddPublisherDecorators((&wmmiddleware.Deduplicator{}).PublisherDecorator())
		}
		a.router.AddHandler("handler", queue, subscriber, outputs,
			&downFor{Publisher: a.publisher(amqp.NewDurableQueueConfig(a.uri)), topic: outputs, times: 1},
			func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("output", []byte("output"))},
					a.called(msg.Context(), "handler", nil)
			})
		a.run()
		a.broker.Publish(queue, rabbit.Message("1", ""))
		a.ends(1, 0)
		assert.Equal(t, []int{1, 2}, a.attemptsOf("handler"))
		assert.Len(t, a.broker.Drain(outputs), published)
	})
}

// signalled is the queue of the service that TestSignalsHandler runs in a process of its own.
const signalled = "AMQPRETRY_TEST_SIGNALLED"

// Watermill's plugin closes the router on SIGTERM: the handler that runs ends its work, and Run
// returns.
func TestSignalsHandler(t *testing.T) {
	t.Parallel()

	if queue := os.Getenv(signalled); queue != "" {
		servesUntilSignalled(t, queue)
		return
	}

	a := newPartsApp(t)
	queue := a.topic("orders")
	a.queues(queue) // for the clean-up
	//nolint:gosec // this test itself
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSignalsHandler$", "-test.v")
	cmd.Env = append(os.Environ(), signalled+"="+queue)
	out := must(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		switch lines.Text() {
		case "it runs":
			a.broker.Publish(queue, rabbit.Messages("fails")...)
		case "fails":
			await.Until(t, func() bool { return a.broker.Depth(queue+".retry.1h") == 1 }, "it waits")
			a.broker.Publish(queue, rabbit.Messages("slow", "next")...)
		case "slow":
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
	}
	require.NoError(t, cmd.Wait(), strings.Join(said, "\n"))

	assert.Subset(t, said, []string{"slow has ended", "Run has returned", "the retrier is closed"})
	assert.NotContains(t, said, "next")
	assert.Equal(t, []string{"next"}, rabbit.Bodies(a.broker.Take(queue, 1)))
	a.broker.Has(queue+".retry.1h", 1)
	assert.Zero(t, a.broker.Depth(queue+".dlq"))
}

func servesUntilSignalled(t *testing.T, queue string) {
	t.Helper()
	conf := plainConfig(brokertest.URI(t), "quorum")
	retrier := must(adapter.New(conf, amqpretry.Options{Policies: retries(time.Hour), Prefetch: 1}))(t)
	router := newRouter(t, watermill.NopLogger{}, retrier.Middleware)
	router.AddPlugin(plugin.SignalsHandler, retrier.CheckRouter)
	subscriber := must(retrier.NewSubscriber())(t)
	router.AddConsumerHandler("handler", queue, subscriber, func(msg *message.Message) error {
		fmt.Println(msg.UUID)
		if msg.UUID == "fails" {
			return errHandler
		}
		<-time.After(500 * time.Millisecond)
		fmt.Println(msg.UUID, "has ended")

		return nil
	})
	go func() {
		<-router.Running()
		fmt.Println("it runs")
	}()
	require.NoError(t, router.Run(context.Background()))
	fmt.Println("Run has returned")
	require.NoError(t, retrier.Close())
	fmt.Println("the retrier is closed")
}
