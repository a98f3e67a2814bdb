package tests

import (
	"fmt"
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
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Nothing is lost: a message leaves its queue only when its handler succeeded or the broker has
// confirmed its copy.

// Connections are cut again and again, at any byte, while messages succeed, fail and panic.
func TestLosslessConnectionsCut(t *testing.T) {
	t.Parallel()
	eachQueueType(t, func(t *testing.T, queueType string) {
		const prefetch = 20
		network := newProxy(t, brokertest.URI(t))
		svc := start(t, setup{
			URI: network.URI, QueueType: queueType, Prefetch: prefetch,
			Options: amqpretry.Options{Policies: retries(ms(100, 200)...), Concurrency: 8},
			Handler: byFate,
		})
		ids := fates(500)
		svc.publish(ids...)

		random, _ := env.Random(t)
		// The broker counts what it delivers again; fewer cuts than a delivery limit keep this
		// test about cuts.
		cuts := []func(){
			func() { network.cut(anyone) },
			func() { network.cutAfter(forwarder, 1+random.Int64N(3000)) },
			func() { network.cutAfter(subscriber, 1+random.Int64N(3000)) },
			func() { network.cut(forwarder) },
			func() { network.cutAfter(anyone, 1+random.Int64N(300)) },
			func() { network.cut(subscriber) },
			func() { network.cutAfter(forwarder, 1+random.Int64N(10000)) },
		}
		for i, cut := range cuts {
			await.Until(t, func() bool {
				return svc.Calls.count() > (i+1)*100
			}, "messages are handled after %d cuts", i)
			cut()
		}

		svc.finish(ids, await.Bound, prefetch*len(cuts))
		assert.LessOrEqual(t, svc.Calls.count(), 1000+3*prefetch*len(cuts), "handler calls")
	})
}

// What takes the copies is deleted while handlers run: it is declared again and they are published
// again.
func TestLosslessRetryTopologyDeleted(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	var running atomic.Int32
	goOn := make(chan struct{}, 10)
	svc := start(t, setup{
		URI: uri, QueueType: "quorum", Prefetch: 20,
		Options: amqpretry.Options{Policies: retries(ms(200, 300)...), Concurrency: 10},
		Handler: func(msg *message.Message) error {
			if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Number == 1 {
				running.Add(1)
				select {
				case <-goOn:
				case <-msg.Context().Done():
				}
			}

			return errFate
		},
	})

	everything := []string{svc.retryQueue(200 * time.Millisecond), svc.retryQueue(300 * time.Millisecond), svc.dlq()}
	faults := []struct {
		name  string
		fault func()
	}{
		{"exchange", func() { svc.Broker.Remove(svc.exchange()) }},
		{"retry queue", func() { svc.Broker.Remove("", everything[0]) }},
		{"dead-letter queue", func() { svc.Broker.Remove("", everything[2]) }},
		{"everything", func() { svc.Broker.Remove(svc.exchange(), everything...) }},
	}
	for i, f := range faults {
		ids := rabbit.Numbered(f.name, 10)
		svc.publish(ids...)
		await.Until(t, func() bool { return int(running.Load()) == (i+1)*len(ids) }, "the handlers run")
		f.fault()
		for range ids {
			goOn <- struct{}{}
		}

		found := svc.Broker.Take(svc.dlq(), len(ids))
		assert.Len(t, reasons(found), len(ids), "%s deleted: every message is in the dead-letter queue", f.name)
		for _, id := range ids {
			assert.Equal(t, []int{1, 2, 3}, svc.Calls.attempts(id), "%s deleted: attempts of %s", f.name, id)
		}
	}
	assert.NotEmpty(t, svc.Logs.with("Redeclared the retry topology"))
}

// The broker has the copies and does not say so: as long as a publish may still be confirmed, there
// is no second one.
func TestLosslessNoAnswer(t *testing.T) {
	t.Parallel()
	eachOf(t, []string{"answers", "connection lost"}, func(t *testing.T, then string) {
		network := newProxy(t, brokertest.URI(t))
		svc := start(t, setup{Tiers: true,
			URI: network.URI, QueueType: "quorum",
			Options: amqpretry.Options{Policies: retries(time.Hour), CloseTimeout: time.Minute},
			Handler: alwaysFails,
		})
		waiting := func() int { return svc.Broker.Depth(svc.retryQueue(time.Hour)) }
		svc.publish("first") // opens the forwarder's connection
		await.Until(t, func() bool { return len(svc.Events(retry.EventRetried)) == 1 }, "the first copy is confirmed")

		network.stallAnswers(forwarder)
		svc.publish(rabbit.Numbered("message", 5)...)
		await.Until(t, func() bool { return waiting() == 6 }, "all copies are stored")
		await.Stays(t, 3*time.Second, func() bool { return waiting() <= 6 && svc.Calls.count() == 6 },
			"a copy was published again, or a handler called, while the first publish had no answer")
		await.Until(t, func() bool { return len(svc.Held()) > 0 }, "a report of what is held")
		held := svc.Held()
		assert.Equal(t, svc.Queue, held[0].Queue)
		assert.Equal(t, svc.exchange(), held[0].Exchange)

		expected := 6
		if then == "connection lost" {
			network.refuse(forwarder)
			network.resume()
			network.allow(forwarder)
			await.Until(t, func() bool { return waiting() == 11 }, "what never was confirmed is published again")
			expected = 11 // nobody can know
		} else {
			network.resume()
		}
		await.Stays(t, time.Second, func() bool { return waiting() <= expected }, "no more copies")
		await.Until(t, func() bool { return waiting() == expected }, "copies")
		svc.close()
		assert.Empty(t, svc.Broker.Drain(svc.Queue), "everything is acknowledged once confirmed")
		assert.Equal(t, 6, svc.Calls.count())
	})
}

// A held delivery whose channel goes is delivered again; its copy must not be published any more:
// there would be two.
func TestLosslessConsumerCutWhileHeld(t *testing.T) {
	t.Parallel()
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{URI: network.URI, QueueType: "quorum", Handler: alwaysFails})
	network.refuse(forwarder)
	ids := rabbit.Numbered("message", 5)
	svc.publish(ids...)
	await.Until(t, func() bool { return svc.Calls.count() == 5 && len(svc.Held()) > 0 }, "all are held")
	held := svc.Held()[0]
	assert.Error(t, held, "typed, and it says what is wrong")

	network.cut(subscriber)
	await.Until(t, func() bool { return svc.Calls.count() == 10 }, "all are delivered again")
	before := len(svc.Held())
	await.Until(t, func() bool {
		reports := svc.Held()
		return len(reports) > before+1 && reports[len(reports)-1].Held == 5
	}, "what the broker has taken back is not held any more: never more than the prefetch")
	network.allow(forwarder)

	assert.Len(t, reasons(svc.Broker.Take(svc.dlq(), 5)), 5, "dead letters")
	for _, id := range ids {
		assert.Equal(t, []int{1, 1, 2}, svc.Calls.attempts(id))
	}
	await.Stays(t, 500*time.Millisecond, func() bool { return svc.Broker.Depth(svc.dlq()) == 0 }, "a second copy")
}

