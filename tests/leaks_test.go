package tests

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// occupied is what retriers have open at a broker.
type occupied struct {
	subscriber, letters, forwarder, observer, groups open // by the connection's name

	consumers int
}

type open struct{ connections, channels int }

// occupiedAt asks the broker, which takes it about a second.
func occupiedAt(broker *brokertest.Broker) occupied {
	said := broker.Ctl("eval", `{
		[{Name, proplists:get_value(channels, C)}
			|| C <- rabbit_networking:connection_info_all([client_properties, channels]),
			{<<"connection_name">>, _, Name} <- proplists:get_value(client_properties, C, [])],
		length(rabbit_amqqueue:consumers_all(<<"/">>))}.`)
	var found occupied
	roles := map[string]*open{subscriber: &found.subscriber, letters: &found.letters, forwarder: &found.forwarder,
		observer: &found.observer, groupsName: &found.groups}
	for _, m := range regexp.MustCompile(`\{<<"([^"]*)">>,\s*(\d+)\}`).FindAllStringSubmatch(said, -1) {
		if role := roles[m[1]]; role != nil {
			channels, _ := strconv.Atoi(m[2])
			role.connections++
			role.channels += channels
		}
	}
	end := regexp.MustCompile(`(\d+)\}\s*$`).FindStringSubmatch(said)
	if end == nil {
		return occupied{consumers: -1}
	}
	found.consumers, _ = strconv.Atoi(end[1])

	return found
}

// holds waits until exactly this is open. The broker hears a little later of what was closed
// without an answer. Channels for copies may be fewer: they are closed when they are idle for a
// minute, and rabbitmqctl takes its time on a busy machine.
func holds(t *testing.T, broker *brokertest.Broker, when string, want occupied) {
	t.Helper()
	look := func() occupied {
		found := occupiedAt(broker)
		if found.forwarder.channels < want.forwarder.channels {
			found.forwarder.channels = want.forwarder.channels
		}

		return found
	}
	var found occupied
	await.Until(t, func() bool {
		found = look()
		return found == want
	}, "what is open at the broker, %s: found %+v instead of %+v", when, &found, want)
}

// goroutinesOf are the stacks of the library's goroutines, and its clients', that were begun by
// goroutines with a label.
func goroutinesOf(label string) []string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // fails with its writer only
	var found []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, label) && !strings.Contains(stack, "testkit/await") && // the test itself
			regexp.MustCompile(`watermill-retry/(internal|amqpretry|middleware)|amqp091-go`).MatchString(stack) {
			found = append(found, stack)
		}
	}

	return found
}

// leaks is a retrier with subscriptions to a few topics, whose services come and go.
type leaks struct {
	*service

	broker          *brokertest.Broker
	network         *proxy
	rounds, failing int // of messages, and how many of them have each fate
}

var leakTopics = map[string]config.Policy{
	"own":            {Delays: ms(50)},
	"classic":        {Delays: ms(50), ClassicQueues: true},
	"shared":         {Delays: ms(50), Strategy: config.StrategyShared},
	"shared-classic": {Delays: ms(50), Strategy: config.StrategyShared, ClassicQueues: true},
}

// Whatever happens, a retrier has no more open at the broker than what it says: a connection for
// each subscriber with a channel for each subscription; one for copies, with a channel for each
// main queue and exchange that has seen a failure within a minute; and one to look at depths, which
// keeps no channel. Neither messages nor reconnects nor subscriptions that end or fail add to that,
// and Close leaves nothing.
func TestLeaks_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	label := uniqueName("leaks")
	pprof.Do(t.Context(), pprof.Labels("test", label), func(context.Context) {
		network := newProxy(t, broker.URI)
		l := &leaks{broker: broker, network: network}
		l.service = newService(t, setup{
			URI: network.URI, Queue: "own", QueueType: "quorum", KeepObjects: true, Route: func(*service) {},
			Options: amqpretry.Options{Policies: config.Policies{Default: config.Policy{Delays: ms(50)},
				Topics: leakTopics}},
		})
		l.live(t)
		l.Broker.Close()
		var left []string
		await.Until(t, func() bool {
			left = goroutinesOf(label)
			return len(left) == 0
		}, "the goroutines end; left: %s", &left)
	})
}

