package tests

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

const canLose = "RabbitMQ drops messages that are requeued too often"

func protected(p config.Protection) config.Policies {
	return config.Policies{Default: config.Policy{Delays: ms(50), Protect: p}}
}

func offProtected(p config.Protection) config.Policies {
	return config.Policies{Default: config.Policy{Mode: config.ModeOff, Protect: p}}
}

func vhostOf(t *testing.T, uri string) string {
	t.Helper()
	parsed := must(amqp091.ParseURI(uri))(t)

	return parsed.Vhost
}

// reject rejects the message of a queue so many times, after which it must not come again.
func reject(t *testing.T, broker *rabbit.Client, queue string, times int) {
	t.Helper()
	broker.Do(func(ch *amqp091.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for n := range times {
			d := await.Value(t, deliveries, fmt.Sprintf("delivery %d of %d", n+1, times))
			if err := d.Reject(true); err != nil {
				return err
			}
		}
		await.Stays(t, time.Second, func() bool {
			select {
			case <-deliveries:
				return false
			default:
				return true
			}
		}, "rejected %d times, and gone", times)

		return nil
	})
}

func crash(t *testing.T, broker *rabbit.Client, queue string, times int) {
	t.Helper()
	for range times {
		broker.Do(func(ch *amqp091.Channel) error {
			deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			await.Closed(t, deliveries, "a message to die of in queue "+queue)

			return nil // the connection closes
		})
	}
}

// subscribing makes a retrier on a config with these arguments of the main queue, and what
// subscribes by it.
func subscribing(t *testing.T, uri string, arguments amqp091.Table,
	options amqpretry.Options) map[string]func(queue string) error {
	t.Helper()
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = arguments
	conf.Connection.Reconnect = fastReconnect()
	retrier := newRetrier(t, conf, options)
	own := must(retrier.NewSubscriber())(t)
	stock := must(amqp.NewSubscriber(retrier.Config(), newLogs(t)))(t)
	t.Cleanup(func() { require.NoError(t, stock.Close()) })

	return map[string]func(string) error{"own": own.SubscribeInitialize, "stock": stock.SubscribeInitialize}
}

func removeProtected(broker *rabbit.Client, queues ...string) {
	for _, q := range queues {
		broker.Remove(q+".retry", q, q+".retry.50ms", q+".dlq")
	}
}

// P8: a new quorum main queue with the protection loses no message beyond its limit. Under the mode
// off it is declared alike, so policies can follow, and go again.
func TestProtect_NewQueue(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	eachOf(t, []string{"own", "stock"}, func(t *testing.T, how string) {
		queue := uniqueName("q")
		t.Cleanup(func() { removeProtected(broker, queue) })
		for i, policies := range []config.Policies{
			offProtected(config.ProtectionArguments), protected(config.ProtectionArguments),
			offProtected(config.ProtectionArguments),
		} {
			logged := newLogs(t)
			subscribe := subscribing(t, uri, nil, amqpretry.Options{Policies: policies, Logger: logged})[how]
			require.NoError(t, subscribe(queue), i)
			assert.Empty(t, logged.with(canLose))
		}
		// The broker refuses what differs in any of them, so it has them all.
		broker.Declare(queue, topology.ProtectArguments(queue+".dlq"))

		broker.Publish(queue, rabbit.Messages("poison")...)
		reject(t, broker, queue, 1001) // one more than the limit
		assert.Equal(t, "poison", rabbit.UUID(broker.Take(queue+".dlq", 1)[0]))
	})
}

// P8: a queue that exists without the protection's arguments is left alone, and the error has the
// line that protects it.
func TestProtect_ExistingQueue(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	for _, how := range []string{"own", "stock"} {
		for name, test := range map[string]struct {
			arguments amqp091.Table
			argument  string // the first that the broker compares
		}{
			"quorum":                  {mainQueueArguments("quorum"), "x-dead-letter-exchange"},
			"quorum with other names": {topology.ProtectArguments("elsewhere"), "x-dead-letter-routing-key"},
			"classic":                 {mainQueueArguments("classic"), "x-dead-letter-exchange"},
			"no type":                 {nil, "x-dead-letter-exchange"},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				t.Parallel()

				queue := uniqueName("q")
				t.Cleanup(func() { removeProtected(broker, queue) })
				broker.Declare(queue, test.arguments)
				broker.Publish(queue, rabbit.Messages("kept")...)

				subscribe := subscribing(t, uri, nil,
					amqpretry.Options{Policies: protected(config.ProtectionArguments)})
				err := subscribe[how](queue)
				conflict := errorAs[*topology.ConflictError](t, err)
				assert.Equal(t, test.argument, conflict.Argument)
				require.ErrorAs(t, err, new(*topology.ProtectionError))
				assert.ErrorContains(t, err, topology.ProtectPolicy(vhostOf(t, uri), queue, queue+".dlq").String())

				broker.Take(queue, 1)
				assert.Equal(t, -1, broker.Depth(queue+".dlq"), "nothing was declared")

				// As it is, it can be used.
				for _, protect := range []config.Protection{config.ProtectionPolicy, config.ProtectionNone} {
					subscribe = subscribing(t, uri, test.arguments, amqpretry.Options{Policies: protected(protect)})
					require.NoError(t, subscribe[how](queue), protect)
				}
			})
		}
	}
}

