package tests

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
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
	"github.com/amqpretry/watermill-retry/retry"
)

// topologyBroker declares plans on a real broker and removes their objects when the test ends.
type topologyBroker struct {
	*rabbit.Client
	t    *testing.T
	conn *amqp091.Connection
}

func newTopologyBroker(t *testing.T, uri string) *topologyBroker {
	t.Helper()
	client := rabbit.New(t, uri)
	return &topologyBroker{Client: client, t: t, conn: client.Dial()}
}

// channel is a new one each time, since the broker closes a channel with every error.
func (b *topologyBroker) channel() *amqp091.Channel {
	b.t.Helper()
	ch := must(b.conn.Channel())(b.t)
	b.t.Cleanup(func() { _ = ch.Close() })
	return ch
}

func (b *topologyBroker) plan(policy config.Policy) topology.Plan {
	b.t.Helper()
	// Short, as the broker cuts its error texts at 255 bytes.
	queue := fmt.Sprintf("topology-%d", time.Now().UnixNano())
	plan := must(topology.New(queue, policy, topology.Names{}))(b.t)
	b.Declare(queue, nil)
	b.t.Cleanup(func() { b.RemovePlan(plan) })
	return plan
}

var topologyPolicies = map[string]config.Policy{
	"quorum":      {Delays: []time.Duration{300 * time.Millisecond, time.Hour, config.MaxDelay}},
	"classic":     {Delays: []time.Duration{300 * time.Millisecond, time.Hour}, ClassicQueues: true},
	"dead-letter": {Mode: config.ModeDeadLetter},
	"off":         {Mode: config.ModeOff},
}

func TestTopologyDeclareIsIdempotent(t *testing.T) {
	for name, policy := range topologyPolicies {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(policy)
			require.NoError(t, plan.Declare(b.channel()))
			require.NoError(t, plan.Declare(b.channel()))
		})
	}
}

// The broker refuses a second declaration that leaves an argument out, with exactly that argument
// and its value: it is there.
func TestTopologyBrokerHoldsEveryArgument(t *testing.T) {
	for _, name := range []string{"quorum", "classic", "dead-letter"} {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(topologyPolicies[name])
			require.NoError(t, plan.Declare(b.channel()))
			for _, queue := range plan.Queues {
				for argument, value := range queue.Arguments {
					if argument == amqp091.QueueTypeArg {
						continue // a queue of another type would be refused for other arguments first
					}
					changed := plan
					without := maps.Clone(queue.Arguments)
					delete(without, argument)
					changed.Queues = []topology.Queue{{Name: queue.Name, Arguments: without}}
					err := changed.Declare(b.channel())
					conflict := errorAs[*topology.ConflictError](t, err, "%s without %s", queue.Name, argument)
					found := fmt.Sprint(value)
					if value == "" {
						found = `""`
					}
					assert.Equal(t, topology.ConflictError{Kind: "queue", Name: queue.Name, Argument: argument,
						Wanted: "none", Found: found, Err: conflict.Err}, *conflict)
				}
			}
		})
	}
}

