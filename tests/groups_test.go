package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// Consumer groups of one retrier: docs/how-to/use-watermill-parts.md and amqpretry.Group say what
// they do.

type groupsApp struct {
	t       *testing.T
	topic   string
	names   []string
	retrier *adapter.Retrier
	router  *message.Router
	broker  *rabbit.Client
	logs    *logs
	calls   map[string]*calls // by group
	subs    map[string]*amqpretry.Subscriber

	redelivered map[string]*atomic.Int64 // messages that a group's handler got and the broker had delivered before
}

type groupsSetup struct {
	URI       string
	Groups    []string
	QueueType string
	Options   amqpretry.Options
	Handler   func(group string, msg *message.Message) error
}

// remembers writes on a message whether the broker has delivered it before.
type remembers struct{ amqp.DefaultMarshaler }

const redeliveredKey = "redelivered-in-test"

func (m remembers) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	if err == nil && d.Redelivered {
		msg.Metadata.Set(redeliveredKey, "yes")
	}

	return msg, err
}

func startGroups(t *testing.T, s groupsSetup) *groupsApp {
	t.Helper()
	a := &groupsApp{t: t, topic: uniqueName("groups"), names: s.Groups, broker: newRabbit(t, s.URI), logs: newLogs(t),
		calls: map[string]*calls{}, subs: map[string]*amqpretry.Subscriber{}, redelivered: map[string]*atomic.Int64{}}
	conf := amqp.NewDurablePubSubConfig(s.URI, amqp.GenerateQueueNameTopicNameWithSuffix("no-group"))
	conf.Queue.Arguments = mainQueueArguments(s.QueueType)
	conf.Connection.Reconnect = fastReconnect()
	conf.Marshaler = remembers{}
	t.Cleanup(func() { // behind the service
		_ = a.broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(a.topic, false, false) })
	})
	s.Options.Logger = a.logs
	if s.Options.Policies.Default.IsZero() {
		s.Options.Policies = retries(ms(60, 80)...)
	}
	if s.Options.Prefetch == 0 {
		s.Options.Prefetch = 10
	}
	if s.Options.CloseTimeout == 0 {
		s.Options.CloseTimeout = 3 * time.Second
	}
	a.retrier = newRetrier(t, conf, s.Options)
	a.router = newRouter(t, a.logs, a.retrier.Middleware)
	a.router.AddPlugin(a.retrier.CheckRouter)
	for _, group := range s.Groups {
		plan := must(a.retrier.Group(group).Plan(a.topic))(t)
		t.Cleanup(func() { a.broker.RemovePlan(plan) })
		a.calls[group], a.redelivered[group] = &calls{}, &atomic.Int64{}
		a.add(group, group, s.Handler)
	}
	runRouter(t, a.router)

	return a
}

func (a *groupsApp) add(name, group string, handler func(string, *message.Message) error) {
	a.t.Helper()
	sub := must(a.retrier.Group(group).NewSubscriber())(a.t)
	a.subs[name] = sub
	a.router.AddConsumerHandler(name, a.topic, sub, func(msg *message.Message) error {
		a.calls[group].add(msg)
		if msg.Metadata.Get(redeliveredKey) != "" {
			a.redelivered[group].Add(1)
		}

		return handler(group, msg)
	})
}

func (a *groupsApp) publish(ids ...string) {
	a.t.Helper()
	a.broker.PublishTo(a.topic, "", rabbit.Messages(ids...)...)
}

func (a *groupsApp) queue(group string) string { return a.topic + "_" + group }

func numberedGroups(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("group-%d", i)
	}

	return names
}

func (a *groupsApp) handledBy(group string, ids []string) {
	a.t.Helper()
	await.Until(a.t, func() bool {
		seen := a.calls[group].ids()
		for _, id := range ids {
			if seen[id] == 0 {
				return false
			}
		}

		return true
	}, "group %s handles %d messages", group, len(ids))
}

