package tests

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// shared gives options whose retry queues are shared by all who have the same prefix; what is
// shared goes with the test.
func shared(t *testing.T, prefix string, classic bool, delays ...time.Duration) amqpretry.Options {
	t.Helper()
	o := amqpretry.Options{Policies: config.Policies{Default: config.Policy{
		Delays: delays, Strategy: config.StrategyShared, ClassicQueues: classic,
	}}}
	o.Names.Shared = prefix
	broker := newRabbit(t, brokertest.URI(t))
	t.Cleanup(func() {
		for _, d := range delays {
			broker.Remove("", prefix+"."+config.FormatDelay(d), prefix+"."+config.FormatDelay(d)+".classic")
		}
		for _, x := range []string{prefix, prefix + ".classic", prefix + ".return"} {
			broker.Remove(x)
		}
	})

	return o
}

// Several services share retry queues: everybody gets back what is his, and only that; the dead
// letters stay apart.
func TestSharedQueues(t *testing.T) {
	t.Parallel()

	for suffix, classic := range map[string]bool{"": false, ".classic": true} {
		t.Run("retry queues"+suffix, func(t *testing.T) {
			t.Parallel()

			prefix := uniqueName("shared")
			options := shared(t, prefix, classic, ms(100, 150)...)
			runs := map[string]func(*testing.T, setup) *service{
				"own":     start,
				"another": start,
				"stock":   startStock,
			}
			services, views := map[string]*service{}, map[string]*seen{}
			for name, run := range runs {
				views[name] = &seen{}
				c := setup{Options: options, Prefetch: 20}
				c.QueueType = map[string]string{"own": "quorum"}[name]
				c.Handler = views[name].handler(func(msg *message.Message) error {
					if msg.UUID == "dead" {
						return failing(9)(msg)
					}

					return failing(2)(msg)
				})
				services[name] = run(t, c)
			}
			for _, svc := range services {
				svc.publish("dead", "twice")
			}

			for name, svc := range services {
				dead := svc.Broker.Take(svc.dlq(), 1)[0]
				assert.Equal(t, "dead", rabbit.UUID(dead), name)
				hasHeaders(t, dead, headers{header.Queue: svc.Queue, header.Reason: "exhausted"})
				view := views[name]
				await.Until(t, func() bool { return view.count() == 6 }, "%s: each three times", name)
				plan := must(svc.Retrier.Plan(svc.Queue))(t)
				require.Len(t, plan.Queues, 3)
				assert.Equal(t, prefix+".150ms"+suffix, plan.Queues[1].Name)
			}
			await.Stays(t, 300*time.Millisecond, func() bool {
				return views["own"].count() == 6 && views["another"].count() == 6 && views["stock"].count() == 6
			}, "nobody gets what is another's")
		})
	}
}

// A service that was not asked cannot be reached through the shared queues: its queue is not bound.
func TestSharedQueues_NobodyIsReachedUnasked(t *testing.T) {
	t.Parallel()

	prefix := uniqueName("shared")
	svc := start(t, setup{Options: shared(t, prefix, true, ms(50)...), Handler: succeed})
	outsider := uniqueName("outsider")
	svc.Broker.Declare(outsider, nil)

	forged := rabbit.Message("forged", "x")
	forged.Headers[header.Delay] = "50ms"
	svc.Broker.PublishTo(prefix+".classic", outsider, forged)
	svc.Broker.PublishTo(prefix+".classic", svc.Queue, forged) // who takes part can be reached by who may publish there
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the one who takes part")
	await.Stays(t, 300*time.Millisecond, func() bool { return svc.Broker.Depth(outsider) == 0 }, "and nobody else")
}