// What happens to a whole broker, one thing after the other on a private one.
func TestLosslessBrokerFaults_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, 5*time.Second))

	t.Run("connections closed by the broker", func(t *testing.T) {
		const prefetch = 20
		svc := start(t, setup{
			URI: broker.URI, QueueType: "quorum", Prefetch: prefetch,
			Options: amqpretry.Options{Policies: retries(ms(100, 200)...), Concurrency: 4},
			Handler: func(msg *message.Message) error {
				<-time.After(5 * time.Millisecond) // about as long as the command below takes
				return byFate(msg)
			},
		})
		ids := fates(500)
		svc.publish(ids...)
		for i := range 2 {
			await.Until(t, func() bool { return svc.Calls.count() > 50+i*200 }, "messages are handled")
			broker.Ctl("close_all_connections", "test")
		}
		svc.finish(ids, await.Bound, 2*prefetch)
	})

	t.Run("frozen", func(t *testing.T) {
		svc := start(t, setup{
			URI: broker.URI, QueueType: "quorum",
			Options: amqpretry.Options{Policies: retries(ms(100, 200)...), Concurrency: 4}, Handler: byFate,
		})
		ids := fates(300)
		svc.publish(ids...)
		await.Until(t, func() bool { return svc.Calls.count() > 50 }, "messages are handled")
		broker.Pause()
		<-time.After(3 * time.Second) // less than the heartbeats allow
		broker.Resume()
		svc.finish(ids, await.Bound, 0)
		assert.Equal(t, expectedCalls(ids, 3), svc.Calls.count(), "handler calls")
	})

	t.Run("copies refused", func(t *testing.T) {
		prefix := uniqueName("refused")
		full := func(queue, fill string) *service {
			svc := newService(t, setup{
				URI: broker.URI, Queue: queue, QueueType: "quorum",
				Options: amqpretry.Options{Policies: retries(time.Hour), CloseTimeout: time.Minute}, Handler: byFate,
			})
			require.NoError(t, svc.Sub.SubscribeInitialize(queue))
			// A dead letter that was there before, and those who wait already.
			svc.Broker.Publish(fill, rabbit.Messages("there", "there", "there")...)
			return svc
		}
		retry := full(prefix+"-a", prefix+"-a.retry.1h")
		dead := full(prefix+"-b", prefix+"-b.dlq")
		broker.Ctl("set_policy", "--apply-to", "queues", prefix, fmt.Sprintf(`^%s-(a\.retry\.1h|b\.dlq)$`, prefix),
			`{"max-length":1,"overflow":"reject-publish"}`)

		retry.run()
		dead.run()
		retry.publish(rabbit.Numbered("never", 5)...)
		for i := range 5 { // in their last attempt already
			dead.Broker.Publish(dead.Queue, inLastAttempt(dead, fmt.Sprintf("never-%d", i)))
		}
		both := []*service{retry, dead}
		for _, svc := range both {
			held := svc.reportedHeld(5)
			assert.Equal(t, svc.Queue, held.Queue)
			assert.ErrorContains(t, held.Err, "refused")
		}
		await.Stays(t, time.Second, func() bool {
			return retry.Calls.count() == 5 && dead.Calls.count() == 5 &&
				retry.Broker.Depth(retry.retryQueue(time.Hour)) == 3 && dead.Broker.Depth(dead.dlq()) == 3
		}, "handlers run again, or a full queue takes more")

		broker.Ctl("clear_policy", prefix)
		for svc, queue := range map[*service]string{retry: retry.retryQueue(time.Hour), dead: dead.dlq()} {
			await.Until(t, func() bool { return svc.Broker.Depth(queue) == 8 }, "all copies are stored")
			svc.close()
			assert.Equal(t, 5, svc.Calls.count())
			assert.Equal(t, 8, svc.Broker.Depth(queue))
			assert.Empty(t, svc.Broker.Drain(svc.Queue))
		}
	})

	for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
		t.Run("memory alarm, retry queues "+name, func(t *testing.T) { testMemoryAlarm(t, broker, strategy) })
	}

	t.Run("killed while messages wait", func(t *testing.T) {
		var all []*service
		ids := fates(100)
		for _, queueType := range []string{"quorum", "classic"} {
			svc := start(t, setup{
				URI: broker.URI, QueueType: queueType, KeepObjects: true,
				Options: amqpretry.Options{Policies: retries(ms(3000, 500)...), Concurrency: 2}, Handler: byFate,
			})
			svc.publish(ids...)
			all = append(all, svc)
		}
		for _, svc := range all {
			await.Until(t, func() bool { return len(svc.Events(retry.EventRetried)) > 20 }, "messages wait")
		}
		broker.Settle()
		broker.Kill()
		broker.Start()
		for _, svc := range all {
			// A classic queue may have forgotten acknowledgements; and what is due before its main
			// queue has a leader again comes with the broker's next try, which is after 3 minutes.
			svc.finish(ids, 5*time.Minute, len(ids))
		}
	})
}

