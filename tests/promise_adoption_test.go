package tests

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
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
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

func off() config.Policies { return config.Policies{Default: config.Policy{Mode: config.ModeOff}} }

func plainConfig(uri, queueType string) amqp.Config {
	conf := amqp.NewDurableQueueConfig(uri)
	if queueType != "" {
		conf.Queue.Arguments = mainQueueArguments(queueType)
	}

	return conf
}

// P8: a queue that stock watermill-amqp declared, with messages in it, is adopted as it is.
func TestP8_ExistingQueueIsAdopted(t *testing.T) {
	t.Parallel()

	for name, queueType := range map[string]string{"classic": "classic", "quorum": "quorum", "no type": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			uri, queue := brokertest.URI(t), uniqueName("promise")
			plain := plainConfig(uri, queueType)
			before := must(amqp.NewSubscriber(plain, watermill.NopLogger{}))(t)
			require.NoError(t, before.SubscribeInitialize(queue))
			publisher := must(amqp.NewPublisher(confirmed(plain), watermill.NopLogger{}))(t)
			require.NoError(t, publisher.Publish(queue, message.NewMessage("1", []byte("a")),
				message.NewMessage("2", []byte("b"))))
			require.NoError(t, before.Close())
			require.NoError(t, publisher.Close())
			broker := newRabbit(t, uri)
			await.Until(t, func() bool { return broker.Depth(queue) == 2 }, "both wait")

			c := setup{Delays: ms(60), URI: uri, Queue: queue, Handler: func(msg *message.Message) error {
				if msg.UUID == "2" {
					return failing(9)(msg)
				}

				return failing(1)(msg)
			}}
			c.Configure = func(conf *amqp.Config) { conf.Queue = plain.Queue }
			svc := start(t, c)

			dead := svc.Broker.Take(svc.dlq(), 1)[0]
			assert.Equal(t, "2", rabbit.UUID(dead))
			await.Until(t, func() bool { return svc.Calls.count() == 4 }, "all is handled")
			assert.Equal(t, []int{1, 2}, svc.Calls.attempts("1"))

			// Declaring it as before still works: the queue has no new arguments.
			after := must(amqp.NewSubscriber(plain, watermill.NopLogger{}))(t)
			require.NoError(t, after.SubscribeInitialize(queue))
			require.NoError(t, after.Close())
		})
	}
}