// P5 for the groups of one retrier: only the group that fails gets the message again, under its own
// policy. Depths, plan and dead letters are those of the group.
func TestP5_OnlyTheGroupThatFailedGetsTheRetry(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		failTwice := failing(2)
		a := startGroups(t, groupsSetup{
			URI: brokertest.URI(t), QueueType: queueType, Groups: []string{"a", "b", "c"},
			Options: amqpretry.Options{Groups: map[string]config.Policies{"c": withLadder(retries(ms(50)...))}},
			Handler: func(group string, msg *message.Message) error {
				switch {
				case group == "b":
					return nil
				case group == "a" && msg.UUID == "twice":
					return failTwice(msg)
				default:
					return errFate
				}
			},
		})
		a.publish("twice", "dead")
		letter := a.broker.Take(a.queue("a")+".dlq", 1)[0]
		await.Until(t, func() bool {
			return a.calls["a"].count() == 6 && a.calls["b"].count() == 2 && a.calls["c"].count() == 4
		}, "a: 6, b: 2, c: 4")
		await.Stays(t, 300*time.Millisecond, func() bool {
			return a.calls["a"].count()+a.calls["b"].count()+a.calls["c"].count() == 12
		}, "nothing more comes to any group")

		assert.Equal(t, "dead", rabbit.UUID(letter))
		hasHeaders(t, letter, headers{header.Queue: a.queue("a"), header.Topic: a.topic})
		assert.Equal(t, []int{1, 2, 3}, a.calls["a"].attempts("twice"))
		assert.Equal(t, []int{1}, a.calls["b"].attempts("twice"))
		assert.Equal(t, []int{1, 2}, a.calls["c"].attempts("twice"), "by the policy of the group")
		assert.Zero(t, a.broker.Depth(a.queue("b")+".dlq"))

		a.checkDeadLettersOf("c")
	})
}

func (a *groupsApp) checkDeadLettersOf(group string) {
	a.t.Helper()
	dlq := a.queue(group) + ".dlq"
	await.Until(a.t, func() bool {
		depths := must(a.retrier.QueueDepths(a.t.Context()))(a.t)
		for _, d := range depths {
			if d.Queue == dlq {
				assert.Equal(a.t, a.queue(group), d.MainQueue)
				return d.Messages == 2
			}
		}

		return false
	}, "the depth of the group's dead-letter queue is 2")

	letters := must(a.retrier.Group(group).NewDeadLetterSubscriber())(a.t)
	messages := must(letters.Subscribe(a.t.Context(), a.topic))(a.t)
	for range 2 {
		msg := receive(a.t, messages)
		letter, ok := retry.DeadLetterFromContext(msg.Context())
		assert.True(a.t, ok)
		assert.Equal(a.t, a.queue(group), letter.Queue)
		assert.Equal(a.t, a.topic, letter.Topic)
		msg.Ack()
	}
	require.NoError(a.t, letters.Close())
	assert.Empty(a.t, a.broker.Drain(dlq))
}

// Ten groups take two connections: one to consume, and one for copies. A closed group takes its
// channel along, and the last one the connection.
func TestGroups_ShareOneConnection_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t)
	groups := numberedGroups(10)
	a := startGroups(t, groupsSetup{URI: broker.URI, Groups: groups,
		Handler: func(group string, _ *message.Message) error {
			if group == groups[0] {
				return errFate // so that there are copies
			}

			return nil
		}})
	a.publish("message")
	for _, group := range groups {
		a.handledBy(group, []string{"message"})
	}
	found := occupiedAt(broker)
	assert.Equal(t, open{1, 10}, found.groups)
	assert.Equal(t, 1, found.forwarder.connections)
	assert.Zero(t, found.subscriber.connections)
	assert.Equal(t, 10, found.consumers)
	assert.Equal(t, 2, strings.Count(broker.Ctl("-q", "list_connections", "pid"), "<"), "connections in all")

	letters := must(a.retrier.Group(groups[0]).NewDeadLetterSubscriber())(t)
	_, err := letters.Subscribe(t.Context(), a.topic)
	require.NoError(t, err)
	assert.Equal(t, open{1, 11}, occupiedAt(broker).groups, "dead letters come over the same")
	require.NoError(t, letters.Close())

	for _, group := range groups[1:] {
		require.NoError(t, a.subs[group].Close())
	}
	await.Until(t, func() bool { return occupiedAt(broker).groups == open{1, 1} }, "one is left")
	require.NoError(t, a.subs[groups[0]].Close())
	await.Until(t, func() bool { return occupiedAt(broker).groups == open{} }, "none is left")

	sub, err := a.retrier.Group("late").NewSubscriber()
	require.NoError(t, err, "a group that comes later")
	await.Until(t, func() bool { return occupiedAt(broker).groups.connections == 1 }, "it connects anew")
	require.NoError(t, sub.Close())
}