func (l *leaks) live(t *testing.T) {
	const cycles = 10
	n := len(leakTopics)
	dead := must(l.Retrier.NewDeadLetterSubscriber())(t)
	assume := newRetrier(t, amqp.NewDurableQueueConfig(l.broker.URI), amqpretry.Options{AssumeTopology: true})

	// A publish on a channel that was closed again has told whether dead letters may be published.
	subscribed := occupied{subscriber: open{1, n}, letters: open{1, n}, forwarder: open{1, 0}, consumers: 2 * n}
	failed := subscribed
	failed.forwarder = open{1, n + 2} // where retry queues are shared, dead letters go by another exchange than retries
	looked := failed
	looked.observer = open{1, 0}
	assumed := looked
	assumed.subscriber = open{2, n}
	waiting := assumed
	waiting.subscriber = open{2, n + 1} // the broker answers neither a consumer nor its end

	for _, step := range []struct {
		name string
		do   func()
		want occupied
	}{
		{"subscribed", func() {
			for topic := range leakTopics {
				l.handle(t, l.Sub, topic, l.Retrier.Middleware)
				l.handle(t, dead, topic, func(message.HandlerFunc) message.HandlerFunc {
					return message.PassthroughHandler
				})
			}
		}, subscribed},
		{"failures", func() { l.fail(t, 40) }, failed},
		{"depths, and subscriptions that end", func() {
			require.NoError(t, l.Sub.SubscribeInitialize("unread"))
			l.Broker.Remove("", "unread.dlq")
			l.look(t, cycles)
			for range cycles {
				ctx, cancel := context.WithCancel(t.Context())
				messages := must(l.Sub.Subscribe(ctx, "brief"))(t)
				cancel()
				await.Closed(t, messages, "the subscription ends")
			}
			for i := range cycles {
				l.visit(t, i%2 == 0)
			}
		}, looked},
		{"subscriptions that fail", func() {
			l.Broker.Declare("conflict", mainQueueArguments("classic"))
			sub := must(assume.NewSubscriber())(t)
			for range cycles {
				_, err := l.Sub.Subscribe(t.Context(), "conflict")
				require.ErrorContains(t, err, "x-queue-type")
				_, err = sub.Subscribe(t.Context(), "missing")
				require.ErrorContains(t, err, "does not exist")
			}
		}, assumed},
		{"queues that are deleted, copies that are refused", func() {
			for range 3 {
				l.again(t, 2, func() { l.Broker.Remove("", "own", "shared-classic") })
				// Those two: RabbitMQ 4.3 may close the whole connection over a queue that is
				// deleted while somebody begins to consume it.
				await.Until(t, func() bool {
					return l.Broker.Consumers("own") == 1 && l.Broker.Consumers("shared-classic") == 1
				}, "the deleted queues are there again")
				// the one closes the channel of who publishes, the other returns what is published
				l.Broker.Remove("own.retry", "retry.50ms")
				l.fail(t, 1)
			}
			l.broker.Ctl("set_policy", "--apply-to", "queues", "full", `^classic\.retry\.50ms`,
				`{"max-length":1,"overflow":"reject-publish"}`)
			l.fail(t, 3)
		}, assumed},
		{"reconnects", func() {
			for range cycles {
				l.again(t, 2*n, func() { l.network.cut(anyone) })
				l.fail(t, 1)
				l.look(t, 1)
			}
		}, assumed},
		{"subscriptions without a leader", func() {
			require.NoError(t, l.Sub.SubscribeInitialize("leaderless"))
			leaderless(l.broker, "leaderless")
			for range cycles {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, err := l.Sub.Subscribe(ctx, "leaderless")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				cancel()
			}
		}, waiting},
		{"a leader at last", func() { elect(l.broker, "leaderless") }, assumed},
		{"closed", func() {
			require.NoError(t, assume.Close())
			require.NoError(t, l.Retrier.Close())
		}, occupied{}},
	} {
		began := time.Now()
		step.do()
		did := time.Since(began)
		holds(t, l.broker, step.name, step.want)
		t.Logf("%s: %s, %s", step.name, did.Round(time.Millisecond), (time.Since(began) - did).Round(time.Millisecond))
	}
}

// handle subscribes and answers by fate, until that ends.
func (l *leaks) handle(t *testing.T, sub message.Subscriber, topic string, by message.HandlerMiddleware) {
	t.Helper()
	messages := must(sub.Subscribe(t.Context(), topic))(t)
	handler := by(func(msg *message.Message) ([]*message.Message, error) { return nil, l.recorded(byFate)(msg) })
	go answer(messages, handler)
}

// fail gives every topic n messages that succeed at last and n that do not, and waits for their
// ends.
func (l *leaks) fail(t *testing.T, n int) {
	t.Helper()
	for topic := range leakTopics {
		l.rounds++
		l.Broker.Publish(topic, rabbit.Messages(rabbit.Numbered(fmt.Sprintf("once-%d", l.rounds), n)...)...)
		l.Broker.Publish(topic, rabbit.Messages(rabbit.Numbered(fmt.Sprintf("never-%d", l.rounds), n)...)...)
		l.failing += n
	}
	await.Until(t, func() bool { return l.processed() == l.failing && l.deadLettered() == l.failing }, "all end")
}

// look asks for the depths, also of a queue that is missing, and while nobody waits for the answer
// any more.
func (l *leaks) look(t *testing.T, n int) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, _ = l.Retrier.QueueDepths(ctx)
		cancel()
		_, err := l.Retrier.QueueDepths(t.Context())
		require.ErrorContains(t, err, "unread.dlq")
	}
}

// again waits until so many subscriptions consume again after what is done to them.
func (l *leaks) again(t *testing.T, n int, do func()) {
	t.Helper()
	consuming := func() int { return len(l.Events(retry.EventConsuming)) }
	n += consuming()
	do()
	await.Until(t, func() bool { return consuming() >= n }, "they consume again")
}

// visit is the life of another retrier with all that it can have: a message that fails, a look at
// the depths, a dead letter.
func (l *leaks) visit(t *testing.T, oneByOne bool) {
	t.Helper()
	dead := make(chan struct{}, 1)
	retrier := newRetrier(t, amqp.NewDurableQueueConfig(l.broker.URI), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}},
	})
	sub := must(retrier.NewSubscriber())(t)
	l.handle(t, sub, "visited", retrier.Middleware)
	letters := must(retrier.NewDeadLetterSubscriber())(t)
	l.handle(t, letters, "visited", func(message.HandlerFunc) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) {
			dead <- struct{}{}
			return nil, nil
		}
	})
	l.Broker.Publish("visited", rabbit.Messages("never")...)
	_, err := retrier.QueueDepths(t.Context())
	require.NoError(t, err)
	await.Closed(t, dead, "a dead letter")
	if oneByOne {
		require.NoError(t, sub.Close())
		require.NoError(t, letters.Close())
	}
	require.NoError(t, retrier.Close())
}