// What an operator deletes of what is shared is declared again, with the return to the main queue.
func TestSharedQueues_DeletedObjects(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(*amqp091.Channel, string) error{
		"retry exchange": func(ch *amqp091.Channel, prefix string) error {
			return ch.ExchangeDelete(prefix, false, false)
		},
		"retry queue": func(ch *amqp091.Channel, prefix string) error {
			_, err := ch.QueueDelete(prefix+".100ms", false, false, false)
			return err
		},
		"everything": func(ch *amqp091.Channel, prefix string) error {
			if _, err := ch.QueueDelete(prefix+".100ms", false, false, false); err != nil {
				return err
			}
			if err := ch.ExchangeDelete(prefix+".return", false, false); err != nil {
				return err
			}

			return ch.ExchangeDelete(prefix, false, false)
		},
	}, func(t *testing.T, _ string, spoil func(*amqp091.Channel, string) error) {
		prefix := uniqueName("shared")
		svc := start(t, setup{Options: shared(t, prefix, false, ms(100)...), Handler: failing(1)})
		svc.Broker.Do(func(ch *amqp091.Channel) error { return spoil(ch, prefix) })
		svc.publish("1")
		await.Until(t, func() bool { return svc.Calls.count() == 2 }, "it fails, and comes back")
	})

	t.Run("dead-letter queue", func(t *testing.T) {
		t.Parallel()

		svc := start(t, setup{
			Options: shared(t, uniqueName("shared"), false, ms(100)...),
			Handler: func(*message.Message) error { return retry.Permanent(errFate) },
		})
		svc.Broker.Remove("", svc.dlq())
		svc.publish("1")
		svc.Broker.Take(svc.dlq(), 1)
	})
}

// What sharing costs, as the docs say: messages of a queue that is gone keep those of all others
// from coming back, as a quorum retry queue has no more than 32 under way.
func TestSharedQueues_OneMissingTargetBlocksAll(t *testing.T) {
	t.Parallel()

	prefix := uniqueName("shared")
	options := shared(t, prefix, false, ms(300)...)
	gone := newService(t, setup{Options: options, Handler: failing(9), Prefetch: 50})
	svc := start(t, setup{Options: options, Handler: failing(1), Prefetch: 50})
	require.NoError(t, gone.Sub.SubscribeInitialize(gone.Queue))

	lost := rabbit.Messages(rabbit.Numbered("lost", 40)...)
	for i := range lost {
		lost[i].Headers[header.Delay] = "300ms"
	}
	gone.Broker.Remove("", gone.Queue)
	gone.Broker.PublishTo(prefix, gone.Queue, lost...)
	svc.publish("1")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it fails")
	await.Stays(t, time.Second, func() bool { return svc.Calls.count() == 1 }, "and does not come back")

	// With an own set it would.
	own := start(t, setup{Delays: ms(300), Handler: failing(1)})
	own.publish("1")
	await.Until(t, func() bool { return own.Calls.count() == 2 }, "it comes back")
}

// Fanout: two queues of one topic share retry queues, and a retry reaches the one that failed.
func TestSharedQueues_Fanout(t *testing.T) {
	t.Parallel()

	prefix, topic := uniqueName("shared"), uniqueName("topic")
	options := shared(t, prefix, false, ms(100)...)
	services := map[string]*service{}
	for group, failures := range map[string]int{"a": 1, "b": 0} {
		c := setup{Queue: topic, Options: options, Handler: failing(failures), KeepObjects: true}
		c.Configure = func(conf *amqp.Config) {
			group := amqp.NewDurablePubSubConfig(conf.Connection.AmqpURI,
				amqp.GenerateQueueNameTopicNameWithSuffix(group))
			conf.Exchange, conf.Queue, conf.QueueBind, conf.Publish = group.Exchange, group.Queue, group.QueueBind,
				group.Publish
		}
		services[group] = start(t, c)
		queue := topic + "_" + group
		t.Cleanup(func() { newRabbit(t, brokertest.URI(t)).Remove("", queue, queue+".dlq") })
	}
	t.Cleanup(func() { newRabbit(t, brokertest.URI(t)).Remove(topic) })

	services["a"].Broker.PublishTo(topic, "", rabbit.Messages("1")...)
	await.Until(t, func() bool {
		return services["a"].Calls.count() == 2 && services["b"].Calls.count() == 1
	}, "a comes again")
	await.Stays(t, 300*time.Millisecond, func() bool { return services["b"].Calls.count() == 1 }, "and not for b")
}