// A handler that does not return holds up its own group only, also while its prefetched messages
// lie in the process.
func TestGroups_HangingHandlerHoldsUpNoOtherGroup(t *testing.T) {
	t.Parallel()

	goOn := make(chan struct{})
	a := startGroups(t, groupsSetup{
		URI: brokertest.URI(t), Groups: []string{"hanging", "busy"},
		Options: amqpretry.Options{Prefetch: 100, CloseTimeout: await.Bound},
		Handler: func(group string, _ *message.Message) error {
			if group == "hanging" {
				<-goOn
			}

			return nil
		},
	})
	ids := rabbit.Numbered("message", 5000)
	a.publish(ids...)
	a.handledBy("busy", ids)
	await.Until(t, func() bool { return a.calls["hanging"].count() > 0 }, "the other one hangs")
	assert.Equal(t, 1, a.calls["hanging"].count())
	assert.Equal(t, 5000, a.calls["busy"].count())

	began := time.Now()
	require.NoError(t, a.subs["busy"].Close())
	assert.Less(t, time.Since(began), 30*time.Second, "nor does it hold up a close")
	close(goOn)
	a.handledBy("hanging", ids)
	assert.Zero(t, a.redelivered["busy"].Load()+a.redelivered["hanging"].Load())
}

// All groups come back after the connection is lost, and handle what comes then.
func TestGroups_ComeBackAfterALostConnection(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	groups := numberedGroups(10)
	a := startGroups(t, groupsSetup{URI: network.URI, QueueType: "quorum", Groups: groups,
		Handler: func(_ string, msg *message.Message) error { return byFate(msg) }})
	for round := range 3 {
		ids := rabbit.Numbered(fmt.Sprintf("ok-%d", round), 20)
		await.Until(t, func() bool {
			return network.dialled(groupsName) == round+1 && a.broker.Consumers(a.queue(groups[9])) == 1
		}, "it is connected")
		a.publish(ids...)
		require.Equal(t, 1, network.cut(groupsName), "one connection, and it is cut in the middle")
		for _, group := range groups {
			a.handledBy(group, ids)
		}
	}
	await.Until(t, func() bool { return network.dialled(groupsName) == 4 }, "one connection each time")
}

// A group that closes while all are at work disturbs none: nothing is lost, the others get each
// message once, and it goes on where it was when it comes back.
func TestGroups_OneClosesUnderLoad(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		groups := numberedGroups(5)
		handler := func(string, *message.Message) error { return nil }
		a := startGroups(t, groupsSetup{URI: brokertest.URI(t), QueueType: queueType, Groups: groups,
			Options: amqpretry.Options{Prefetch: 50, CloseTimeout: await.Bound}, Handler: handler})
		ids := rabbit.Numbered("message", 3000)
		published := make(chan error, 1)
		go func() {
			for i := 0; i < len(ids); i += 100 {
				if err := a.broker.TryPublish(a.topic, "", rabbit.Messages(ids[i:i+100]...)...); err != nil {
					published <- err
					return
				}
			}
			published <- nil
		}()
		for round := range 4 {
			name := groups[0]
			if round > 0 {
				name = fmt.Sprintf("%s in round %d", groups[0], round)
				a.add(name, groups[0], handler)
				require.NoError(t, a.router.RunHandlers(t.Context()))
			}
			await.Until(t, func() bool { return a.calls[groups[0]].count() > 500*round+100 }, "it is in the middle")
			require.NoError(t, a.subs[name].Close())
		}
		require.NoError(t, <-published)
		for _, group := range groups[1:] {
			a.handledBy(group, ids)
			assert.Equal(t, len(ids), a.calls[group].count(), "%s: each message once", group)
			assert.Zero(t, a.redelivered[group].Load(), "%s: and none that was delivered before", group)
		}

		a.add("the rest", groups[0], handler)
		require.NoError(t, a.router.RunHandlers(t.Context()))
		a.handledBy(groups[0], ids)
		assert.Equal(t, len(ids), a.calls[groups[0]].count(), "each message once")
		assert.Zero(t, a.broker.Depth(a.queue(groups[0])))
	})
}