func TestTopologyConflictNamesAllOfIt(t *testing.T) {
	b := newTopologyBroker(t, brokertest.URI(t))
	plan := b.plan(config.Policy{Delays: []time.Duration{time.Hour}})
	require.NoError(t, plan.Declare(b.channel()))

	ttl := maps.Clone(plan.Queues[0].Arguments)
	ttl["x-message-ttl"] = int64(2000)
	typed := func(queueType string) amqp091.Table { return amqp091.Table{"x-queue-type": queueType} }
	long := plan.Queue + strings.Repeat("q", 255-len(plan.Queue))
	b.Declare(long, nil)
	unlimited := amqp091.Table{"x-queue-type": "classic", "x-delivery-limit": int64(3)}
	for name, test := range map[string]struct {
		queue     string
		arguments amqp091.Table
		want      topology.ConflictError // but for the kind and the cause
	}{
		"ttl": {plan.Queue + ".retry.1h", ttl,
			topology.ConflictError{Argument: "x-message-ttl", Wanted: "2000", Found: "3600000"}},
		"dead-letter queue type": {plan.DeadLetterQueue, typed("classic"),
			topology.ConflictError{Argument: "x-queue-type", Wanted: "classic", Found: "quorum"}},
		"invalid argument": {plan.Queue + ".bad", unlimited,
			topology.ConflictError{Argument: "x-delivery-limit", Wanted: "3"}},
		"long name": {long, amqp091.Table{"x-message-ttl": int64(2000)},
			topology.ConflictError{Argument: "x-message-ttl", Wanted: "2000"}},
		// Brokers before 4.0 say none for a queue that was declared without a type.
		"queue type": {plan.Queue, typed("quorum"), topology.ConflictError{Argument: "x-queue-type", Wanted: "quorum",
			Found: map[bool]string{true: "classic", false: "none"}[b.AtLeast(4, 0)]}},
	} {
		t.Run(name, func(t *testing.T) {
			queues := []topology.Queue{{Name: test.queue, Arguments: test.arguments}}
			err := topology.Plan{Queues: queues}.Declare(b.channel())
			conflict := errorAs[*topology.ConflictError](t, err)
			test.want.Kind, test.want.Name, test.want.Err = "queue", test.queue, conflict.Err
			assert.Equal(t, test.want, *conflict)
			assert.Equal(t, amqp091.PreconditionFailed, errorAs[*amqp091.Error](t, err).Code)
		})
	}
	t.Run("exchange", func(t *testing.T) {
		fanout := topology.Exchange{Name: plan.RetryExchange, Type: "fanout", Durable: true}
		err := topology.Plan{Exchanges: []topology.Exchange{fanout}}.Declare(b.channel())
		conflict := errorAs[*topology.ConflictError](t, err)
		assert.Equal(t, topology.ConflictError{Kind: "exchange", Name: plan.RetryExchange, Argument: "type",
			Wanted: "fanout", Found: "headers", Err: conflict.Err}, *conflict)
	})
	t.Run("missing exchange", func(t *testing.T) {
		err := topology.Plan{Bindings: []topology.Binding{{Exchange: plan.Queue + ".gone", Queue: plan.Queue}}}.Declare(
			b.channel())
		declare := errorAs[*topology.DeclareError](t, err)
		assert.Equal(t, "exchange "+plan.Queue+".gone", declare.Kind+" "+declare.Name)
	})
}

// What a plan takes from the user in permissions, and what the error says when one is missing.
func TestTopologyAccessRefused_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	uri := must(url.Parse(broker.URI))(t)
	uri.User, uri.Path = url.UserPassword("worker", "secret"), "/access"
	broker.API(http.MethodPut, map[string]string{}, "vhosts", "access")
	broker.API(http.MethodPut, map[string]string{"password": "secret", "tags": ""}, "users", "worker")

	plan := must(topology.New("q", config.Policy{Delays: []time.Duration{time.Hour}}, topology.Names{}))(t)
	declare := func(configure, write, read string) error {
		broker.API(http.MethodPut, map[string]string{"configure": configure, "write": write, "read": read},
			"permissions", "access", "worker")
		// A new connection each time: a channel remembers what its user may do.
		return plan.Declare(newTopologyBroker(t, uri.String()).channel())
	}
	ours, all := `^q\.(retry|dlq)`, `^(q\.(retry|dlq).*|amq\.default)$`
	for _, test := range []struct {
		configure, write, read string
		object                 string
		permission             string
	}{
		{`^$`, all, ours, "exchange q.retry", "configure"},
		{`^q\.retry$`, all, ours, "queue q.retry.1h", "configure"},
		{ours, all, `^$`, "queue q.retry.1h", "read"},
		{ours, ours, ours, "exchange amq.default", "write"},
		{ours, `^amq\.default$`, ours, "queue q.retry.1h", "write"},
		{ours, all, `^q\.(retry\.|dlq)`, "exchange q.retry", "read"},
	} {
		err := declare(test.configure, test.write, test.read)
		access := errorAs[*topology.AccessError](t, err, "%+v", test)
		assert.Equal(t, test.object, access.Kind+" "+access.Name)
		assert.Equal(t, "worker", access.User)
		// Brokers before 4.0 do not name the permission.
		assert.Contains(t, []string{"", test.permission}, access.Permission)
		refused := errorAs[*amqp091.Error](t, err)
		assert.Equal(t, amqp091.AccessRefused, refused.Code)
	}
	require.NoError(t, declare(ours, all, ours), "these permissions are enough, on no object of anybody else")
}

