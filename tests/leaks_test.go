package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

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

func withChannels(t *testing.T, n uint16, warning time.Duration) *service {
	t.Helper()

	return newService(t, setup{
		KeepObjects: true, Route: func(*service) {},
		Configure: func(c *amqp.Config) { c.Connection.AmqpConfig = &amqp091.Config{ChannelMax: n} },
		Options: amqpretry.Options{
			Policies:    config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}},
			HoldWarning: warning,
		},
	})
}

func (s *service) failing(ctx context.Context, sub message.Subscriber, topic string) (ended <-chan struct{},
	err error) {
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	handler := s.Retrier.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errFate })
	return inBackground(func() { answer(messages, handler) }), nil
}

func (s *service) removeAll(queue string) { s.Broker.Remove(queue+".retry", queue, queue+".dlq") }

// Queues come and go, each with a message that fails. Of those that are gone nothing is kept: no
// channel on either connection, no goroutine, and no name.
func TestBriefQueuesLeaveNothing(t *testing.T) {
	t.Parallel()
	const channels, queues = 4, 15
	label := uniqueName("brief")
	pprof.Do(t.Context(), pprof.Labels("test", label), func(context.Context) {
		svc := withChannels(t, channels, await.Bound) // a slow broker is no held copy
		base, early := uniqueName("brief"), 0
		for i := range queues {
			queue := fmt.Sprintf("%s-%d", base, i)
			t.Cleanup(func() { svc.removeAll(queue) })
			ctx, cancel := context.WithCancel(t.Context())
			ended := must(svc.failing(ctx, svc.Sub, queue))(t)
			svc.Broker.Publish(queue, rabbit.Messages(queue)...)
			await.Until(t, func() bool { return len(svc.Letters()) == i+1 }, "%s fails", queue)
			cancel()
			await.Closed(t, ended, "the subscription ends")
			svc.removeAll(queue)
			if i == channels {
				early = len(goroutinesOf(label))
			}
		}
		assert.Empty(t, svc.Held())
		await.Until(t, func() bool { return len(goroutinesOf(label)) <= early }, "goroutines: %d before", early)
		depths, err := svc.Retrier.QueueDepths(t.Context())
		require.NoError(t, err, "a queue that is not subscribed to is not looked at")
		assert.Empty(t, depths)
		svc.close()
	})
}

