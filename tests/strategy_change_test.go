package tests

import (
	"context"
	"fmt"
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

// What a strategy cannot work with is refused before the broker is touched, all at once.
func TestStrategy_Refused(t *testing.T) {
	t.Parallel()
	conf := func(arguments amqp091.Table) amqp.Config {
		c := amqp.NewDurableQueueConfig("amqp://nobody:listens@127.0.0.1:1/")
		c.Queue.Arguments = arguments
		return c
	}
	policies := config.Policies{
		Default: redeliveryPolicy(),
		Topics: map[string]config.Policy{"cycle": cyclePolicy(), "policy": {Strategy: config.StrategyRedelivery,
			Protect: config.ProtectionPolicy}},
	}
	_, err := adapter.New(conf(amqp091.Table{"x-queue-type": "classic", "x-overflow": "drop-head",
		"x-message-ttl": 5}),
		amqpretry.Options{Policies: policies, AssumeTopology: true})
	for _, wanted := range []string{
		`Options.AssumeTopology: not possible with the strategy redelivery of Options.Policies.Default: nobody could ` +
			`see whether ` +
			`the main queue has what it needs, and its messages could be lost: must be left out, got true`,
		`Config.Queue.Arguments["x-queue-type"]: differs from what is needed by the strategy redelivery of ` +
			`Options.Policies.Default: must be left out, or "quorum", got "classic"`,
		`Config.Queue.Arguments["x-overflow"]: differs from what is needed by the strategy cycle of ` +
			`Options.Policies.Topics["cycle"]: must be left out, or "reject-publish", got "drop-head"`,
		`Config.Queue.Arguments["x-message-ttl"]: not possible with the strategy cycle of ` +
			`Options.Policies.Topics["cycle"]: must be left out, got 5`,
	} {
		require.ErrorContains(t, err, wanted)
	}
	_, err = adapter.New(conf(nil), amqpretry.Options{Policies: policies})
	require.ErrorContains(t, err,
		`Config.Queue.Arguments["x-queue-type"]: a policy of the broker cannot set it, and it is `+
			`needed by the strategy redelivery of Options.Policies.Topics["policy"]: must be "quorum", got "none"`)

	retrier := newRetrier(t, conf(amqp091.Table{"x-dead-letter-routing-key": "elsewhere"}), amqpretry.Options{
		Policies: config.Policies{Default: cyclePolicy()}})
	_, err = retrier.Plan("orders")
	require.NoError(t, err)
}

// A main queue that exists without what its strategy needs is left as it is, and the error says
// what to do.
func TestStrategy_QueueExists(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		s.Queue = uniqueName("exists")
		newRabbit(t, s.URI).Declare(s.Queue, amqp091.Table{"x-queue-type": "quorum"})
		s.Handler = func(*message.Message) error { return nil }
		svc := newService(t, s)
		_, err := svc.Sub.Subscribe(t.Context(), svc.Queue)
		var conflict *topology.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.ErrorContains(t, err,
			fmt.Sprintf("queue %q lacks arguments that the strategy %s of topic %q needs", svc.Queue,
				policy.Strategy, svc.Queue))
		if policy.Strategy == config.StrategyCycle {
			assert.NotContains(t, err.Error(), "set_policy", "nobody could see whether it is there")
		} else {
			assert.Contains(t, err.Error(), "set_policy")
		}
	})
}