// P8: policy off is what goes out first and last: it declares nothing, forwards nothing, and reads
// what the retries of others have left on messages, which a stock marshaler would spin on.
func TestP8_PolicyOff(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		t.Run("declares nothing", func(t *testing.T) {
			t.Parallel()

			var s seen
			var failed atomic.Int32
			c := setup{QueueType: "quorum"}
			c.Options.Policies = off()
			c.Handler = s.handler(func(*message.Message) error {
				if failed.Add(1) <= 3 {
					return retry.Permanent(errors.New("not even this is acted on"))
				}

				return nil
			})
			svc := run(t, c)

			svc.publish("1")
			await.Until(t, func() bool { return s.count() == 4 }, "three plain nacks, requeued at once")
			for _, v := range s.of("1") {
				assert.False(t, v.Known, "no attempts are counted")
			}
			assert.Equal(t, -1, svc.Broker.Depth(svc.dlq()))
			for _, delay := range ms(200, 1000) {
				assert.Equal(t, -1, svc.Broker.Depth(svc.retryQueue(delay)))
			}
			err := svc.Broker.Try(func(ch *amqp091.Channel) error {
				return ch.ExchangeDeclarePassive(svc.exchange(), "headers", true, false, false, false, nil)
			})
			missing := errorAs[*amqp091.Error](t, err)
			assert.Equal(t, amqp091.NotFound, missing.Code)
			assert.Zero(t, svc.Broker.Depth(svc.Queue))
			assert.Empty(t, svc.Letters())
		})

		t.Run("reads what others have retried", func(t *testing.T) {
			t.Parallel()

			// One instance already retries. Its messages wait while it is replaced by one with
			// policy off.
			handler, closes := failsInAClose(2)
			c := setup{KeepObjects: true, Handler: handler}
			c.Options.Policies = retries(ms(50, 300)...)
			c.Options.CloseTimeout = 15 * time.Second
			svc := newService(t, c)
			plan := must(svc.Retrier.Plan(svc.Queue))(t)
			broker := svc.Broker
			t.Cleanup(func() { broker.RemovePlan(plan) })
			svc.run()
			broker.Publish(svc.Queue, with("1", amqp091.Table{"n": int64(1)}))
			closes(svc)
			require.Equal(t, 2, svc.Calls.count(), "it has failed twice, and waits")

			var s seen
			c.Queue, c.Options.Policies, c.Handler = svc.Queue, off(), s.handler(succeed)
			leaving := run(t, c)
			await.Until(t, func() bool { return s.count() == 1 }, "it comes back, and is handled")
			await.Stays(t, 300*time.Millisecond, func() bool { return s.count() == 1 }, "once")

			v := s.of("1")[0]
			assert.False(t, v.Known)
			assert.Equal(t, message.Metadata{"n": "1"}, v.Metadata)
			assert.Equal(t, "1", v.Payload)
			await.Until(t, func() bool { return broker.Depth(svc.Queue) == 0 }, "acknowledged")

			// What somebody moves back from the dead-letter queue as well.
			replay := ours(svc.Queue, "-1")
			broker.Publish(svc.Queue, with("2", replay))
			await.Until(t, func() bool { return len(s.of("2")) == 1 }, "handled")
			assert.Empty(t, ownKeys(s.of("2")[0].Metadata))
			assert.Empty(t, leaving.Logs.with("Processing message failed"))
		})
	})
}

// P8: during a rollout, instances with policy off and with retries share a queue, and no message
// spins or is lost.
func TestP8_OffAndRetriesSideBySide(t *testing.T) {
	t.Parallel()

	var retrying, plain seen
	c := setup{Prefetch: 1, Handler: retrying.handler(failing(1))}
	c.Options.Policies = retries(ms(50, 60)...)
	svc := start(t, c)

	c.Queue, c.KeepObjects, c.Options.Policies, c.Handler = svc.Queue, true, off(), plain.handler(succeed)
	startStock(t, c)

	const n = 60
	ids := rabbit.Numbered("m", n)
	svc.publish(ids...)
	done := func() bool {
		for _, id := range ids {
			calls := retrying.of(id)
			if len(plain.of(id)) == 0 && (len(calls) == 0 || calls[len(calls)-1].Attempt.Number < 2) {
				return false
			}
		}

		return true
	}
	await.Until(t, done, "every message succeeds somewhere")
	await.Stays(t, 200*time.Millisecond, func() bool { return svc.Broker.Depth(svc.dlq()) == 0 }, "none died")
	assert.NotZero(t, plain.count())
	assert.NotZero(t, retrying.count())
	retried := 0
	for _, id := range ids {
		if len(retrying.of(id)) == 1 && len(plain.of(id)) == 1 {
			retried++ // came from a retry queue to the instance with policy off
		}
		assert.LessOrEqual(t, len(retrying.of(id))+len(plain.of(id)), 2, id)
	}
	assert.NotZero(t, retried, "some retries were handled by the instance that does not retry")
}

// subscribeFails starts nothing: Subscribe fails, of the retrier's own subscriber and a stock one.
func subscribeFails(t *testing.T, uri, queue string, queueArguments amqp091.Table, options amqpretry.Options) error {
	t.Helper()
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = queueArguments
	options.Logger = newLogs(t)
	retrier := newRetrier(t, conf, options)
	_, stockErr := stockOf(t, retrier.Config()).Subscribe(t.Context(), queue)
	subscriber := must(retrier.NewSubscriber())(t)
	require.Error(t, subscriber.SubscribeInitialize(queue))
	messages, err := subscriber.Subscribe(t.Context(), queue)
	require.Error(t, err)
	require.Nil(t, messages)
	if conflict := (*topology.ConflictError)(nil); errors.As(err, &conflict) {
		stock := *errorAs[*topology.ConflictError](t, stockErr)
		stock.Err = conflict.Err
		assert.Equal(t, *conflict, stock, "a stock subscriber says the same")
	}

	return err
}

