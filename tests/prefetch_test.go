package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/far"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// The prefetch follows the handlers: what one process cannot handle soon is left to others.

// One of two services is stuck: what waits there reaches the other one.
func TestPrefetch_StuckHandler(t *testing.T) {
	t.Parallel()
	const count = 60
	eachQueueType(t, func(t *testing.T, queueType string) {
		stuck := make(chan struct{})
		release := sync.OnceFunc(func() { close(stuck) })
		t.Cleanup(release)
		queue := uniqueName("stuck")
		pod := func() *service {
			return start(t, setup{Queue: queue, QueueType: queueType,
				Options: amqpretry.Options{CloseTimeout: 3 * time.Second},
				Handler: func(msg *message.Message) error {
					if msg.UUID == "stuck" {
						<-stuck
					}
					return nil
				}})
		}
		pods := []*service{pod(), pod()}
		calls := func() int { return pods[0].Calls.count() + pods[1].Calls.count() }
		pods[0].publish(rabbit.Numbered("before", 200)...) // both are quick, and know it
		await.Until(t, func() bool { return calls() == 200 }, "the first are handled")

		healthy := rabbit.Numbered("ok", count)
		pods[0].publish(append(append(healthy[:count/2:count/2], "stuck"), healthy[count/2:]...)...)
		await.Until(t, func() bool { return calls() == 200+count+1 }, "all others are handled")
		release()
		for _, p := range pods {
			for id, n := range p.Calls.ids() {
				assert.Equal(t, 1, n, "%s is handled once", id)
			}
		}
	})
}

// The connection is lost under a handler that runs on. It is told of, and nothing is taken for a
// place that it keeps.
func TestPrefetch_WithdrawnDelivery(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	release := sync.OnceFunc(func() { close(stuck) })
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{URI: network.URI, QueueType: "quorum", Handler: func(msg *message.Message) error {
		<-stuck
		return nil
	}})
	t.Cleanup(release) // before the service closes
	svc.publish("stuck")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it is handled")
	network.cut(anyone)
	await.Until(t, func() bool { return len(svc.Events(retry.EventConsuming)) == 2 }, "it is connected again")
	svc.publish("other")

	await.Until(t, func() bool { return len(svc.Events(retry.EventWithdrawn)) == 1 }, "it is told of")
	event := svc.Events(retry.EventWithdrawn)[0]
	assert.Equal(t, "stuck", event.Message.UUID)
	assert.Contains(t, event.Handler, "handler")
	assert.GreaterOrEqual(t, event.Took, 10*time.Second)
	assert.Len(t, svc.Logs.with("Handler is still running"), 1)
	assert.Equal(t, 2, svc.Broker.Depth(svc.Queue), "both are there for other services")

	release()
	await.Until(t, func() bool { return len(svc.Calls.ids()) == 2 }, "it goes on when the handler is done")
}

// The prefetch grows and shrinks with the handlers. No message is delivered twice for that, and the
// order stays.
func TestPrefetch_FollowsHandlers(t *testing.T) {
	t.Parallel()
	const quick, slow = 400, 30
	each(t, map[string]int{"classic": 0, "quorum": 1}, func(t *testing.T, queueType string, configured int) {
		var redelivered redeliveries
		svc := newService(t, setup{QueueType: queueType,
			Configure: func(c *amqp.Config) {
				c.Marshaler, c.Consume.Qos.PrefetchCount = &redelivered, configured
			},
			Handler: func(msg *message.Message) error {
				if strings.HasPrefix(msg.UUID, "slow") {
					<-time.After(120 * time.Millisecond)
				}
				return nil
			}})
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		ids := append(append(rabbit.Numbered("quick", quick), rabbit.Numbered("slow", slow)...),
			rabbit.Numbered("then", quick)...)
		svc.publish(ids...)
		svc.run()
		await.Until(t, func() bool { return svc.Calls.count() == len(ids) }, "all are handled")
		svc.close()

		for i, call := range svc.Calls.All() {
			require.Equal(t, ids[i], call.ID, "in their order")
		}
		assert.Zero(t, redelivered.count.Load(), "redelivered")
		var sizes []int
		for _, e := range svc.Logs.with("Changed the prefetch") {
			sizes = append(sizes, e.Fields["prefetch"].(int))
		}
		assert.Contains(t, sizes, amqpretry.DefaultPrefetch, "it grows: %v", sizes)
		assert.True(t, slices.ContainsFunc(sizes[1:], func(n int) bool { return n < 25 }), "shrinks: %v", sizes)
		assert.Equal(t, amqpretry.DefaultPrefetch, sizes[len(sizes)-1], "and grows again: %v", sizes)
	})
}