// newGroups makes a retrier for groups, whose queues for a topic are removed when the test ends.
func newGroups(t *testing.T, topic string, options amqpretry.Options, groups ...string) *adapter.Retrier {
	t.Helper()
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	t.Cleanup(func() {
		_ = broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
	})
	if options.Logger == nil {
		options.Logger = newLogs(t)
	}
	conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName)
	conf.Queue.Arguments = mainQueueArguments("")
	for _, group := range groups {
		t.Cleanup(func() {
			plan := must(newRetrier(t, conf, options).Group(group).Plan(topic))(t)
			broker.RemovePlan(plan)
		})
	}

	return newRetrier(t, conf, options)
}

// Two groups in one queue would each get some of the messages. A group and a subscriber without one
// may share it under one policy.
func TestGroups_ShareNoQueue(t *testing.T) {
	t.Parallel()

	topic := uniqueName("groups")
	retrier := newGroups(t, topic, amqpretry.Options{
		Policies: retries(ms(100)...), GroupQueue: func(topic, _ string) string { return topic },
		Groups: map[string]config.Policies{"other": {Default: config.Policy{Mode: config.ModeDeadLetter}}},
	}, "a")
	subscribe := func(newSubscriber func() (*amqpretry.Subscriber, error)) error {
		subscriber := must(newSubscriber())(t)
		_, err := subscriber.Subscribe(context.Background(), topic)

		return err
	}
	require.NoError(t, subscribe(retrier.Group("a").NewSubscriber))
	require.NoError(t, subscribe(retrier.Group("a").NewSubscriber), "instances of a group")
	require.NoError(t, subscribe(retrier.NewSubscriber), "without a group")

	shared := errorAs[*topology.SharedQueueError](t, subscribe(retrier.Group("b").NewSubscriber))
	assert.Equal(t, topology.SharedQueueError{Queue: topic, Competing: true,
		Topics: [2]string{topic, topic}, Groups: [2]string{"a", "b"}}, *shared)

	named := newGroups(t, topic, amqpretry.Options{Policies: retries(ms(100)...)}, "billing")
	group := must(named.Group("billing").NewSubscriber())(t)
	_, err := group.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	plain := must(named.NewSubscriber())(t)
	_, err = plain.Subscribe(context.Background(), topic+"_billing") // whose queue has the same name
	require.ErrorAs(t, err, &shared)
	require.ErrorContains(t, err, "and a subscriber without a group")

	policies := errorAs[*topology.SharedQueueError](t, subscribe(retrier.Group("other").NewSubscriber))
	assert.ErrorContains(t, policies, "is used under two policies, that of a group and another one")
}