// The exchange for the return can be deleted without any publish failing. It is declared again
// before it is missed, where there is time: classic retry queues would lose what comes out of them.
func TestSharedQueues_WayBackIsLookedAfter(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(ch *amqp091.Channel, prefix, queue string) error{
		"exchange": func(ch *amqp091.Channel, prefix, _ string) error {
			return ch.ExchangeDelete(prefix+".return", false, false)
		},
		"binding": func(ch *amqp091.Channel, prefix, queue string) error {
			return ch.QueueUnbind(queue, queue, prefix+".return", nil)
		},
	}, func(t *testing.T, _ string, spoil func(ch *amqp091.Channel, prefix, queue string) error) {
		prefix := uniqueName("shared")
		svc := start(t, setup{Options: shared(t, prefix, true, ms(18_000)...), Handler: failing(1)})
		svc.publish("1")
		await.Until(t, func() bool { return svc.Broker.Depth(prefix+".18s.classic") == 1 }, "it waits")
		svc.Broker.Do(func(ch *amqp091.Channel) error { return spoil(ch, prefix, svc.Queue) })
		await.Until(t, func() bool { return svc.Calls.count() == 2 }, "it comes back")
	})
}

// soak is how long two versions run side by side under load: `make soak` sets minutes.
func soak(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SOAK")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "SOAK")

	return d
}