// It grows at once, also where quick handlers are done before the whole prefetch has come over a
// long way.
func TestPrefetch_LongWay(t *testing.T) {
	t.Parallel()
	const count, soon = 2000, 200
	var redelivered redeliveries
	var largeAfter atomic.Int64
	var svc *service
	svc = newService(t, setup{QueueType: "quorum",
		Configure: func(c *amqp.Config) {
			c.Marshaler, c.Connection.AmqpConfig = &redelivered, far.Config(20*time.Millisecond)
		},
		Options: amqpretry.Options{Concurrency: 8},
		Handler: func(*message.Message) error {
			if grown := svc.Logs.with("Changed the prefetch"); largeAfter.Load() == 0 &&
				len(grown) > 0 && grown[len(grown)-1].Fields["prefetch"] == amqpretry.DefaultPrefetch {
				largeAfter.CompareAndSwap(0, int64(svc.Calls.count()))
			}

			return nil
		}})
	require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
	svc.publish(rabbit.Numbered("ok", count)...)
	svc.run()
	await.Until(t, func() bool { return svc.Calls.count() == count }, "all are handled")
	svc.close()
	assert.NotZero(t, largeAfter.Load(), "it grows")
	assert.Less(t, largeAfter.Load(), int64(soon), "messages before that")
	assert.Zero(t, redelivered.count.Load(), "redelivered")
}

// redeliveries is the marshaler of most services, and counts what was delivered before.
type redeliveries struct {
	amqp.DefaultMarshaler

	count atomic.Int64
}

func (r *redeliveries) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := r.DefaultMarshaler.Unmarshal(d)
	if err == nil && d.Redelivered && !strings.HasPrefix(msg.UUID, "crashed") { // which are given back for one another
		r.count.Add(1)
	}

	return msg, err
}

// A message that has crashed its consumers is handled alone, for which the consumer is replaced
// while others are on their way. They are not delivered twice for that.
func TestPrefetch_SuspectsAmongOthers(t *testing.T) {
	t.Parallel()
	const count, every = 600, 60
	var redelivered redeliveries
	svc := newService(t, setup{QueueType: "quorum",
		Configure: func(c *amqp.Config) { c.Marshaler = &redelivered },
		Handler:   succeed})
	require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
	messages := rabbit.Messages(rabbit.Numbered("ok", count)...)
	for i := range messages {
		if i%every == every-1 {
			messages[i] = crashed(svc.Queue, fmt.Sprintf("crashed-%d", i))
		}
	}
	svc.run()
	svc.Broker.Publish(svc.Queue, messages...)
	await.Until(t, func() bool { return svc.Calls.count() == count }, "all are handled")
	svc.close()
	assert.Len(t, svc.Logs.with("Handling this message alone"), count/every)
	assert.Zero(t, redelivered.count.Load(), "redelivered")
}

// crashed is a message that has crashed its consumers in an earlier attempt.
func crashed(queue, id string) amqp091.Publishing {
	m := rabbit.Message(id, "")
	m.Headers[header.Version], m.Headers[header.Queue] = header.FormatVersion, queue
	m.Headers[header.History] = `[{"reason":"crashed"}]`

	return m
}

// Nor does one wait for a large prefetch to be used up, where messages come slowly.
func TestPrefetch_SuspectAmongFew(t *testing.T) {
	t.Parallel()
	const prefetch, every = 100, 10 * time.Millisecond
	svc := start(t, setup{QueueType: "quorum", Prefetch: prefetch, Handler: succeed})
	svc.publish("first")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it is open")
	svc.Broker.Publish(svc.Queue, crashed(svc.Queue, "crashed"))
	published := 0
	await.Until(t, func() bool {
		if len(svc.Calls.of("crashed")) == 1 {
			return true
		}
		published++
		svc.publish(fmt.Sprintf("ok-%d", published))
		<-time.After(every)

		return false
	}, "it is handled")
	assert.Less(t, published, prefetch/2)
}

// Some process has died with many messages in flight, and each is a suspect for many instances.
// They do not bring one another near the crash limit.
func TestPrefetch_SuspectsAmongInstances(t *testing.T) {
	t.Parallel()
	const instances, count = 8, 40
	queue := uniqueName("instances")
	var pods []*service
	for range instances {
		pods = append(pods, start(t, setup{Queue: queue, QueueType: "quorum", Handler: succeed}))
	}
	calls := func() (n int) {
		for _, p := range pods {
			n += len(p.Calls.ids())
		}

		return n
	}
	pods[0].publish(rabbit.Numbered("before", 300)...) // all are open
	await.Until(t, func() bool { return calls() == 300 }, "the first are handled")

	// What the first one has goes to the second one, and then to the instances.
	dying := newRabbit(t, brokertest.URI(t))
	dies := func(priority int32) (die func()) {
		connection := dying.Dial()
		channel := must(connection.Channel())(t)
		require.NoError(t, channel.Qos(count, 0, false))
		has := must(channel.Consume(queue, "", false, false, false, false, amqp091.Table{"x-priority": priority}))(t)

		return func() {
			for range count {
				<-has
			}
			require.NoError(t, connection.Close())
		}
	}
	first := dies(10)
	pods[0].publish(rabbit.Numbered("ok", 10*count)...)
	await.Until(t, func() bool { return calls() == 300+9*count }, "the others are handled")
	second := dies(20)
	first()
	second()
	await.Until(t, func() bool { return calls() == 300+10*count }, "all are handled")
	most := int64(0)
	for _, p := range pods {
		for _, e := range p.Logs.with("Handling this message alone") {
			most = max(most, e.Fields["redeliveries"].(int64))
		}
	}
	assert.LessOrEqual(t, most, int64(5), "x-delivery-count: few have given it back")
}