// A closed subscriber of a group says so, though others go on using its connection.
func TestGroups_ClosedSubscriber(t *testing.T) {
	t.Parallel()

	topic := uniqueName("groups")
	retrier := newGroups(t, topic, amqpretry.Options{}, "a", "b")
	open := must(retrier.Group("a").NewSubscriber())(t)
	closed := must(retrier.Group("b").NewSubscriber())(t)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close(), "again")
	_, err := closed.Subscribe(context.Background(), topic)
	require.ErrorIs(t, err, amqpretry.ErrClosed)
	require.ErrorIs(t, closed.SubscribeInitialize(topic), amqpretry.ErrClosed)
	require.NoError(t, open.SubscribeInitialize(topic), "closed twice, it has left once")
	_, err = open.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	require.NoError(t, retrier.Close())
	_, err = retrier.Group("c").NewSubscriber()
	require.ErrorIs(t, err, amqpretry.ErrClosed)
}

// The plugin knows the subscribers of groups, and the policies of each.
func TestGroups_CheckRouter(t *testing.T) {
	t.Parallel()

	topic, logged := uniqueName("groups"), newLogs(t)
	retrier := newGroups(t, topic, amqpretry.Options{Groups: map[string]config.Policies{
		"off":    {Default: config.Policy{Mode: config.ModeOff}},
		"of":     {}, // nobody's
		"of all": {},
	}, Logger: logged})
	router := newRouter(t, logged)
	for _, group := range []string{"off", "on"} {
		subscriber := must(retrier.Group(group).NewSubscriber())(t)
		router.AddConsumerHandler(group, topic, subscriber, succeed)
	}
	err := retrier.CheckRouter(router)
	forgotten := errorAs[*middleware.NoMiddlewareError](t, err)
	assert.Equal(t, middleware.NoMiddlewareError{Handler: "on", Topic: topic}, *forgotten)
	assert.NotContains(t, err.Error(), `"off"`)
	told := logged.with("Policies of a group have no effect")
	require.Len(t, told, 2)
	require.ErrorContains(t, told[0].Err, `Options.Groups["of"]: no subscriber`)
	require.ErrorContains(t, told[1].Err, `Options.Groups["of all"]: no subscriber`)
}

// A broker that is killed twice while ten groups are at work: each group handles every message, or
// has it among its dead letters.
func TestGroups_BrokerKilled_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, 5*time.Second))
	groups := numberedGroups(10)
	a := startGroups(t, groupsSetup{URI: broker.URI, QueueType: "quorum", Groups: groups,
		Options: amqpretry.Options{Concurrency: 2, Policies: retries(ms(500, 500)...)},
		Handler: func(_ string, msg *message.Message) error {
			<-time.After(time.Millisecond)
			return byFate(msg)
		}})
	broker.Settle()

	ids := fates(400)
	for half := range 2 {
		a.publish(ids[half*200 : half*200+200]...)
		await.Until(t, func() bool {
			return a.calls[groups[9]].count() > half*400+100
		}, "they are in the middle of it")
		broker.Kill()
		broker.Start()
		await.Until(t, func() bool { return a.broker.Consumers(a.queue(groups[9])) == 1 }, "they are back")
	}
	letters := doomed(ids)
	twice := 0
	for _, group := range groups {
		found := map[string]string{}
		var left []string
		await.Until(t, func() bool {
			done := map[string]bool{}
			for _, c := range a.calls[group].All() {
				if succeeds(c.ID, c.Attempt) {
					done[c.ID] = true
				}
			}
			for _, d := range a.broker.Drain(a.queue(group) + ".dlq") {
				id := rabbit.UUID(d)
				if found[id] != "" {
					twice++
				}
				found[id] = rabbit.Text(d, header.Reason)
			}
			left = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return done[id] || found[id] != "" })

			return len(left) == 0
		}, "%s: all messages are accounted for, not: %v", group, &left)
		assert.Equal(t, letters, found, group)
	}
	assert.LessOrEqual(t, twice, 2*10*len(groups), "duplicates: what was in flight")
	t.Logf("%d groups, %d messages each: 0 lost, %d dead letters twice", len(groups), len(ids), twice)
}