// P8: what is there already and differs fails Subscribe, with what differs and what to do.
func TestP8_Conflicts(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	options := amqpretry.Options{Policies: retries(ms(50)...)}

	type row struct {
		there     string // suffix of the queue that is declared before
		arguments amqp091.Table
		wanted    amqp091.Table // main queue as the config has it
		conflict  topology.ConflictError
		found     []string
	}
	each(t, map[string]row{
		"retry queue with another ttl": {
			there: ".retry.50ms",
			arguments: amqp091.Table{
				"x-queue-type": "quorum", "x-message-ttl": int64(7000), "x-dead-letter-exchange": "",
				"x-overflow":             "reject-publish",
				"x-dead-letter-strategy": "at-least-once", "x-queue-leader-locator": "balanced",
				"x-delivery-limit": int64(2147483647),
			},
			conflict: topology.ConflictError{Argument: "x-message-ttl", Wanted: "50"}, found: []string{"7000"},
		},
		"dead-letter queue of another type": {
			there: ".dlq", arguments: amqp091.Table{"x-queue-type": "classic"},
			conflict: topology.ConflictError{Argument: "x-queue-type", Wanted: "quorum"}, found: []string{"classic"},
		},
		"main queue with an argument that the config has not": {
			there: "", arguments: amqp091.Table{"x-max-length": int64(5)},
			conflict: topology.ConflictError{Argument: "x-max-length", Wanted: "none"}, found: []string{"5"},
		},
		"main queue without an argument of the config": {
			there: "", wanted: amqp091.Table{"x-max-length": int64(5)},
			conflict: topology.ConflictError{Argument: "x-max-length", Wanted: "5"}, found: []string{"none"},
		},
		"main queue of another type": {
			there: "", wanted: amqp091.Table{"x-queue-type": "quorum"},
			// before and from 4.0
			conflict: topology.ConflictError{Argument: "x-queue-type", Wanted: "quorum"},
			found:    []string{"none", "classic"},
		},
	}, func(t *testing.T, _ string, test row) {
		queue := uniqueName("q")
		there := queue + test.there
		if test.arguments["x-dead-letter-exchange"] != nil {
			test.arguments["x-dead-letter-routing-key"] = queue
		}
		broker.Declare(there, test.arguments)
		t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.50ms", queue+".dlq") })
		broker.Publish(there, rabbit.Messages("kept")...)

		err := subscribeFails(t, uri, queue, test.wanted, options)
		conflict := errorAs[*topology.ConflictError](t, err)
		assert.Equal(t, "queue", conflict.Kind)
		assert.Equal(t, there, conflict.Name)
		assert.Equal(t, test.conflict.Argument, conflict.Argument)
		assert.Equal(t, test.conflict.Wanted, conflict.Wanted)
		assert.Contains(t, test.found, conflict.Found)
		for _, part := range []string{there, test.conflict.Argument, test.conflict.Wanted, conflict.Found,
			"ways out"} {
			assert.ErrorContains(t, err, part)
		}
		refused := errorAs[*amqp091.Error](t, err)
		assert.Equal(t, amqp091.PreconditionFailed, refused.Code)

		broker.Take(there, 1) // nothing was changed
	})

	t.Run("retry exchange of another type", func(t *testing.T) {
		t.Parallel()

		queue := uniqueName("q")
		broker.Do(func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare(queue+".retry", "direct", true, false, false, false, nil)
		})
		t.Cleanup(func() { broker.Remove(queue+".retry", queue) })

		conflict := errorAs[*topology.ConflictError](t, subscribeFails(t, uri, queue, nil, options))
		assert.Equal(t, topology.ConflictError{
			Kind: "exchange", Name: queue + ".retry", Argument: "type", Wanted: "headers", Found: "direct",
			Err: conflict.Err,
		}, *conflict)
	})
}