// Large bodies do not pile up in a process.
func TestPrefetch_LargeBodies(t *testing.T) {
	t.Parallel()
	const count, size, slow = 40, 2 << 20, 50 * time.Millisecond
	var ahead []int
	var svc *service
	svc = newService(t, setup{QueueType: "quorum",
		Handler: func(*message.Message) error {
			<-time.After(slow)
			ahead = append(ahead, count-svc.Calls.count()-svc.Broker.Depth(svc.Queue))
			return nil
		}})
	require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
	messages := rabbit.Messages(rabbit.Numbered("large", count)...)
	for i := range messages {
		messages[i].Body = make([]byte, size)
	}
	svc.Broker.Publish(svc.Queue, messages...)
	svc.run()
	await.Until(t, func() bool { return svc.Calls.count() == count }, "all are handled")
	svc.close()
	for _, n := range ahead {
		assert.LessOrEqual(t, n, 8<<20/size+1, "delivered ahead, and one of the consumer before")
	}
}

// What waits behind a slow handler does not wait in the process, where RabbitMQ would take it for
// lost. A handler that is stuck keeps nothing but its own message from others.
func TestPrefetch_ConsumerTimeout_OwnBroker(t *testing.T) {
	t.Parallel()
	const timeout = 12 * time.Second
	broker := brokertest.Start(t)
	broker.Ctl("eval", fmt.Sprintf("application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, "+
		"channel_tick_interval, 500).", timeout.Milliseconds()))
	for _, queueType := range []string{"classic", "quorum"} {
		t.Run("slow/"+queueType, func(t *testing.T) {
			t.Parallel()
			const count, slow = 10, 2 * time.Second
			svc := start(t, setup{URI: broker.URI, QueueType: queueType, KeepObjects: true,
				Handler: func(*message.Message) error { <-time.After(slow); return nil }})
			svc.publish(rabbit.Numbered("slow", count)...)
			await.Within(t, time.Minute, func() bool { return len(svc.Calls.ids()) == count }, "all are handled")
			svc.close()
			for id, n := range svc.Calls.ids() {
				assert.Equal(t, 1, n, "%s is handled once", id)
			}
			assert.Empty(t, svc.Logs.with("cancelled the consumer"))
			assert.Empty(t, svc.Logs.with("Channel closed"))
		})
		t.Run("stuck/"+queueType, func(t *testing.T) {
			t.Parallel()
			const count = 60
			var wasStuck atomic.Bool
			stuck := make(chan struct{})
			release := sync.OnceFunc(func() { close(stuck) })
			t.Cleanup(release)
			queue := uniqueName("stuck")
			var pods []*service
			for range 2 {
				pods = append(pods, start(t, setup{URI: broker.URI, Queue: queue, QueueType: queueType,
					KeepObjects: true, Options: amqpretry.Options{CloseTimeout: 3 * time.Second},
					Handler: func(msg *message.Message) error {
						if msg.UUID == "stuck" && wasStuck.CompareAndSwap(false, true) {
							<-stuck
						}

						return nil
					}}))
			}
			calls := func() map[string]int {
				all := pods[0].Calls.ids()
				for id, n := range pods[1].Calls.ids() {
					all[id] += n
				}

				return all
			}
			pods[0].publish(append([]string{"stuck"}, rabbit.Numbered("ok", count)...)...)
			again := 1
			if queueType == "quorum" || !pods[0].Broker.AtLeast(4, 3) { // which knows no timeout of classic queues
				again = 2
			}
			await.Until(t, func() bool { all := calls(); return len(all) == 1+count && all["stuck"] == again },
				"all are handled")
			for id, n := range calls() {
				assert.True(t, n == 1 || id == "stuck", "%s is handled once, and not %d times", id, n)
			}
			for _, p := range pods {
				assert.Empty(t, p.Events(retry.EventDisconnected), "nothing but its channel is lost")
			}
			release()
		})
	}
}