// A main queue keeps a delivery limit of its own; where it ends messages before their retries do,
// the log says so.
func TestStrategy_OwnDeliveryLimit(t *testing.T) {
	t.Parallel()
	policies := map[string]config.Policy{"redelivery": redeliveryPolicy()}
	if hasNative(t) {
		policies["native"] = nativePolicy()
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const told = "RabbitMQ dead-letters messages before their last retry"
			policy.Retries = 5
			s := withPolicy(t, policy)
			s.Queue = uniqueName("limited")
			s.Handler = func(*message.Message) error { return errNever }
			s.Tiers = true
			s.Configure = func(c *amqp.Config) { c.Queue.Arguments["x-delivery-limit"] = int64(3) }
			limited := start(t, s)
			require.Len(t, limited.Logs.with(told), 1)
			assert.Equal(t, "3, and 5 retries", limited.Logs.with(told)[0].Fields["delivery_limit"])
			limited.publish("dropped")
			dead := limited.Broker.Take(limited.dlq(), 1)
			require.Len(t, dead, 1)
			assert.Nil(t, dead[0].Headers[header.Count], "by the broker, which adds none of our headers")
			assert.Len(t, limited.Calls.of("dropped"), 4)

			s.Configure = nil
			_, err := newService(t, s).Sub.Subscribe(t.Context(), s.Queue)
			require.ErrorContains(t, err, `or Config.Queue.Arguments["x-delivery-limit"] = 3, which keeps its own`)
			assert.NotContains(t, err.Error(), "set_policy", "which would not change that")
			assert.NotContains(t, err.Error(), "declare it as it is", "which would be refused")
			limited.close()

			policy.Retries = 3
			s.Options.Policies.Default = policy
			s.Configure = func(c *amqp.Config) { c.Queue.Arguments["x-delivery-limit"] = int64(3) }
			enough := start(t, s)
			assert.Empty(t, enough.Logs.with(told))
			enough.publish("exhausted")
			dead = enough.Broker.Take(enough.dlq(), 1)
			require.Len(t, dead, 1)
			assert.Equal(t, "exhausted", dead[0].Headers[header.Reason])
		})
	}
}

// Watermill's own subscriber cannot reject without requeueing all that it has at a shutdown.
func TestStrategy_StockSubscriberIsRefused(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		s.Handler = func(*message.Message) error { return nil }
		svc := newService(t, s)
		stock, err := amqp.NewSubscriber(svc.Retrier.Config(), svc.Logs)
		require.NoError(t, err)
		t.Cleanup(func() { _ = stock.Close() })
		_, err = stock.Subscribe(t.Context(), svc.Queue)
		var refused *topology.StrategyError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, topology.StrategyError{Queue: svc.Queue, Strategy: policy.Strategy, Stock: true}, *refused)
	})
}

// A broker that would accept the arguments of the strategy native and ignore them is refused at the
// start.
func TestStrategy_NativeNeedsItsVersion(t *testing.T) {
	t.Parallel()
	s := withPolicy(t, nativePolicy())
	s.Handler = func(*message.Message) error { return nil }
	svc := newService(t, s)
	_, err := svc.Sub.Subscribe(t.Context(), svc.Queue)
	if hasNative(t) {
		require.NoError(t, err)
		return
	}
	var refused *topology.StrategyError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, topology.StrategyError{Queue: svc.Queue, Strategy: config.StrategyNative,
		Version: svc.Broker.Version()}, *refused)
	assert.Equal(t, -1, svc.Broker.Depth(svc.Queue), "nothing was declared")
}

// P7: copies with protected arguments and redelivery have the same main queue, so one can take the
// place of the other under load: nothing is lost, and nothing is there twice.
func TestStrategy_ReplacesAnother(t *testing.T) {
	t.Parallel()
	copied := config.Policy{Delays: ms(200), Retries: 3, Protect: config.ProtectionArguments}
	for name, policies := range map[string][2]config.Policy{
		"redelivery instead of copies": {copied, redeliveryPolicy()},
		"copies instead of redelivery": {redeliveryPolicy(), copied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			version := func(policy config.Policy, queue string) *service {
				s := withPolicy(t, policy)
				s.Queue, s.Handler = queue, byFate
				return start(t, s)
			}
			queue := uniqueName("change")
			first, second := version(policies[0], queue), version(policies[1], queue)
			var ids []string
			for pace := time.NewTicker(100 * time.Millisecond); len(ids) < 300; <-pace.C {
				n := len(ids)
				for i := range 10 {
					ids = append(ids, []string{"ok", "never", "panic", "ok", "ok"}[i%5]+"-"+fmt.Sprint(n+i))
				}
				first.publish(ids[n:]...)
				if n == 150 {
					first.close()
				}
			}
			letters := doomed(ids)
			await.Until(t, func() bool {
				succeeded := map[string]bool{}
				for _, svc := range []*service{first, second} {
					for _, c := range svc.Calls.All() {
						succeeded[c.ID] = succeeded[c.ID] || succeeds(c.ID, c.Attempt)
					}
				}
				done := 0
				for _, ok := range succeeded {
					if ok {
						done++
					}
				}

				return done == len(ids)-len(letters) && first.deadLettered()+second.deadLettered() == len(letters)
			}, "every message ends")
			second.close()
			assert.Equal(t, letters, reasons(second.Broker.Drain(second.dlq())))
			assert.Empty(t, second.Broker.Drain(queue))
			assert.NotZero(t, first.Calls.count())
			assert.NotZero(t, second.Calls.count())
		})
	}
}