func TestTopologyRoutes(t *testing.T) {
	for _, name := range []string{"quorum", "classic"} {
		t.Run(name, func(t *testing.T) {
			b := newTopologyBroker(t, brokertest.URI(t))
			plan := b.plan(topologyPolicies[name])
			require.NoError(t, plan.Declare(b.channel()))
			// Declared again, also by the next instance, a binding must not become two.
			require.NoError(t, plan.Declare(b.channel()))

			t.Run("a delay comes back to the main queue", func(t *testing.T) {
				back := b.consume(plan.Queue)
				sent := time.Now()
				require.False(t, b.publish(plan, amqp091.Table{header.Delay: "300ms", header.Count: "1"}), "returned")
				delivery := b.receive(back)
				// Quorum queues may be a fraction of a millisecond early.
				assert.GreaterOrEqual(t, time.Since(sent), 299*time.Millisecond)
				assert.Equal(t, "300ms", delivery.Headers[header.Delay])
				assert.Equal(t, plan.Queue, delivery.RoutingKey)
				b.none(back)
			})
			t.Run("the end is the dead-letter queue", func(t *testing.T) {
				dead := b.consume(plan.DeadLetterQueue)
				require.False(t, b.publish(plan, amqp091.Table{header.Count: "-1"}), "returned")
				assert.Equal(t, "-1", b.receive(dead).Headers[header.Count])
				b.none(dead)
			})
			t.Run("a delay matches one queue only", func(t *testing.T) {
				require.False(t, b.publish(plan, amqp091.Table{header.Delay: "1h", header.Count: "2"}), "returned")
				for _, queue := range plan.Queues {
					want := 0
					if queue.Delay == time.Hour {
						want = 1
					}
					assert.Equal(t, want, b.purge(queue.Name), queue.Name)
				}
				assert.Zero(t, b.purge(plan.Queue))
			})
			t.Run("an unknown delay is returned, not lost", func(t *testing.T) {
				assert.True(t, b.publish(plan, amqp091.Table{header.Delay: "7s", header.Count: "1"}), "not returned")
			})
		})
	}
}

func (b *topologyBroker) publish(plan topology.Plan, headers amqp091.Table) (returned bool) {
	b.t.Helper()
	ch := b.channel()
	require.NoError(b.t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp091.Return, 1))
	ctx, cancel := context.WithTimeout(b.t.Context(), await.Bound)
	defer cancel()
	confirm := must(ch.PublishWithDeferredConfirmWithContext(ctx, plan.RetryExchange, "", true, false,
		amqp091.Publishing{Headers: headers, DeliveryMode: amqp091.Persistent, Body: []byte("body")}))(b.t)
	acked := must(confirm.WaitContext(ctx))(b.t)
	require.True(b.t, acked)
	// A return comes before its confirm.
	select {
	case <-returns:
		return true
	default:
		return false
	}
}

func (b *topologyBroker) consume(queue string) <-chan amqp091.Delivery {
	b.t.Helper()
	return rabbit.Consume(b.t, b.channel(), queue)
}

func (b *topologyBroker) receive(deliveries <-chan amqp091.Delivery) amqp091.Delivery {
	b.t.Helper()

	return await.Value(b.t, deliveries, "a delivery")
}

// none watches for a second copy for as long as the longest wait before the first.
func (b *topologyBroker) none(deliveries <-chan amqp091.Delivery) {
	b.t.Helper()
	select {
	case delivery := <-deliveries:
		require.Fail(b.t, "delivered twice", "%v", delivery.Headers)
	case <-time.After(500 * time.Millisecond):
	}
}

func (b *topologyBroker) purge(queue string) int {
	b.t.Helper()
	n := must(b.channel().QueuePurge(queue, false))(b.t)
	return n
}

type provisioned struct {
	name      string
	configure func(uri string) amqp.Config
	policies  config.Policies
	topics    []string
	queues    []string // of the topics
	// What a user who may configure nothing needs.
	write, read string
}

