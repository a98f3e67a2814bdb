package tests

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// provisioned is a service as its operator knows it: what it subscribes to, and what it needs.
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
			errorAs[*topology.AccessError](t, worker.SubscribeInitialize(s.topics[0]))

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