// What an operator's policy gives to a queue that exists is as good as arguments.
func TestStrategy_ByPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	policies := map[string]config.Policy{"redelivery": redeliveryPolicy()}
	if rabbit.New(t, broker.URI).AtLeast(4, 3) {
		policies["native"] = nativePolicy()
	}
	for name, policy := range policies {
		policy.Protect = config.ProtectionPolicy
		s := withPolicy(t, policy)
		s.URI, s.Queue, s.Handler = broker.URI, name, byFate
		newRabbit(t, broker.URI).Declare(s.Queue, amqp091.Table{"x-queue-type": "quorum"})
		svc := newService(t, s)
		plan, err := svc.Retrier.Plan(name)
		require.NoError(t, err)
		set, ok := plan.MainPolicy("/")
		require.True(t, ok)
		broker.Ctl("set_policy", "--apply-to", "queues", set.Name, set.Pattern, set.Definition)
		svc.run()
		ids := fates(30)
		began := time.Now()
		svc.publish(ids...)
		svc.Broker.Has(svc.dlq(), len(doomed(ids)))
		if name == "native" {
			assert.Greater(t, time.Since(began), 3*policy.Delay(1), "the broker delays")
		}
		svc.finish(ids, await.Bound, 0)
		assert.Zero(t, svc.byCopy())
	}
}

// Somebody deletes what a dead-letter cycle goes through, while messages are in it: the main queue
// keeps what it cannot dead-letter, the service declares what is missing, and nothing is lost.
func TestStrategy_CycleTopologyDeleted_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	broker.Ctl("eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000).")
	s := withPolicy(t, cyclePolicy())
	s.URI, s.Handler = broker.URI, byFate
	svc := start(t, s)
	plan, err := svc.Retrier.Plan(svc.Queue)
	require.NoError(t, err)
	rejected := plan.MainArguments["x-dead-letter-exchange"].(string)
	ids := fates(100)
	svc.publish(ids[:50]...)
	await.Until(t, func() bool { return svc.byBroker() > 10 }, "some go round")
	svc.Broker.Do(func(channel *amqp091.Channel) error { return channel.ExchangeDelete(rejected, false, false) })
	svc.publish(ids[50:]...)
	svc.finish(ids, await.Bound, 0)
	assert.Zero(t, svc.byCopy())
}

// A close while messages fail loses nothing and doubles nothing, whatever it comes between.
func TestStrategy_CloseWhileFailing(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		queue, ids := uniqueName("closing"), rabbit.Numbered("m", 200)
		dead, handled := map[string]int{}, map[string]bool{}
		var last *service
		same := withPolicy(t, policy)
		for round := range 4 {
			s := same
			s.Queue, s.Prefetch = queue, 50
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			s.Handler = func(msg *message.Message) error {
				attempt, _ := retry.AttemptFromContext(msg.Context())
				if round == 3 && attempt.Last {
					return nil
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				return errFate
			}
			last = start(t, s)
			if round == 0 {
				last.publish(ids...)
			}
			if round < 3 {
				<-time.After(time.Duration(100+60*round) * time.Millisecond)
				last.close()
			}
			for _, l := range last.Letters() {
				if round < 3 {
					dead[l.Message.UUID]++
				}
			}
		}
		await.Until(t, func() bool {
			for _, e := range last.Events(retry.EventSucceeded) {
				handled[e.Message.UUID] = true
			}
			return len(handled)+len(dead)+len(last.Letters()) >= len(ids)
		}, "every message ends: %d dead before", len(dead))
		for _, l := range last.Letters() {
			dead[l.Message.UUID]++
		}
		last.close()
		letters := last.Broker.Drain(last.dlq())
		found := map[string]int{}
		for _, d := range letters {
			found[rabbit.UUID(d)]++
		}
		assert.Equal(t, dead, found, "dead letters, each once")
		for _, id := range ids {
			assert.NotEqual(t, handled[id], dead[id] > 0, "%s: handled %v, dead %d", id, handled[id], dead[id])
		}
		plan, err := last.Retrier.Plan(queue)
		require.NoError(t, err)
		for _, q := range plan.Queues {
			assert.Empty(t, last.Broker.Drain(q.Name), q.Name)
		}
		assert.Empty(t, last.Broker.Drain(queue))
	})
}