func (p provisioned) retrier(t *testing.T, uri string, assume bool) *adapter.Retrier {
	t.Helper()

	return newRetrier(t, p.configure(uri),
		amqpretry.Options{Policies: p.policies, AssumeTopology: assume, Logger: newLogs(t)})
}

var provisionedServices = []provisioned{
	{
		name: "queues", topics: []string{"orders", "payments"}, queues: []string{"orders", "payments"},
		configure: func(uri string) amqp.Config {
			conf := amqp.NewDurableQueueConfig(uri)
			// of other types than JSON's
			conf.Queue.Arguments = amqp091.Table{"x-max-length": 100_000, "x-single-active-consumer": false}
			return conf
		},
		policies: config.Policies{
			Default: config.Policy{Delays: ms(50, 60)},
			Topics: map[string]config.Policy{"payments": {Delays: ms(50), ClassicQueues: true,
				Protect: config.ProtectionArguments}},
		},
		write: `^(orders\.retry|payments\.retry\.classic)$`, read: `^(orders|payments)$`,
	},
	{
		name: "fanout", topics: []string{"events", "news"}, queues: []string{"events_billing", "news_billing"},
		configure: func(uri string) amqp.Config {
			conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
			conf.Queue.Arguments = mainQueueArguments("quorum")
			conf.Exchange.Arguments = amqp091.Table{"alternate-exchange": "amq.fanout"}
			conf.QueueBind.GenerateRoutingKey = func(queue string) string { return "key of " + queue }
			conf.QueueBind.Arguments = amqp091.Table{"a": "b"}
			return conf
		},
		policies: retries(ms(50)...),
		write:    `^(events|news)_billing\.retry$`, read: `^(events|news)_billing$`,
	},
	{
		name: "shared", topics: []string{"s1", "s2"}, queues: []string{"s1", "s2"},
		configure: amqp.NewDurableQueueConfig,
		policies:  config.Policies{Default: config.Policy{Delays: ms(50), Strategy: config.StrategyShared}},
		// The end of the strategy shared is reached through the default exchange.
		write: `^(retry|amq\.default)$`, read: `^s[12]$`,
	},
	{
		name: "exact", topics: []string{"e1", "e.2"}, queues: []string{"e1", "e.2"},
		configure: amqp.NewDurableQueueConfig,
		policies: config.Policies{Default: config.Policy{Delays: ms(100, 300), Strategy: config.StrategyLadder,
			Ladder: config.Ladder{Levels: 2}}},
		write: `^(e1|e\.2)\.retry$|^amqpretry\.delay\.v1\.100ms\.10x2\.level-[01]$`, read: `^(e1|e\.2)$`,
	},
}