// A connection that has no channel left says so, and what waits for one gets it when a subscription
// ends.
func TestNoChannelLeft(t *testing.T) {
	t.Parallel()
	const channels = 3
	svc := withChannels(t, channels, 300*time.Millisecond)
	base := uniqueName("channels")
	queue := func(i int) string { return fmt.Sprintf("%s-%d", base, i) }
	other := must(svc.Retrier.NewSubscriber())(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range channels {
		t.Cleanup(func() { svc.removeAll(queue(i)) })
		_, err := svc.failing(ctx, svc.Sub, queue(i))
		require.NoError(t, err)
		svc.Broker.Publish(queue(i), rabbit.Messages(queue(i))...)
	}
	await.Until(t, func() bool { return len(svc.Letters()) == channels }, "one channel each")

	last := queue(channels)
	t.Cleanup(func() { svc.removeAll(last) })
	_, err := svc.Sub.Subscribe(t.Context(), last)
	require.ErrorIs(t, err, amqp091.ErrChannelMax)
	require.ErrorContains(t, err, "all 3 channels of the connection are in use")

	_, err = svc.failing(t.Context(), other, last)
	require.NoError(t, err)
	svc.Broker.Publish(last, rabbit.Messages(last)...)
	// On a busy machine others may be held as well, and this one may first be held for something
	// else.
	of := func(kind retry.EventKind) func(retry.Event) bool {
		return func(e retry.Event) bool { return e.Kind == kind && e.Queue == last }
	}
	var held error
	await.Until(t, func() bool {
		return slices.ContainsFunc(svc.Events(retry.EventHeld), func(e retry.Event) bool {
			held = e.Err
			return of(retry.EventHeld)(e) && errors.Is(e.Err, amqp091.ErrChannelMax)
		})
	}, "it is held for want of a channel")
	require.ErrorIs(t, held, amqp091.ErrChannelMax)
	assert.NotContains(t, held.Error(), "alarm")

	cancel()
	await.Until(t, func() bool {
		return slices.ContainsFunc(svc.Events(retry.EventReleased), of(retry.EventReleased))
	}, "there is a channel again")
	await.Until(t, func() bool { return len(svc.Letters()) == channels+1 }, "it is dead")
	svc.close()
}

// poison is a broker that closes the connection when somebody consumes from a queue, as RabbitMQ
// does over some errors of its own.
type poison struct {
	queue string
	on    atomic.Bool
}

func (p *poison) wrap(conn net.Conn) net.Conn {
	return &poisonConn{Conn: conn, of: p, closed: make(chan struct{}, 1)}
}

// poisonConn reads ahead, so that it can read something else.
type poisonConn struct {
	net.Conn

	of     *poison
	closed chan struct{}
	after  []byte
}

func (c *poisonConn) Write(b []byte) (int, error) {
	const consume = "\x00\x3c\x00\x14"
	if i := bytes.Index(b, []byte(consume)); i >= 0 && c.of.on.Load() && bytes.Contains(b[i:], []byte(c.of.queue)) {
		c.closed <- struct{}{}
		_ = c.SetReadDeadline(time.Now())

		return len(b), nil
	}

	return c.Conn.Write(b)
}

func (c *poisonConn) Read(b []byte) (int, error) {
	if len(c.after) == 0 {
		n, err := c.Conn.Read(b)
		select {
		case <-c.closed:
			const why = "INTERNAL_ERROR"
			close := append([]byte{0, 10, 0, 50, 541 >> 8, 541 & 0xff, byte(len(why))}, why+"\x00\x00\x00\x00"...)
			c.after = append([]byte{1, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(len(close)))...)
			c.after = append(append(c.after, close...), 0xCE)
		default:
			return n, err
		}
	}
	n := copy(b, c.after)
	c.after = c.after[n:]

	return n, nil
}

// To consume from one queue costs the connection each time. The others go on.
func TestTrouble_OneQueueCostsTheConnection(t *testing.T) {
	t.Parallel()
	bad := &poison{queue: uniqueName("bad")}
	var fromBad calls
	svc := start(t, setup{QueueType: "quorum",
		Configure: func(c *amqp.Config) { wrapConnections(c, bad.wrap) },
		Route: func(s *service) {
			s.Router.AddConsumerHandler("good", s.Queue, s.Sub, s.recorded(succeed))
			s.Router.AddConsumerHandler("bad", bad.queue, s.Sub, func(m *message.Message) error {
				fromBad.add(m)
				return nil
			})
		}})
	t.Cleanup(func() { svc.Broker.Remove("", bad.queue, bad.queue+".dlq") })
	svc.Broker.Publish(bad.queue, rabbit.Messages("before")...)
	await.Until(t, func() bool { return fromBad.count() == 1 }, "it works")

	var busy sync.WaitGroup
	over := make(chan struct{})
	defer busy.Wait()
	defer close(over)
	busy.Go(func() { // the other is as busy whenever the connection is lost
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
				svc.Broker.Publish(svc.Queue, rabbit.Messages("busy")...)
			}
		}
	})
	bad.on.Store(true)
	svc.Broker.Publish(bad.queue, rabbit.Messages(rabbit.Numbered("grow", 100)...)...) // it consumes anew
	told := func() []logEntry { return svc.Logs.with("RabbitMQ closes the connection that consumes") }
	await.Until(t, func() bool { return len(told()) > 0 }, "it is told of")

	consuming := func() (good int) {
		for _, e := range svc.Events(retry.EventConsuming) {
			if e.Queue == svc.Queue {
				good++
			}
		}

		return good
	}
	before := consuming()
	calls := svc.Calls.count()
	await.Until(t, func() bool { return svc.Calls.count() > calls+100 && len(told()) > 2 }, "the others are handled")
	assert.LessOrEqual(t, consuming(), before+1, "the connection of the others stays")
	for _, e := range told() {
		assert.Equal(t, bad.queue, e.Fields["amqp_queue_name"])
	}
	bad.on.Store(false)
	await.Until(t, func() bool { return len(fromBad.ids()) == 101 }, "it goes on when the broker has recovered")
}

// leaderless takes a quorum queue's leader away, for good. A member that stays behind alone with a
// quorum of members that are down never becomes leader, and so does what RabbitMQ 3.10 and 4.0 make
// of a queue that was declared less than a second before they were killed; this is a third way,
// which needs no luck.
func leaderless(broker *brokertest.Broker, queue string) {
	broker.Ctl("eval", fmt.Sprintf(`
		Name = list_to_atom("%%2F_%s"), Id = {Name, node()}, Cluster = quorum_queues,
		ok = ra:stop_server(Cluster, Id),
		Old = ra_directory:uid_of(Cluster, Name),
		{ok, Config} = ra_server_sup_sup:recover_config(Cluster, Name),
		_ = ra_directory:unregister_name(Cluster, Old),
		Init = maps:get(log_init_args, Config),
		New = <<"%s">>,
		ok = ra:start_server(Cluster, Config#{uid => New, log_init_args => Init#{uid => New}}).`, queue,
		watermill.NewShortUUID()))
}

