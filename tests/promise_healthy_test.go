package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

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
					Options: amqpretry.Options{Policies: retries(ms(500)...)}, Handler: byFate,
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
				await.Until(t, func() bool {
					return len(svc.Calls.of("once-warm-up")) == 2
				}, "so does the first")
				assert.Equal(t, 2+2*3+200, svc.Calls.count())
			})
		}
	}
}

// Of two queues one cannot be forwarded: the other's failures are forwarded as if there was
// nothing.
func TestHealthyBesideABrokenQueue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		assume bool
		// spoil makes the exchange of the broken queue useless.
		spoil func(*amqp091.Channel, string) error
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			await.Until(t, func() bool {
				return len(svc.Held()) > 0
			}, "what cannot be forwarded is reported")
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
}

// What cannot be declared again after a reconnect, such as a classic retry queue whose node is
// down, or here one that somebody has declared differently meanwhile, holds up those that need it,
// and nobody else.
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

// A service that starts consumes one message at first, as it may be one that others have died of.
// It consumes for all of its handlers before that message is acknowledged. Else the broker could
// deliver another one to the consumer that is being cancelled: no handler would see it, and it
// would come again, marked as redelivered.
func TestHealthyFromTheStart(t *testing.T) {
	t.Parallel()
	const count = 30
	var sent sentMethods
	svc := newService(t, setup{URI: brokertest.URI(t), QueueType: "quorum",
		Options:   amqpretry.Options{Concurrency: 4},
		Configure: func(c *amqp.Config) { sent.record(c) },
		Handler:   func(*message.Message) error { return nil }})
	require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
	svc.publish(rabbit.Numbered("ok", count)...)
	svc.run()
	await.Until(t, func() bool { return svc.Calls.count() == count }, "all are handled")
	svc.close()
	assert.Equal(t, []string{"basic.consume", "basic.cancel", "basic.consume", "basic.ack"}, sent.all()[:4])
}