// P8: an operator provisions from the printed file; a user who may configure nothing retries and
// dead-letters; and who declares later finds no conflict.
func TestDefinitions_OwnBroker(t *testing.T) {
	t.Parallel()

	private := brokertest.Shared(t)
	operator := newOperator(t, private)
	const vhost = `shop "ä"/1`
	as := func(user, password string) string {
		uri := must(url.Parse(private.URI))(t)
		uri.Path, uri.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
		uri.User = url.UserPassword(user, password)

		return uri.String()
	}
	admin := as("guest", "guest")

	// What the operator does, in few commands, since each takes a second or more: all files are
	// imported as one.
	var script strings.Builder
	all := map[string][]any{}
	fmt.Fprintf(&script, `V = <<"%s"/utf8>>, ok = rabbit_vhost:add(V, <<"test">>), `+
		`May = fun(U, C, W, R) -> ok = rabbit_auth_backend_internal:set_permissions(U, V, C, W, R, <<"test">>) end, `+
		`May(<<"guest">>, <<".*">>, <<".*">>, <<".*">>), `, strings.ReplaceAll(vhost, `"`, `\"`))
	for _, s := range provisionedServices {
		file := must(s.retrier(t, as(s.name, "secret"), assumes).Definitions(s.topics...))(t)
		var definitions map[string][]any
		require.NoError(t, json.Unmarshal(file, &definitions))
		for kind, objects := range definitions {
			all[kind] = append(all[kind], objects...)
		}
		erl := func(s string) string { return strings.ReplaceAll(s, `\`, `\\`) }
		fmt.Fprintf(&script, `rabbit_auth_backend_internal:add_user(<<"%s">>, <<"secret">>, <<"test">>), `+
			`May(<<"%s">>, <<"^$">>, <<"%s">>, <<"%s">>), `, s.name, s.name, erl(s.write), erl(s.read))
	}
	// Written by the broker's node, which may have another file system.
	file := must(json.Marshal(all))(t)
	written := private.Ctl("eval", script.String()+
		fmt.Sprintf(`{ok, Flags} = application:get_env(rabbit, feature_flags_file), `+
			`File = filename:join(filename:dirname(Flags), "definitions.json"), ok = file:write_file(File, base64:decode("%s")), list_to_binary(File).`,
			base64.StdEncoding.EncodeToString(file)))
	_, path, _ := strings.Cut(written, `"`) // <<"path">>
	path, _, _ = strings.Cut(path, `"`)
	require.NotEmpty(t, path, written)
	// what is there already is left alone
	operator.run("rabbitmqctl import_definitions " + path + " && rabbitmqctl import_definitions " + path)

	list := func() string { // what the operator has imported
		return operator.run(fmt.Sprintf("for what in 'queues name type durable auto_delete arguments' 'exchanges "+
			"name type durable auto_delete internal arguments' 'bindings source_name destination_name routing_key "+
			"arguments'; do rabbitmqctl list_$what -p '%s' | sort; done", vhost))
	}
	imported := list()

	for _, s := range provisionedServices {
		t.Run(s.name, func(t *testing.T) {
			for i, topic := range s.topics {
				c := setup{URI: admin, Queue: s.queues[i], KeepObjects: true, Handler: failing(9)}
				c.Options.Policies, c.Options.AssumeTopology = s.policies, true
				c.Configure = func(conf *amqp.Config) { *conf = s.configure(as(s.name, "secret")) }
				c.Route = func(svc *service) {
					svc.Router.AddConsumerHandler("h", topic, svc.Sub, svc.recorded(failing(9)))
				}
				svc := start(t, c)
				exchange, key := s.configure(admin).Exchange.GenerateName(topic), ""
				if exchange == "" {
					key = topic
				}
				svc.Broker.PublishTo(exchange, key, rabbit.Messages("1")...)
				dead := svc.Broker.Take(s.queues[i]+".dlq", 1)
				assert.Equal(t, map[string]string{"1": "exhausted"}, reasons(dead))
				last := s.policies.For(topic).MaxRetries() + 1
				assert.Equal(t, last, slices.Max(svc.Calls.attempts("1")))
				assert.Len(t, svc.Calls.of("1"), last)
			}

			// Not even what is there already may be declared.
			worker := must(s.retrier(t, as(s.name, "secret"), declares).NewSubscriber())(t)
			require.ErrorAs(t, worker.SubscribeInitialize(s.topics[0]), new(*topology.AccessError))

			retrier := s.retrier(t, admin, declares)
			own := must(retrier.NewSubscriber())(t)
			stock := must(amqp.NewSubscriber(retrier.Config(), newLogs(t)))(t)
			t.Cleanup(func() { require.NoError(t, stock.Close()) })
			for _, topic := range s.topics {
				require.NoError(t, own.SubscribeInitialize(topic))
				require.NoError(t, stock.SubscribeInitialize(topic))
			}
		})
	}
	assert.Equal(t, imported, list(), "declaring has added and changed nothing")
}

// Every kind of object is declared with the same arguments on each version of the broker, also
// after a restart, over which what waits and what is dead stays.
func TestDeclaredAgainAfterARestart_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, 5*time.Second))
	wait := ms(10_000)
	// What comes out of a classic retry queue while its main queue is not available is lost, and
	// while a broker starts, a quorum queue is not: what was due while the broker was down is lost.
	lossy := func(p config.Policy, queueType string) bool {
		return p.ClassicQueues && queueType == "quorum"
	}
	kinds := []struct {
		queue, queueType string
		policy           config.Policy
	}{
		{"own", "quorum", config.Policy{Delays: wait}},
		{"own.on.classic", "classic", config.Policy{Delays: wait}},
		{"classic.on.classic", "classic", config.Policy{Delays: wait, ClassicQueues: true}},
		{"shared", "quorum", config.Policy{Delays: wait, Strategy: config.StrategyShared}},
		{"shared.on.classic", "classic", config.Policy{Delays: wait, Strategy: config.StrategyShared}},
		{"protected", "quorum", config.Policy{Delays: wait, Protect: config.ProtectionArguments}},
		{"dead.letters", "quorum", config.Policy{Mode: config.ModeDeadLetter}},
		{"classic", "quorum", config.Policy{Delays: wait, ClassicQueues: true}},
		{"shared.classic", "quorum", config.Policy{Delays: wait, Strategy: config.StrategyShared,
			ClassicQueues: true}},
	}
	services := func(handler func(*message.Message) error) (all []*service) {
		for _, k := range kinds {
			all = append(all, start(t, setup{
				URI: broker.URI, Queue: k.queue, QueueType: k.queueType, KeepObjects: true, Handler: handler,
				Options: amqpretry.Options{Policies: config.Policies{Default: k.policy}},
			}))
		}

		return all
	}
	declareAgain := func() {
		for _, k := range kinds {
			conf := plainConfig(broker.URI, k.queueType)
			retrier := newRetrier(t, conf, amqpretry.Options{Policies: config.Policies{Default: k.policy}})
			own := must(retrier.NewSubscriber())(t)
			require.NoError(t, own.SubscribeInitialize(k.queue))
			stock := must(amqp.NewSubscriber(retrier.Config(), newLogs(t)))(t)
			require.NoError(t, stock.SubscribeInitialize(k.queue))
			require.NoError(t, stock.Close())
			depths, err := retrier.QueueDepths(t.Context()) // passive declarations
			require.NoError(t, err)
			assert.NotEmpty(t, depths)
			require.NoError(t, retrier.Close())
		}
	}

	for _, svc := range services(func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return retry.Permanent(errFate)
		}

		return errFate
	}) {
		svc.publish("dead", "1")
		await.Until(t, func() bool {
			return len(svc.Events(retry.EventRetried, retry.EventDeadLettered)) == 2
		}, "%s: one waits, one is dead", svc.Queue)
		svc.close()
	}
	declareAgain()
	broker.Stop()
	broker.Start()
	declareAgain()
	for i, svc := range services(succeed) {
		dead := map[string]string{"dead": string(retry.ReasonPermanent)}
		switch {
		case kinds[i].policy.Mode == config.ModeDeadLetter:
			dead["1"] = string(retry.ReasonExhausted)
		case lossy(kinds[i].policy, kinds[i].queueType):
			t.Logf("%s: of 1 that was due while the broker was down, %d came back", svc.Queue, svc.Calls.count())
		default:
			// What is due before its main queue has a leader again comes with the broker's next
			// try, which is after 3 minutes.
			await.Within(t, 4*time.Minute, func() bool {
				return svc.Calls.count() > 0
			}, "%s: what waits comes back", svc.Queue)
			assert.Equal(t, []int{2}, svc.Calls.attempts("1"), svc.Queue)
		}
		assert.Equal(t, dead, reasons(svc.Broker.Take(svc.dlq(), len(dead))), svc.Queue)
	}
}