// testMemoryAlarm has a service that starts in an alarm, when the broker takes nothing from anybody
// who publishes.
func testMemoryAlarm(t *testing.T, broker *brokertest.Broker, strategy config.Strategy) {
	c := setup{
		URI: broker.URI, Prefetch: 10, Queue: uniqueName("alarm"),
		// From 4.0 on this limit is the default; beyond it the broker drops what it delivered.
		Configure: func(c *amqp.Config) {
			c.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(20)}
		},
		Handler: byFate,
	}
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(200), Strategy: strategy}}
	before := newService(t, c)
	require.NoError(t, before.Sub.SubscribeInitialize(c.Queue))
	failing := append(rabbit.Numbered("never", 3), rabbit.Numbered("once", 2)...)
	ids := append(failing, rabbit.Numbered("ok", 300)...)
	before.publish(ids...) // before the alarm, which blocks every publisher

	broker.Ctl("set_vm_memory_high_watermark", "0.0000001")
	svc := newService(t, c)
	declared := make(chan error, 1)
	go func() { declared <- svc.Sub.SubscribeInitialize(c.Queue) }()
	require.NoError(t, await.Value(t, declared, "it can subscribe during the alarm"))
	svc.run()
	await.Until(t, func() bool { return svc.Calls.count() == len(ids) }, "healthy messages go on")
	held := svc.reportedHeld(len(failing))
	assert.Equal(t, svc.Queue, held.Queue)
	assert.GreaterOrEqual(t, held.For, 200*time.Millisecond)
	await.Stays(t, 2*time.Second, func() bool { return svc.Calls.count() == len(ids) }, "no handler runs again")

	blocked := svc.Events(retry.EventBlocked)
	require.NotEmpty(t, blocked, "and it is told why")
	assert.Equal(t, "forwarder", blocked[0].Connection)
	assert.ErrorContains(t, blocked[0].Err, "memory")

	broker.Ctl("set_vm_memory_high_watermark", "absolute", "2GB")
	svc.finish(ids, await.Bound, 0)
	await.Until(t, func() bool {
		return len(svc.Events(retry.EventUnblocked)) == len(svc.Events(retry.EventBlocked))
	}, "and that it is over")
	assert.Equal(t, expectedCalls(ids, 2), svc.Calls.count(), "handler calls")
}