// P8: with AssumeTopology nothing is declared: what is missing is told, what is there is used.
func TestP8_TopologyAssume(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	options := amqpretry.Options{Policies: retries(ms(50)...), AssumeTopology: true}

	t.Run("nothing is there", func(t *testing.T) {
		t.Parallel()

		queue := uniqueName("q")
		conf := amqp.NewDurableQueueConfig(uri)
		subscriber := must(newRetrier(t, conf, options).NewSubscriber())(t)
		require.NoError(t, subscriber.SubscribeInitialize(queue), "it has nothing to do")
		assert.Equal(t, -1, broker.Depth(queue))

		_, err := subscriber.Subscribe(t.Context(), queue)
		require.ErrorContains(t, err, queue)
		missing := errorAs[*amqp091.Error](t, err)
		assert.Equal(t, amqp091.NotFound, missing.Code)

		for _, name := range []string{queue, queue + ".retry.50ms", queue + ".dlq"} {
			assert.Equal(t, -1, broker.Depth(name), name)
		}
	})

	t.Run("all is there", func(t *testing.T) {
		t.Parallel()

		queue := uniqueName("q")
		provision(t, uri, queue, options)
		svc := start(t, setup{URI: uri, Queue: queue, Options: options, Handler: failing(9)})
		svc.publish("1")
		svc.Broker.Take(svc.dlq(), 1)
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("1"))
	})
}

func provision(t *testing.T, uri, queue string, options amqpretry.Options) {
	t.Helper()
	plan := must(newRetrier(t, amqp.NewDurableQueueConfig(uri), options).Plan(queue))(t)
	newRabbit(t, uri).Do(func(ch *amqp091.Channel) error {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, mainQueueArguments("classic")); err != nil {
			return err
		}

		return plan.Declare(ch)
	})
}

// P8: what a user may not do fails Subscribe with the object; a user who may configure nothing at
// all works with what was provisioned for him.
func TestP8_Permissions_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Shared(t)
	// One command for all, since each takes a second or more.
	var script strings.Builder
	for user, may := range map[string][3]string{ // configure, write, read
		"reader":  {"^$", ".*", ".*"},
		"owner":   {"^q$", ".*", ".*"},
		"blind":   {".*", ".*", `^q\\.(retry|dlq)`},
		"guarded": {"^$", `^provisioned\\.retry$`, "^provisioned$"},
		"sharer":  {".*", `^(?!amq\\.default$)`, ".*"},
	} {
		fmt.Fprintf(&script, `ok = rabbit_auth_backend_internal:add_user(<<"%s">>, <<"secret">>, <<"test">>), `+
			`ok = rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"/">>, <<"%s">>, <<"%s">>, <<"%s">>, <<"test">>), `,
			user, user, may[0], may[1], may[2])
	}
	broker.Ctl("eval", script.String()+"ok.")
	as := func(user string) string {
		uri := must(url.Parse(broker.URI))(t)
		uri.User = url.UserPassword(user, "secret")

		return uri.String()
	}
	options := amqpretry.Options{Policies: retries(ms(50)...)}

	t.Run("the main queue may not be declared", func(t *testing.T) {
		access := errorAs[*topology.AccessError](t, subscribeFails(t, as("reader"), "q", nil, options))
		assert.Equal(t, "queue q", access.Kind+" "+access.Name)
		assert.Equal(t, "reader", access.User)
		assert.Contains(t, []string{"", "configure"}, access.Permission) // brokers before 4.0 do not say
	})
	t.Run("the retry topology may not be declared", func(t *testing.T) {
		var access *topology.AccessError
		err := subscribeFails(t, as("owner"), "q", nil, options)
		require.ErrorAs(t, err, &access)
		assert.Equal(t, "exchange q.retry", access.Kind+" "+access.Name)
		assert.ErrorContains(t, err, "AssumeTopology", "a way out")
	})
	t.Run("the main queue may not be read", func(t *testing.T) {
		access := errorAs[*amqp091.Error](t, subscribeOnlyFails(t, as("blind"), "q", options))
		assert.Equal(t, amqp091.AccessRefused, access.Code)
	})
	t.Run("the exchange of a publisher may not be declared", func(t *testing.T) {
		conf := amqp.NewDurablePubSubConfig(as("reader"), amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
		err := newPublisher(t, conf, amqpretry.Options{}).Publish("events", watermillMessages("1")...)
		access := errorAs[*topology.AccessError](t, err)
		assert.Equal(t, "exchange events", access.Kind+" "+access.Name)
		assert.ErrorContains(t, err, `no configure permission for user "reader" to declare it; grant it`)
		assert.False(t, failures(t, err).Failed[0].MayBeStored)
	})
	testSharedPermissions(t, broker, as("sharer"))
	t.Run("nothing may be declared, all was provisioned", func(t *testing.T) {
		assume := options
		assume.AssumeTopology = true
		provision(t, broker.URI, "provisioned", options)

		// The harness's own client stays the operator; the service is the worker.
		c := setup{URI: broker.URI, Queue: "provisioned", Options: assume, Handler: failing(9), KeepObjects: true}
		c.Configure = func(conf *amqp.Config) { conf.Connection.AmqpURI = as("guarded") }
		svc := start(t, c)
		svc.publish("1")
		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("1"))
		assert.Equal(t, "exhausted", rabbit.Text(dead, header.Reason))
	})
}