// slowDeclares keeps from the broker, on every connection, what is written on a channel from the
// declaration of a queue on: to the client it is a broker that answers everything but that.
type slowDeclares struct {
	mu    sync.Mutex
	queue string
	held  int
	gate  chan struct{}
}

func (s *slowDeclares) hold(queue string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.queue, s.gate = queue, gate

	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = ""
		close(gate)
	})
}

func (s *slowDeclares) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.held
}

func (s *slowDeclares) wrap(conn net.Conn) net.Conn {
	return &slowConn{Conn: conn, slow: s, held: map[uint16][]byte{}}
}

type slowConn struct {
	net.Conn

	slow *slowDeclares

	mu     sync.Mutex
	frames frameReader
	held   map[uint16][]byte // by channel
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pass []byte
	header := c.frames.read(b, func(frame []byte) {
		channel := binary.BigEndian.Uint16(frame[1:])
		if kept, ok := c.held[channel]; ok {
			c.held[channel] = append(kept, frame...)
		} else if gate := c.slow.takes(frame); gate != nil {
			c.held[channel] = bytes.Clone(frame)
			go c.release(channel, gate)
		} else {
			pass = append(pass, frame...)
		}
	})
	if _, err := c.Conn.Write(append(header, pass...)); err != nil {
		return 0, err
	}

	return len(b), nil
}