// P7: two versions of a service with different policies share a queue under load, then the new one
// goes on. None is lost, twice or left behind, and what waits goes on under the new policy.
func TestP7_TwoVersionsSideBySide(t *testing.T) {
	t.Parallel()

	old := config.Policy{Delays: ms(100, 1200), MaxAge: time.Hour}
	type row struct {
		queueType string
		old, now  config.Policy
	}
	each(t, map[string]row{
		"other delays": {"quorum", old, config.Policy{Delays: ms(150, 100, 700, 300)}},
		"other ages and jitter": {"classic", old, config.Policy{Delays: ms(100, 500), Jitter: 0.5, Immediate: 1,
			MaxAge: 2 * time.Hour, NeverRetry: []config.ErrorMatch{config.Is(errNever)}}},
		"other type of queues": {"quorum", old,
			config.Policy{Delays: old.Delays, ClassicQueues: true}},
		"shared instead of own": {"classic", old, config.Policy{Delays: old.Delays, Strategy: config.StrategyShared}},
		"own instead of shared": {"quorum", config.Policy{Delays: old.Delays, Strategy: config.StrategyShared,
			ClassicQueues: true}, old},
		"fewer retries than ago": {"quorum", config.Policy{Delays: ms(100, 200), Retries: 8}, old},
		"exact instead of tiers": {"quorum", old, config.Policy{Delays: ms(100, 1200), Jitter: 0.3,
			Strategy: config.StrategyLadder, Ladder: ownLadder()}},
		"tiers instead of exact": {"classic", config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: ownLadder()}, old},
		"another ladder": {"quorum", config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: ownLadder()}, config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: config.Ladder{Prefix: uniqueName("ladder"), Unit: 50 * time.Millisecond, Radix: 4, Levels: 4}}},
	}, func(t *testing.T, _ string, test row) {
		prefix := uniqueName("shared")
		options := shared(t, prefix, false, append(test.old.DistinctDelays(), test.now.DistinctDelays()...)...)
		version := func(policy config.Policy, s *seen) setup {
			c := setup{QueueType: test.queueType, Prefetch: 30, Options: amqpretry.Options{
				Policies: config.Policies{Default: policy}, Concurrency: 4, Names: options.Names,
				CloseTimeout: 15 * time.Second, // no handler is interrupted, which would run again
			}}
			c.Handler = s.handler(byFate)

			return c
		}
		var s seen
		first := start(t, version(test.old, &s))
		c := version(test.now, &s)
		c.Queue = first.Queue
		second := start(t, c)

		// Load, at a pace that a busy machine keeps up with.
		var ids []string
		lasting := soak(t)
		for began, pace := time.Now(), time.NewTicker(100*time.Millisecond); time.Since(began) < lasting; <-pace.C {
			n := len(ids)
			for i := range 5 {
				ids = append(ids, []string{"ok", "once", "never", "twice", "panic"}[i]+"-"+fmt.Sprint(n+i))
			}
			first.publish(ids[n:]...)
		}
		first.close() // while some of its messages wait
		waiting := second.Broker.Depth(first.retryQueue(1200 * time.Millisecond))

		letters := doomed(ids)
		dead := func() int { return first.deadLettered() + second.deadLettered() }
		done := func() int {
			succeeded := map[string]bool{}
			for _, c := range s.All() {
				if succeeds(c.ID, c.Attempt.Number) {
					succeeded[c.ID] = true
				}
			}

			return len(succeeded)
		}
		await.Until(t, func() bool {
			return dead() >= len(letters) && done() >= len(ids)-len(letters)
		}, "every message ends")
		second.close()

		found := second.Broker.Drain(second.dlq())
		assert.Len(t, found, len(letters), "dead letters")
		assert.Equal(t, letters, reasons(found))
		assert.Empty(t, second.Broker.Drain(second.Queue), "nothing is left in the main queue")
		for _, svc := range []*service{first, second} {
			plan := must(svc.Retrier.Plan(svc.Queue))(t)
			queues := plan.Queues
			if plan.Ladder != nil && !rabbit.IsShared(plan.Ladder) {
				queues = append(queues, plan.Ladder.Shared().Queues...)
			}
			for _, q := range queues {
				assert.Empty(t, second.Broker.Drain(q.Name), q.Name)
			}
		}
		s.requireAttemptsInOrder(t, ids)
		t.Logf("%d messages in %s, %d calls, %d waited when the old version ended", len(ids), lasting, s.count(),
			waiting)
		assert.NotZero(t, second.Calls.count())
		assert.NotZero(t, first.Calls.count())
	})
}

// requireAttemptsInOrder holds the calls of each message, by whichever version, against its fate:
// attempts 1, 2, 3 … with the tries of each, without a gap or a repetition, until it succeeds.
func (s *seen) requireAttemptsInOrder(t *testing.T, ids []string) {
	t.Helper()
	calls := map[string][]sight{}
	for _, c := range s.All() {
		calls[c.ID] = append(calls[c.ID], c)
	}
	wrong := 0
	for _, id := range ids {
		all := calls[id]
		slices.SortFunc(all, func(a, b sight) int { return cmp.Compare(a.At.UnixNano(), b.At.UnixNano()) })
		var told []string
		good := len(all) > 0
		for i, c := range all {
			told = append(told, fmt.Sprintf("%d.%d", c.Attempt.Number, c.Attempt.Try))
			switch {
			case c.Attempt.Calls != i:
				good = false
			case i == 0:
				good = good && c.Attempt.Number == 1 && c.Attempt.Try == 1
			case c.Attempt.Try > 1:
				good = good && c.Attempt.Number == all[i-1].Attempt.Number && c.Attempt.Try == all[i-1].Attempt.Try+1
			default:
				// A version with fewer retries takes what is beyond them for its last.
				good = good && c.Attempt.Number == min(all[i-1].Attempt.Number, c.Attempt.MaxRetries)+1
			}
			good = good && (i == len(all)-1 || !succeeds(id, c.Attempt.Number))
		}
		if !good {
			wrong++
			t.Errorf("%s: attempts %v", id, told)
		}
		if wrong == 10 {
			t.Fatal("and so on")
		}
	}
}
