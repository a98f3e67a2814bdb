package tests

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	exchangeDeclare = 40<<16 | 10
	queueDeclare    = 50<<16 | 10
	queueBind       = 50<<16 | 20
	basicConsume    = 60<<16 | 20
)

// many is a retrier with many topics, which are also their queues.
type many struct {
	t       *testing.T
	topics  []string
	retrier *adapter.Retrier
	sub     *amqpretry.Subscriber
	broker  *rabbit.Client
	logs    *logs
	sent    records[uint32] // methods
	events  records[retry.Event]
}

func newMany(t *testing.T, n int, options amqpretry.Options, configure ...func(*amqp.Config)) *many {
	t.Helper()
	m := &many{t: t, logs: newLogs(t)}
	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	conf.Queue.Arguments = mainQueueArguments("classic")
	for _, configure := range configure {
		configure(&conf)
	}
	m.broker = newRabbit(t, conf.Connection.AmqpURI)
	wrapConnections(&conf, func(conn net.Conn) net.Conn {
		return &recordedConn{Conn: conn, add: func(method uint32) { m.sent.put(method) }}
	})
	conf.Connection.AmqpConfig.Heartbeat = time.Minute // what is silent here is noticed by nobody else
	options.Logger, options.OnEvent = m.logs, func(e retry.Event) { m.events.put(e) }
	if options.Policies.Default.Strategy == "" {
		options.Policies = config.Policies{Default: config.Policy{Delays: ms(50, 100), Strategy: config.StrategyQueues}}
	}
	m.retrier = must(adapter.New(conf, options))(t)
	id := uniqueName("many")
	var plans []topology.Plan
	for i := range n {
		topic := fmt.Sprintf("%s-%02d", id, i)
		m.topics = append(m.topics, topic)
		plans = append(plans, must(m.retrier.Plan(topic))(t))
	}
	t.Cleanup(func() {
		require.NoError(t, m.retrier.Close())
		for _, plan := range plans {
			m.broker.RemovePlan(plan)
		}
	})
	m.sub = must(m.retrier.NewSubscriber())(t)

	return m
}

// router gives one with the plugin and a handler of each topic.
func (m *many) router() *message.Router {
	m.t.Helper()
	router := newRouter(m.t, m.logs, m.retrier.Middleware)
	router.AddPlugin(m.retrier.CheckRouter)
	for _, topic := range m.topics {
		router.AddConsumerHandler(topic, topic, m.sub, succeed)
	}

	return router
}

func (m *many) count(method uint32) int {
	return len(m.sent.where(func(sent uint32) bool { return sent == method }))
}

// registered are the main queues that the retrier knows.
func (m *many) registered() []string {
	m.t.Helper()
	var queues []string
	for _, q := range must(m.retrier.QueueDepths(m.t.Context()))(m.t) {
		if q.Role == retry.QueueRoleDeadLetter {
			queues = append(queues, q.MainQueue)
		}
	}

	return queues
}

// The plugin declares the topics of all handlers before the router subscribes to the first one, and
// Subscribe declares nothing again.
func TestCheckRouterPrepares(t *testing.T) {
	t.Parallel()

	m := newMany(t, 20, amqpretry.Options{})
	router := m.router()
	router.AddConsumerHandler("another of the first", m.topics[0], m.sub, succeed)
	runRouter(t, router)

	assert.Equal(t, len(m.topics)*4, m.count(queueDeclare))
	assert.Equal(t, len(m.topics)*3, m.count(queueBind))
	sent := m.sent.All()
	assert.NotContains(t, sent[slices.Index(sent, basicConsume):], uint32(queueDeclare))
	assert.Len(t, m.events.where(func(e retry.Event) bool { return e.Kind == retry.EventTopologyDeclared }), 20)
	told := m.logs.with("Declared the topology of all topics")
	require.Len(t, told, 1)
	assert.Equal(t, 20, told[0].Fields["topics"])
	assert.Equal(t, 20*(1+1+3), told[0].Fields["objects"])
	assert.NotEmpty(t, told[0].Fields["took"])
	for _, topic := range m.topics {
		assert.Positive(t, m.broker.Consumers(topic), topic)
	}
}

// A conflict is the error of its own topic's Subscribe, as without the plugin. The topics that are
// prepared and have no subscription go with their subscriber.
func TestCheckRouterPrepares_Conflict(t *testing.T) {
	t.Parallel()

	m := newMany(t, 20, amqpretry.Options{})
	wrong := must(m.retrier.Plan(m.topics[7]))(t).Queues[0].Name
	m.broker.Declare(wrong, amqp091.Table{"x-message-ttl": int64(1)})

	err := m.router().Run(t.Context())
	conflict := errorAs[*topology.ConflictError](t, err)
	assert.Equal(t, wrong, conflict.Name)
	require.ErrorContains(t, err, fmt.Sprintf("cannot declare the retry topology of topic %q", m.topics[7]))
	for _, topic := range m.topics {
		if topic != m.topics[7] {
			assert.Equal(t, 0, m.broker.Depth(topic+".dlq"), "declared all the same")
		}
	}
	told := m.logs.with("Declared the topology of some topics")
	require.Len(t, told, 1)
	assert.Equal(t, []any{19, 1}, []any{told[0].Fields["topics"], told[0].Fields["failed"]})
	assert.NotContains(t, m.registered(), m.topics[7])

	_, err = m.sub.Subscribe(t.Context(), m.topics[7])
	require.ErrorAs(t, err, &conflict, "again")
	m.broker.Remove("", wrong)
	messages := must(m.sub.Subscribe(t.Context(), m.topics[7]))(t)
	require.NoError(t, m.sub.Close())
	await.Closed(t, messages, "the end of the subscription")
	await.Until(t, func() bool { return len(m.registered()) == 0 }, "nothing stays")
}