// P8: a main queue that can lose messages is told of at the start, once for each retrier, in one
// line; under policy off to those who look for it.
func TestProtect_Warning(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	since4 := broker.AtLeast(4, 0)
	quorum := func(limit any) amqp091.Table {
		arguments := mainQueueArguments("quorum")
		if limit != nil {
			arguments["x-delivery-limit"] = limit
		}

		return arguments
	}
	dlx := quorum(nil)
	dlx["x-dead-letter-exchange"] = "amq.fanout"

	for name, test := range map[string]struct {
		arguments amqp091.Table
		policies  config.Policies
		assume    bool
		own       bool // whether the retrier's own subscriber tells, which knows the version
		stock     bool // whether a stock one does
		limit     string
	}{
		"default limit":              {arguments: quorum(nil), own: since4, stock: true, limit: "20"},
		"default limit, off":         {arguments: quorum(nil), policies: off(), own: since4, stock: true, limit: "20"},
		"a limit":                    {arguments: quorum(int64(5)), own: true, stock: true, limit: "5"},
		"unlimited":                  {arguments: quorum(int64(-1)), own: !since4, stock: false, limit: "-1"},
		"dead-letter exchange":       {arguments: dlx},
		"classic":                    {arguments: mainQueueArguments("classic")},
		"protected by arguments":     {policies: protected(config.ProtectionArguments)},
		"protected by a policy":      {arguments: quorum(nil), policies: protected(config.ProtectionPolicy)},
		"provisioned by an operator": {arguments: quorum(nil), assume: true},
	} {
		for how, tells := range map[string]bool{"own": test.own, "stock": test.stock} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()

				queue, logged := uniqueName("q"), newLogs(t)
				t.Cleanup(func() { removeProtected(broker, queue) })
				options := amqpretry.Options{Policies: test.policies, Logger: logged}
				if options.Policies.Default.IsZero() {
					options.Policies = protected("")
				}
				if test.assume {
					options.AssumeTopology = true
				}
				subscribe := subscribing(t, uri, test.arguments, options)[how]
				require.NoError(t, subscribe(queue))
				require.NoError(t, subscribe(queue), "again")

				told := logged.with(canLose)
				if !tells {
					assert.Empty(t, told)
					return
				}
				require.Len(t, told, 1)
				wanted := "error"
				if test.policies.Default.Mode == config.ModeOff {
					wanted = "debug"
				}
				assert.Equal(t, wanted, told[0].Level)
				assert.Equal(t, queue, told[0].Fields["amqp_queue_name"])
				assert.Contains(t, told[0].Fields["delivery_limit"], test.limit)
				assert.Contains(t, told[0].String(), "protect-a-queue.md#the-warning")
				assert.Less(t, len(told[0].String()), 500)
			})
		}
	}
}

// A reconnect, another subscriber and a subscription of another topic to the same queue do not tell
// again.
func TestProtect_WarningIsNotRepeated(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, brokertest.URI(t))
	queue := uniqueName("q")
	c := setup{URI: proxy.URI, Queue: queue, Handler: succeed}
	c.Configure = func(conf *amqp.Config) {
		conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(7)}
		conf.Queue.GenerateName = func(string) string { return queue }
	}
	svc := start(t, c)
	second := must(svc.Retrier.NewSubscriber())(t)
	require.NoError(t, second.SubscribeInitialize("other"))

	svc.publish("before")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "handled")
	consuming := len(svc.Logs.with("Consuming"))
	proxy.cut(anyone)
	await.Until(t, func() bool { return len(svc.Logs.with("Consuming")) > consuming }, "it consumes again")
	require.NoError(t, second.SubscribeInitialize(queue))
	svc.publish("after")
	await.Until(t, func() bool { return svc.Calls.ids()["after"] == 1 }, "handled")

	assert.Len(t, svc.Logs.with(canLose), 1)
}

// operator runs printed lines in a shell, as a person would, against a private broker.
type operator struct {
	t   *testing.T
	bin string // with a rabbitmqctl
	dir string // of the broker
}