func expectedCalls(ids []string, attempts int) int {
	calls := 0
	for _, id := range ids {
		for n := 1; n <= attempts; n++ {
			calls++
			if succeeds(id, n) {
				break
			}
		}
	}

	return calls
}

// inLastAttempt is a message as a retry queue gives it back, with its retries used up.
func inLastAttempt(s *service, id string) amqp091.Publishing {
	p := rabbit.Message(id, id)
	state := wire.State{Count: 1, Delay: "1h", Attempts: 1, Queue: s.Queue, Arrival: wire.NewArrival("", s.Queue, "",
		"", "")}
	for key, value := range state.Headers("test") {
		p.Headers[key] = value
	}
	p.Headers["x-death"] = []any{amqp091.Table{
		"queue": s.retryQueue(time.Hour), "reason": "expired", "count": int64(1), "exchange": s.exchange(),
	}}

	return p
}

// Healthy messages are not held up: a delivery whose copy cannot be stored costs one slot of the
// prefetch, nothing else.

// The connection for copies takes nothing any more, in each of the ways in which that can happen.
func TestHealthyWhileCopiesCannotBeStored(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"classic", "quorum"} {
		for name, test := range map[string]struct{ fault, repair func(*proxy) }{
			"stalled":    {func(p *proxy) { p.stall(forwarder) }, (*proxy).resume},
			"unanswered": {func(p *proxy) { p.stallAnswers(forwarder) }, (*proxy).resume},
			"refused":    {func(p *proxy) { p.refuse(forwarder) }, func(p *proxy) { p.allow(forwarder) }},
		} {
			t.Run(queueType+"/"+name, func(t *testing.T) {
				t.Parallel()
				network := newProxy(t, brokertest.URI(t))
				svc := start(t, setup{Tiers: true,
					URI: network.URI, QueueType: queueType, Prefetch: 20,
					Delays: ms(500), Handler: byFate,
				})
				svc.publish("once-warm-up") // opens the connection
				await.Until(t, func() bool {
					return len(svc.Events(retry.EventRetried)) == 1
				}, "a copy is confirmed: else it would be there twice")
				test.fault(network)

				failing, healthy := rabbit.Numbered("never", 3), rabbit.Numbered("ok", 200)
				svc.publish(failing...)
				svc.publish(healthy...)
				await.Until(t, func() bool {
					ids := svc.Calls.ids()
					for _, id := range healthy {
						if ids[id] != 1 {
							return false
						}
					}

					return true
				}, "200 healthy messages pass the 3 that are held, ten times the prefetch")
				if name == "refused" { // elsewhere copies may have been stored, and come back
					for _, id := range failing {
						assert.Len(t, svc.Calls.of(id), 1, "calls for %s while it is held", id)
					}
				}
				await.Until(t, func() bool { return len(svc.Held()) > 0 }, "what is held is reported")

				test.repair(network)
				assert.Len(t, reasons(svc.Broker.Take(svc.dlq(), 3)), 3, "what was held goes on")
				await.Until(t, func() bool { return len(svc.Calls.of("once-warm-up")) == 2 }, "so does the first")
				assert.Equal(t, 2+2*3+200, svc.Calls.count())
			})
		}
	}
}