// takes gives what a frame has to wait for; nil for most.
func (s *slowDeclares) takes(frame []byte) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	const queueDeclare = "\x00\x32\x00\x0a"
	payload := frame[frameHead : len(frame)-1]
	if s.queue == "" || frame[0] != 1 || !bytes.HasPrefix(payload, []byte(queueDeclare)) ||
		!bytes.Contains(payload, []byte(s.queue)) {
		return nil
	}
	s.held++

	return s.gate
}

func (c *slowConn) release(channel uint16, gate <-chan struct{}) {
	<-gate
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.Conn.Write(c.held[channel])
	delete(c.held, channel)
}

// An operator makes the main queue anew, with another type. It is consumed from, and what is wrong
// is told.
func TestRedeclareWithAnotherType(t *testing.T) {
	t.Parallel()
	for was, is := range map[string]string{"classic": "quorum", "quorum": "classic", "quorum ": "stream"} {
		t.Run(is, func(t *testing.T) {
			t.Parallel()
			svc := start(t, setup{QueueType: strings.TrimSpace(was), Handler: byFate})
			svc.publish("ok-before")
			await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it consumes")

			svc.Broker.Do(func(ch *amqp091.Channel) error { // at once, before the service declares it
				if _, err := ch.QueueDelete(svc.Queue, false, false, false); err != nil {
					return err
				}
				_, err := ch.QueueDeclare(svc.Queue, true, false, false, false, amqp091.Table{"x-queue-type": is})

				return err
			})
			svc.publish("once-1")
			if is == "stream" {
				await.Until(t, func() bool { return len(svc.Logs.with("Cannot consume; trying again")) > 1 }, "refused")
				assert.Equal(t, 1, svc.Calls.count())

				return
			}
			await.Until(t, func() bool { return len(svc.Calls.of("once-1")) == 2 }, "it is handled, and retried")
			told := svc.Logs.with("consuming without it")
			require.NotEmpty(t, told)
			conflict := errorAs[*topology.ConflictError](t, told[0].Err)
			assert.Equal(t, []string{svc.Queue, is}, []string{conflict.Name, conflict.Found})
		})
	}
}

// A retry queue that was deleted, and whose declaration the broker does not answer, holds up the
// copies that are to go there, and no others of the same main queue.
func TestRedeclareHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	var slow slowDeclares
	svc := start(t, setup{Tiers: true,
		Configure: func(c *amqp.Config) { wrapConnections(c, slow.wrap) },
		Delays:    ms(200, 400),
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			switch {
			case attempt.Number > 1:
				return nil
			case msg.UUID == "dead":
				return retry.Permanent(errors.New("dead"))
			case msg.UUID == "other":
				return retry.RetryAfter(400*time.Millisecond, errors.New("other"))
			}

			return errors.New("needs what is missing")
		},
	})
	missing := svc.retryQueue(200 * time.Millisecond)
	release := slow.hold(missing)
	defer release()
	svc.Broker.Remove("", missing)

	svc.publish("held-1", "held-2")
	await.Until(t, func() bool { return slow.Held() > 0 }, "the queue is declared again")
	svc.publish("dead", "other")
	await.Until(t, func() bool {
		return svc.deadLettered() == 1 && len(svc.Calls.of("other")) == 2
	}, "the others go on")
	assert.Equal(t, 1, slow.Held(), "one declaration at a time")
	assert.Len(t, svc.Calls.of("held-1"), 1)
	_ = svc.reportedHeld(2)

	release()
	await.Until(t, func() bool {
		return len(svc.Calls.of("held-1")) == 2 && len(svc.Calls.of("held-2")) == 2
	}, "they come back")
	require.Len(t, svc.Events(retry.EventTopologyRepaired), 1)
}