func newOperator(t *testing.T, broker *brokertest.Broker) operator {
	t.Helper()
	script := must(filepath.Abs("../scripts/broker"))(t)
	bin := t.TempDir()
	shim := fmt.Sprintf("#!/bin/sh\nexec '%s' ctl '%s' \"$@\"\n", script, broker.Dir)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "rabbitmqctl"), []byte(shim), 0o755))

	return operator{t, bin, broker.Dir}
}

func (o operator) run(lines string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "sh", "-c", lines)
	cmd.Env = append(os.Environ(), "PATH="+o.bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(o.t, err, "%s\n%s", lines, out)

	return string(out)
}

// P8: the printed line, run by an operator, protects a quorum queue that exists, with messages in
// it and whatever its name, and no other queue.
func TestProtect_PolicyLine_OwnBroker(t *testing.T) {
	t.Parallel()

	private := brokertest.Shared(t)
	operator := newOperator(t, private)

	const vhost = `it's "$HOME" /ä`
	// A dead letter that finds no queue is tried again after 180 s by default.
	private.Ctl("eval", fmt.Sprintf(`V = <<"%s"/utf8>>, ok = rabbit_vhost:add(V, <<"test">>), `+
		`ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, V, <<".*">>, <<".*">>, <<".*">>, <<"test">>), `+
		`application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 500).`,
		strings.ReplaceAll(vhost, `"`, `\"`)))
	uri := must(url.Parse(private.URI))(t)
	uri.Path, uri.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	broker := newRabbit(t, uri.String())

	const name = `a.b's [x]+ $(id) "ü"`
	conf := plainConfig(uri.String(), "quorum")
	stock := must(amqp.NewSubscriber(conf, newLogs(t)))(t)
	const lookalike = `aXb's x $(id) "ü"` // what the pattern would match if it were not quoted
	for _, queue := range []string{name, lookalike, name + "2", "2" + name} {
		require.NoError(t, stock.SubscribeInitialize(queue))
	}
	require.NoError(t, stock.Close())
	broker.Publish(name, rabbit.Messages("there before")...)

	// Instances with policy off are there first; they declare no dead-letter queue.
	retrier := newRetrier(t, conf, amqpretry.Options{Policies: offProtected(config.ProtectionPolicy)})
	policy := must(retrier.ProtectPolicy(name))(t)
	shorter := policy
	shorter.Definition = strings.Replace(policy.Definition, `"delivery-limit":1000`, `"delivery-limit":3`, 1)
	require.NotEqual(t, policy, shorter)
	operator.run(shorter.String())

	listed := operator.run(commentedOut(policy.String(), "list_queues"))
	var with []string
	for line := range strings.Lines(listed) {
		if queue, applied, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); applied == policy.Name {
			with = append(with, queue)
		}
	}
	assert.Equal(t, []string{name}, with, "the queues with the policy, of\n%s", listed)

	// Beyond the limit, by rejects and by crashes: not lost, though there is no dead-letter queue
	// yet.
	reject(t, broker, name, 4) // one more than the limit
	broker.Publish(name, rabbit.Messages("killer")...)
	crash(t, broker, name, 4)
	await.Until(t, func() bool { return broker.Depth(name) == 0 }, "both are gone from sight")
	// A queue without the policy loses its message: that is what all this is about.
	broker.Declare("unprotected", amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(3)})
	broker.Publish("unprotected", rabbit.Messages("lost")...)
	reject(t, broker, "unprotected", 4)

	// Policies follow, and with them the dead-letter queue.
	c := setup{URI: uri.String(), Queue: name, QueueType: "quorum", KeepObjects: true,
		Handler: func(msg *message.Message) error {
			return failing(9)(msg)
		}}
	c.Options.Policies = protected(config.ProtectionPolicy)
	svc := start(t, c)
	var ids []string
	for _, d := range broker.Take(name+".dlq", 2) {
		ids = append(ids, rabbit.UUID(d))
	}
	assert.ElementsMatch(t, []string{"there before", "killer"}, ids)
	assert.Empty(t, svc.Logs.with(canLose))

	// Retries go on beside it, and do not count against the limit.
	svc.publish("fails")
	assert.Equal(t, "exhausted", reasons(broker.Take(svc.dlq(), 1))["fails"])

	operator.run(policy.String()) // the line as it is printed
	assert.Contains(t, operator.run(commentedOut(policy.String(), "list_policies")), `"delivery-limit":1000`)
	operator.run(policy.ClearCommand())
	assert.NotContains(t, operator.run(commentedOut(policy.String(), "list_policies")), policy.Name)
}

func commentedOut(script, command string) string {
	for line := range strings.Lines(script) {
		if strings.Contains(line, command) {
			return strings.TrimLeft(line, "# ")
		}
	}

	return "exit 1"
}