// Of two queues one cannot be forwarded: the other's failures are forwarded as if there was
// nothing.
func TestHealthyBesideABrokenQueue(t *testing.T) {
	t.Parallel()
	type row struct {
		assume bool
		// spoil makes the exchange of the broken queue useless.
		spoil func(*amqp091.Channel, string) error
	}
	each(t, map[string]row{
		// The broker closes the channel at each publish, with all that is unconfirmed on it.
		"exchange missing": {assumes, func(ch *amqp091.Channel, exchange string) error {
			return ch.ExchangeDelete(exchange, false, false)
		}},
		// The copies are returned, and declaring again is refused.
		"exchange of another type": {declares, func(ch *amqp091.Channel, exchange string) error {
			if err := ch.ExchangeDelete(exchange, false, false); err != nil {
				return err
			}

			return ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
		}},
	}, func(t *testing.T, _ string, test row) {
		uri := brokertest.URI(t)
		broken, sound := uniqueName("broken"), uniqueName("sound")
		broker := newRabbit(t, uri)
		options := amqpretry.Options{Policies: retries(ms(300)...)}

		// Everything is provisioned by a service that declares, and spoiled before the real one
		// starts.
		for _, queue := range []string{broken, sound} {
			svc := newService(t, setup{Tiers: true, URI: uri, Queue: queue, Options: options, Handler: byFate})
			require.NoError(t, svc.Sub.SubscribeInitialize(queue))
		}
		options.AssumeTopology = test.assume
		var other *calls
		svc := newService(t, setup{Tiers: true,
			URI: uri, Queue: sound, Prefetch: 10, Options: options, KeepObjects: true,
			Route: func(s *service) {
				other = &calls{}
				s.Router.AddConsumerHandler("sound", sound, s.Sub, s.recorded(byFate))
				s.Router.AddConsumerHandler("broken", broken, s.Sub, func(msg *message.Message) error {
					other.add(msg)
					return byFate(msg)
				})
			},
		})
		svc.run()
		broker.Do(func(ch *amqp091.Channel) error { return test.spoil(ch, broken+".retry") })

		stuck := rabbit.Numbered("never", 5)
		broker.Publish(broken, rabbit.Messages(stuck...)...)
		await.Until(t, func() bool { return len(svc.Held()) > 0 }, "what cannot be forwarded is reported")
		assert.Equal(t, broken, svc.Held()[0].Queue)

		began := time.Now()
		failing := rabbit.Numbered("never", 300)
		svc.publish(failing...)
		letters := svc.Broker.Take(svc.dlq(), len(failing))
		t.Logf("%d failures forwarded twice in %s", len(failing), time.Since(began))
		assert.Len(t, reasons(letters), len(failing), "each once")
		assert.Equal(t, 2*len(failing), svc.Calls.count(), "no handler ran twice because of the other queue")
		await.Until(t, func() bool { return other.count() >= len(stuck) }, "what is held was handled")
		assert.Equal(t, len(stuck), other.count(), "once")
	})
}

// What cannot be declared again after a reconnect, here a retry queue that somebody has declared
// differently, holds up those that need it, and nobody else.
func TestHealthyWhenTheTopologyCannotBeDeclaredAgain(t *testing.T) {
	t.Parallel()
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{Tiers: true, URI: network.URI, QueueType: "quorum", Handler: byFate})
	svc.publish("ok-before")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it consumes")

	network.refuse(anyone)
	retryQueue := svc.retryQueue(200 * time.Millisecond)
	svc.Broker.Remove("", retryQueue)
	svc.Broker.Declare(retryQueue, amqp091.Table{"x-queue-type": "quorum", "x-message-ttl": int64(1)})
	network.allow(anyone)

	svc.publish("never-1", "ok-1", "ok-2")
	await.Until(t, func() bool { return svc.processed() == 3 }, "healthy messages are handled")
	await.Until(t, func() bool {
		return len(svc.Logs.with("consuming without it")) > 0
	}, "and it is said what is wrong")
	await.Until(t, func() bool { // the first report may come before it was tried
		held := svc.reportedHeld(1)
		return held.Err != nil && strings.Contains(held.Err.Error(), "exists with another")
	}, "and why the failed one is held")
	assert.Equal(t, []int{1}, svc.Calls.attempts("never-1"))

	svc.Broker.Remove("", retryQueue)
	assert.Len(t, svc.Broker.Take(svc.dlq(), 1), 1, "it goes on when the queue can be declared")
	assert.Equal(t, []int{1, 2}, svc.Calls.attempts("never-1"))
}

// A service that starts consumes one message at first, which others may have died of, and for all
// of its handlers before that one is acknowledged: else the broker could deliver one to the
// consumer that is being cancelled.
func TestHealthyFromTheStart(t *testing.T) {
	t.Parallel()
	const count = 30
	var sent sentMethods
	svc := newService(t, setup{QueueType: "quorum",
		Options:   amqpretry.Options{Concurrency: 4},
		Configure: func(c *amqp.Config) { sent.record(c) },
		Handler:   succeed})
	require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
	svc.publish(rabbit.Numbered("ok", count)...)
	svc.run()
	await.Until(t, func() bool { return svc.Calls.count() == count }, "all are handled")
	svc.close()
	assert.Equal(t, []string{"basic.consume", "basic.cancel", "basic.consume"}, sent.All()[:3],
		"none is acknowledged yet")
}