// A close is bounded while the broker does not answer, and leaves the connection to the other
// groups. What the closed group had got goes back when the broker answers.
func TestGroups_CloseWithoutAnAnswer(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	started, goOn := make(chan struct{}), make(chan struct{})
	var remove func()
	t.Cleanup(func() { remove() }) // behind the service
	a := startGroups(t, groupsSetup{URI: network.URI, QueueType: "quorum", Groups: []string{"closes", "stays"},
		Options: amqpretry.Options{CloseTimeout: 500 * time.Millisecond},
		Handler: func(group string, msg *message.Message) error {
			if group == "closes" {
				close(started)
				<-goOn
			}

			return nil
		}})
	ids := rabbit.Numbered("message", 5)
	a.publish(ids...)
	await.Closed(t, started, "the handler runs")
	a.handledBy("stays", ids)
	another := uniqueName("another")
	plan := must(a.retrier.Group("closes").Plan(another))(t)
	remove = func() {
		a.broker.RemovePlan(plan)
		a.broker.Remove(another)
	}
	network.stall(groupsName)
	prepared := make(chan error, 1)
	go func() { prepared <- a.subs["closes"].Prepare(context.Background(), another) }()
	await.Stays(t, 100*time.Millisecond, func() bool { return len(prepared) == 0 }, "it waits for the broker")
	began := time.Now()
	require.NoError(t, a.subs["closes"].Close())
	assert.Less(t, time.Since(began), 15*time.Second, "amqp091-go gives up a silent connection after 30 s")
	require.ErrorIs(t, await.Value(t, prepared, "the end of Prepare"), amqpretry.ErrClosed)
	close(goOn)
	network.resume()
	a.broker.Has(a.queue("closes"), 5)
	more := rabbit.Numbered("more", 5)
	a.publish(more...)
	a.handledBy("stays", more)
	assert.Equal(t, 1, network.dialled(groupsName), "nobody has lost the connection")
}

func noOptions() amqpretry.Options { return amqpretry.Options{} }

// P5: of two consumer groups only the one that fails gets the message again, and only its
// dead-letter queue gets it.
func TestP5_OnlyTheQueueThatFailedGetsTheRetry(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		uri, topic := brokertest.URI(t), uniqueName("events")
		group := func(name string, s *seen, h func(*message.Message) error) *service {
			c := setup{Delays: ms(60, 80), URI: uri, Queue: topic, Handler: s.handler(h)}
			c.Configure = func(conf *amqp.Config) {
				*conf = amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
				conf.Queue.Arguments = mainQueueArguments(queueType)
			}

			return start(t, c)
		}

		var a, b seen
		failTwice := failing(2)
		broker := newRabbit(t, uri)
		t.Cleanup(func() { // behind the services
			_ = broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
		})
		group("a", &a, func(msg *message.Message) error {
			if msg.UUID == "dead" {
				return failing(9)(msg)
			}

			return failTwice(msg)
		})
		group("b", &b, succeed)

		broker.PublishTo(topic, "", rabbit.Messages("twice", "dead", "twice-too")...)
		await.Until(t, func() bool { return a.count() == 9 && b.count() == 3 }, "a: 9, b: 3")
		letter := broker.Take(topic+"_a.dlq", 1)[0]
		await.Stays(t, 300*time.Millisecond, func() bool {
			return a.count() == 9 && b.count() == 3
		}, "nothing more comes to either")

		assert.Equal(t, "dead", rabbit.UUID(letter))
		hasHeaders(t, letter, headers{header.Queue: topic + "_a", header.Topic: topic, header.Exchange: topic})
		for _, id := range []string{"twice", "dead", "twice-too"} {
			assert.Len(t, a.of(id), 3, id)
			assert.Len(t, b.of(id), 1, id)
			assert.Equal(t, 1, b.of(id)[0].Attempt.Number, id)
		}
		assert.Zero(t, broker.Depth(topic+"_b.dlq"))
		queues := []string{"_a", "_b"}
		if !exactMode {
			queues = append(queues, "_a.retry.60ms", "_b.retry.60ms", "_b.retry.80ms")
		}
		for _, queue := range queues {
			assert.Zero(t, broker.Depth(topic+queue), queue)
		}
	})
}