// Subscribers that are wrapped by hand, or of another retrier, are left alone.
func TestCheckRouterPrepares_OnlyItsOwn(t *testing.T) {
	t.Parallel()

	m, other := newMany(t, 2, amqpretry.Options{}), newMany(t, 1, amqpretry.Options{})
	router := newRouter(t, m.logs, m.retrier.Middleware, other.retrier.Middleware)
	router.AddConsumerHandler("own", m.topics[0], m.sub, succeed)
	router.AddConsumerHandler("wrapped", m.topics[1], struct{ message.Subscriber }{m.sub}, succeed)
	router.AddConsumerHandler("another's", other.topics[0], other.sub, succeed)
	require.NoError(t, m.retrier.CheckRouter(router))
	assert.Equal(t, 0, m.broker.Depth(m.topics[0]))
	assert.Equal(t, -1, m.broker.Depth(m.topics[1]))
	assert.Equal(t, -1, m.broker.Depth(other.topics[0]))
}

// With AssumeTopology the plugin declares nothing.
func TestCheckRouterPrepares_AssumeTopology(t *testing.T) {
	t.Parallel()

	m := newMany(t, 2, amqpretry.Options{AssumeTopology: true})
	require.NoError(t, m.retrier.CheckRouter(m.router()))
	require.NoError(t, m.sub.Prepare(t.Context(), m.topics...))
	assert.Zero(t, m.count(queueDeclare))
	assert.Empty(t, m.logs.with("Declared the topology"))
}

// Each subscriber of a group has the queues of its group prepared.
func TestCheckRouterPrepares_Groups(t *testing.T) {
	t.Parallel()

	topic := uniqueName("groups")
	retrier := newGroups(t, topic, amqpretry.Options{Logger: newLogs(t)}, "mail", "stock")
	router := newRouter(t, newLogs(t), retrier.Middleware)
	for _, group := range []string{"mail", "stock"} {
		router.AddConsumerHandler(group, topic, must(retrier.Group(group).NewSubscriber())(t), succeed)
	}
	require.NoError(t, retrier.CheckRouter(router))
	broker := newRabbit(t, brokertest.URI(t))
	for _, group := range []string{"mail", "stock"} {
		assert.Equal(t, 0, broker.Depth(topic+"_"+group+".dlq"))
	}
}

// A queue whose name is generated anew each time is the one that is consumed from.
func TestPrepare_GeneratedName(t *testing.T) {
	t.Parallel()

	var mu sync.Mutex
	var names []string
	m := newMany(t, 0, amqpretry.Options{}, func(conf *amqp.Config) {
		conf.Queue.GenerateName = func(topic string) string {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, topic+"-"+watermill.NewShortUUID())

			return names[len(names)-1]
		}
	})
	topic := uniqueName("generated")
	names = nil
	require.NoError(t, m.sub.Prepare(t.Context(), topic, topic))
	_ = must(m.sub.Subscribe(t.Context(), topic))(t)
	require.Len(t, names, 1)
	assert.Equal(t, 1, m.broker.Consumers(names[0]))
	require.NoError(t, m.retrier.Close())
	m.broker.Remove(names[0]+".retry", names[0], names[0]+".retry.50ms", names[0]+".retry.100ms", names[0]+".dlq")
}

// Prepare returns the errors of all topics, and prepares the others.
func TestPrepare(t *testing.T) {
	t.Parallel()

	m := newMany(t, 12, amqpretry.Options{})
	for _, i := range []int{3, 9} {
		m.broker.Declare(m.topics[i]+".dlq", amqp091.Table{"x-max-length": int64(1)})
	}
	err := m.sub.Prepare(t.Context(), append(m.topics, "")...)
	conflict := errorAs[*topology.ConflictError](t, err)
	assert.Contains(t, []string{m.topics[3] + ".dlq", m.topics[9] + ".dlq"}, conflict.Name)
	for _, i := range []int{3, 9} {
		require.ErrorContains(t, err, fmt.Sprintf("topic %q", m.topics[i]))
	}
	_ = errorAs[*topology.NameError](t, err)
	declared := m.count(queueDeclare)
	for i, topic := range m.topics {
		if i != 3 && i != 9 {
			_ = must(m.sub.Subscribe(t.Context(), topic))(t)
		}
	}
	assert.Equal(t, declared, m.count(queueDeclare))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	more := newMany(t, 3, amqpretry.Options{})
	require.ErrorIs(t, more.sub.Prepare(ended, more.topics...), context.Canceled)
	assert.Zero(t, more.count(queueDeclare))
	require.NoError(t, more.sub.Close())
	require.ErrorIs(t, more.sub.Prepare(t.Context(), more.topics...), amqpretry.ErrClosed)
}