// With shared retry queues, dead letters go by the default exchange. Who may not write to it learns
// so from Subscribe; and where nobody asks, one dead letter that is refused again and again takes
// no retry with it.
func testSharedPermissions(t *testing.T, broker *brokertest.Broker, as string) {
	sharing := func(assume bool) amqpretry.Options {
		return amqpretry.Options{AssumeTopology: assume,
			Policies: config.Policies{
				Default: config.Policy{Delays: ms(50), Retries: 20, Strategy: config.StrategyShared},
			}}
	}

	t.Run("the default exchange may not be written to", func(t *testing.T) {
		access := errorAs[*topology.AccessError](t, subscribeFails(t, as, "shared", nil, sharing(false)))
		assert.Equal(t, "exchange amq.default", access.Kind+" "+access.Name)
		assert.Contains(t, []string{"", "write"}, access.Permission)
	})

	t.Run("the same, and nobody asks", func(t *testing.T) {
		provision(t, broker.URI, "assumed", sharing(false))
		var s seen
		c := setup{URI: broker.URI, Queue: "assumed", Options: sharing(true), KeepObjects: true, Prefetch: 40}
		c.Configure = func(conf *amqp.Config) { conf.Connection.AmqpURI = as }
		c.Handler = s.handler(func(msg *message.Message) error {
			if strings.HasPrefix(msg.UUID, "dead") {
				return retry.Permanent(errFate)
			}

			return failing(10)(msg)
		})
		svc := start(t, c)
		svc.publish(append(rabbit.Numbered("dead", 3), rabbit.Numbered("retried", 10)...)...)
		await.Until(t, func() bool { return s.count() >= 3+10*11 }, "all retries come back")
		await.Stays(t, 300*time.Millisecond, func() bool { return s.count() == 3+10*11 }, "none of them twice")
		var held []*topology.HeldError
		await.Until(t, func() bool { // on a slow machine a retry is held as well
			held = slices.DeleteFunc(svc.Held(), func(h *topology.HeldError) bool { return h.Exchange != "" })
			return len(held) > 0
		}, "the dead letters are held, and that is told")
		assert.ErrorContains(t, held[0], "the default exchange")
	})
}

func subscribeOnlyFails(t *testing.T, uri, queue string, options amqpretry.Options) error {
	t.Helper()
	options.Logger = newLogs(t)
	subscriber := must(newRetrier(t, amqp.NewDurableQueueConfig(uri), options).NewSubscriber())(t)
	_, err := subscriber.Subscribe(t.Context(), queue)

	return err
}