func elect(broker *brokertest.Broker, queue string) {
	broker.Ctl("eval", fmt.Sprintf(`ok = ra:trigger_election({list_to_atom("%%2F_%s"), node()}).`, queue))
}

func onPrivate(uri, queueType string) setup {
	return setup{URI: uri, QueueType: queueType, KeepObjects: true, Handler: byFate,
		Options: amqpretry.Options{CloseTimeout: time.Second}}
}

// A quorum queue without leader answers nobody: no confirm, no nack, no consume-ok. What is to go
// into it is held, and who wants to consume from it is told.
func TestLeaderless_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)

	t.Run("dead-letter queue", func(t *testing.T) {
		t.Parallel()
		svc := start(t, onPrivate(broker.URI, ""))
		leaderless(broker, svc.dlq())
		svc.publish("never-0", "ok-0", "once-0")
		held := svc.reportedHeld(1)
		assert.Contains(t, held.Error(), "leaderless")
		assert.Contains(t, held.Error(), "`rabbitmqctl list_unresponsive_queues -p '/'`")
		await.Until(t, func() bool { return svc.processed() == 2 }, "healthy messages go on")
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("never-0"), "its handler is not called again")

		elect(broker, svc.dlq())
		await.Until(t, func() bool { return len(svc.Letters()) == 1 }, "it goes on by itself")
		assert.Len(t, svc.Broker.Drain(svc.dlq()), 1)
	})

	t.Run("close while it is held", func(t *testing.T) {
		t.Parallel()
		svc := start(t, onPrivate(broker.URI, ""))
		leaderless(broker, svc.dlq())
		svc.publish("never-0")
		_ = svc.reportedHeld(1)
		assert.Less(t, svc.close(), longClose)
		await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 1 }, "the message is in its queue")
	})

	t.Run("main queue", func(t *testing.T) {
		t.Parallel()
		svc := newService(t, onPrivate(broker.URI, "quorum"))
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		leaderless(broker, svc.Queue)

		// Whoever is not ready to wait is not made to.
		gaveUp := errors.New("given up")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gaveUp)
		defer cancel()
		began := time.Now()
		_, err := svc.Sub.Subscribe(ctx, svc.Queue)
		require.ErrorIs(t, err, gaveUp)
		assert.Less(t, time.Since(began), 20*time.Second, "without the context it gives up after 30 s")

		// It takes no messages away once there is a leader.
		elect(broker, svc.Queue)
		messages := must(svc.Sub.Subscribe(t.Context(), svc.Queue))(t)
		svc.publish("ok-0", "ok-1")
		for range 2 {
			// None is given to the consumer that nobody reads.
			msg := await.Value(t, messages, "a message")
			require.NotNil(t, msg, "the subscription ends")
			msg.Ack()
		}
		await.Until(t, func() bool {
			return svc.Broker.Consumers(svc.Queue) == 1
		}, "the consumer that was given up is gone")
	})

	t.Run("main queue, reconnect", func(t *testing.T) {
		t.Parallel()
		network := newProxy(t, broker.URI)
		svc := start(t, onPrivate(network.URI, "quorum"))
		network.refuse(subscriber)
		leaderless(broker, svc.Queue)
		network.allow(subscriber)
		await.Until(t, func() bool { return network.dialled(subscriber) > 1 }, "it is connected again")
		await.Stays(t, time.Second, func() bool {
			return len(svc.Events(retry.EventConsuming)) == 1
		}, "it consumes without a leader")
		elect(broker, svc.Queue)
		await.Until(t, func() bool { return len(svc.Events(retry.EventConsuming)) == 2 }, "it goes on by itself")
		svc.publish("ok-0")
		await.Until(t, func() bool { return svc.processed() == 1 }, "messages are handled")
	})

	t.Run("close while it waits for a leader", func(t *testing.T) {
		t.Parallel()
		network := newProxy(t, broker.URI)
		svc := start(t, onPrivate(network.URI, "quorum"))
		network.refuse(subscriber)
		leaderless(broker, svc.Queue)
		network.allow(subscriber)
		await.Until(t, func() bool { return network.dialled(subscriber) > 1 }, "it is connected again")
		assert.Less(t, svc.close(), longClose)
	})
}