// A close ends Prepare, whatever the broker does.
func TestPrepare_Close(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(*many) error{
		"subscriber": func(m *many) error { return m.sub.Close() },
		"retrier":    func(m *many) error { return m.retrier.Close() },
	}, func(t *testing.T, _ string, end func(*many) error) {
		network := newProxy(t, brokertest.URI(t))
		m := newMany(t, 20, amqpretry.Options{CloseTimeout: time.Second}, func(conf *amqp.Config) {
			conf.Connection.AmqpURI = network.URI
		})
		network.stallAnswers(subscriber)
		results := make(chan error, 2)
		go func() { results <- m.sub.Prepare(context.Background(), m.topics...) }()
		go func() { results <- m.retrier.CheckRouter(m.router()) }()
		await.Until(t, func() bool { return m.count(20<<16|10) >= 8 }, "it waits for channels")

		began := time.Now()
		require.NoError(t, end(m))
		first, second := await.Value(t, results, "the end"), await.Value(t, results, "the end")
		require.ErrorIs(t, cmp.Or(first, second), amqpretry.ErrClosed)
		assert.Less(t, time.Since(began), 10*time.Second)
		network.resume()
	})
}

// A broker that answers nothing costs a router no more than 15 s before it subscribes, and a
// connection that is lost costs nothing. Subscribe waits as ever.
func TestCheckRouterPrepares_NoAnswer(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	m := newMany(t, 20, amqpretry.Options{}, func(conf *amqp.Config) {
		conf.Connection.AmqpURI = network.URI
		conf.Connection.Reconnect = fastReconnect()
	})
	network.stallAnswers(subscriber)
	router, began := m.router(), time.Now()
	require.NoError(t, m.retrier.CheckRouter(router))
	assert.InDelta(t, 15, time.Since(began).Seconds(), 3)
	told := m.logs.with("Declared the topology of some topics")
	require.Len(t, told, 1)
	assert.Contains(t, told[0].Fields["error"], "no answer from the broker for 15s")

	network.refuse(subscriber)
	network.cut(subscriber)
	await.Until(t, func() bool { return len(m.logs.with("Connection to RabbitMQ lost")) > 0 }, "it is lost")
	began = time.Now()
	require.NoError(t, m.retrier.CheckRouter(router))
	assert.Less(t, time.Since(began), 2*time.Second)

	network.resume()
	network.allow(subscriber)
	await.Until(t, func() bool { return m.sub.Prepare(t.Context(), m.topics[0]) == nil }, "it is back")
	runRouter(t, router)
}

// What many consumers share is declared once, also when two services start at the same time.
func TestPrepare_SharedOnce(t *testing.T) {
	t.Parallel()

	options := shared(t, uniqueName("shared"), false, ms(50, 100)...)
	services := []*many{newMany(t, 20, options), newMany(t, 20, options)}
	var starting sync.WaitGroup
	for _, m := range services {
		starting.Go(func() { assert.NoError(t, m.retrier.CheckRouter(m.router())) })
	}
	starting.Wait()
	for _, m := range services {
		assert.Equal(t, 2, m.count(exchangeDeclare))
		assert.Equal(t, 2+20*2, m.count(queueDeclare))
		assert.Equal(t, 2+20, m.count(queueBind))
	}
}

// A connection that comes back may lead to another broker: what is shared is declared again.
func TestPrepare_SharedAfterReconnect(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	m := newMany(t, 3, shared(t, uniqueName("shared"), false, ms(50)...), func(conf *amqp.Config) {
		conf.Connection.AmqpURI, conf.Connection.Reconnect = network.URI, fastReconnect()
	})
	runRouter(t, m.router())
	require.Equal(t, 2, m.count(exchangeDeclare))
	network.cut(subscriber)
	await.Until(t, func() bool { return m.count(queueBind) == 2*(1+3) }, "all is declared again")
	assert.Equal(t, 4, m.count(exchangeDeclare))
}

// Subscribe declares what is shared although it was declared a moment ago, where somebody has
// deleted it since.
func TestSharedQueues_DeletedBeforeSubscribe(t *testing.T) {
	t.Parallel()

	prefix := uniqueName("shared")
	m := newMany(t, 2, shared(t, prefix, false, ms(50)...))
	_ = must(m.sub.Subscribe(t.Context(), m.topics[0]))(t)
	m.broker.Do(func(channel *amqp091.Channel) error { return channel.ExchangeDelete(prefix+".return", false, false) })
	_ = must(m.sub.Subscribe(t.Context(), m.topics[1]))(t)
	assert.Equal(t, 4, m.count(exchangeDeclare))
}
