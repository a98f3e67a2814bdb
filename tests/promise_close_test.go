package tests

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// Close is graceful and bounded.

// longClose is longer than a close that CloseTimeout ends, which is a second where this is used.
// Without a bound such a close never ends, and the router fails the test as well, after 20 s.
const longClose = 15 * time.Second

// No goroutine is left behind, after failures, dead letters and a reconnect. Not parallel: others'
// goroutines are none of its business.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{
		URI: network.URI, Prefetch: 20, Options: amqpretry.Options{Policies: retries(ms(100)...), Concurrency: 4},
		Handler: byFate,
	})
	svc.publish(fates(50)...)
	await.Until(t, func() bool { return svc.Calls.count() > 30 }, "messages are handled")
	network.cut(anyone)
	await.Until(t, func() bool { return svc.Calls.count() > 60 }, "messages are handled after a reconnect")
	svc.close()

	network.stop()
	var left error
	await.Until(t, func() bool {
		left = goleak.Find(before)
		return left == nil
	}, "no goroutine is left: %v", &left)
}

// A handler that runs when the close begins finishes, with its context alive, and what it says is
// carried out. What was prefetched goes back, and nothing is handed out any more.
func TestCloseLetsHandlersFinish(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"classic", "quorum"} {
		for _, fate := range []string{"ok", "never"} {
			t.Run(queueType+"/"+fate, func(t *testing.T) {
				t.Parallel()
				running, goOn := make(chan struct{}), make(chan struct{})
				svc := start(t, setup{Tiers: true,
					QueueType: queueType, Prefetch: 10,
					Options: amqpretry.Options{Policies: retries(time.Hour), CloseTimeout: time.Minute},
					Handler: func(msg *message.Message) error {
						close(running)
						select {
						case <-goOn:
						case <-msg.Context().Done():
						}
						assert.NoError(t, msg.Context().Err(), "the handler's context")

						return byFate(msg)
					},
				})
				svc.publish(append([]string{fate}, rabbit.Numbered("prefetched", 9)...)...)
				await.Closed(t, running, "the handler runs")
				await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 0 }, "the rest is prefetched")

				closed := inBackground(func() { svc.close() })
				await.Until(t, func() bool {
					return svc.Broker.Depth(svc.Queue) == 9
				}, "prefetched messages go back at once")
				select {
				case <-closed:
					t.Fatal("closed before the handler has finished")
				default:
				}
				began := time.Now()
				close(goOn)
				await.Closed(t, closed, "the end of the close")
				assert.Less(t, time.Since(began), 30*time.Second, "it ends with the handler")

				await.Stays(t, 200*time.Millisecond, func() bool {
					return svc.Calls.count() == 1
				}, "a handler is called after the close")
				back := svc.Broker.Take(svc.Queue, 9)
				for _, d := range back {
					assert.NotEqual(t, fate, rabbit.UUID(d))
					if count, counted := d.Headers["x-delivery-count"].(int64); counted && countsFailuresOnly(t) {
						assert.Zero(t, count, "the broker counts the prefetched as failed")
					}
				}
				assert.Zero(t, svc.Broker.Depth(svc.Queue), "the handled message is acknowledged")
				if fate == "ok" {
					assert.Zero(t, svc.Broker.Depth(svc.retryQueue(time.Hour)))
					return
				}
				retry := svc.Broker.Take(svc.retryQueue(time.Hour), 1)[0]
				assert.Equal(t, "1", rabbit.Text(retry, header.Count), "the failure is counted")
			})
		}
	}
}

// A close acknowledges all that was handled, also when that takes more commands than RabbitMQ's
// channel sends to a quorum queue at a time. The first message ends last.
func TestCloseKeepsAllAcknowledgements(t *testing.T) {
	t.Parallel()
	const count = 200
	for round := range often(40) {
		arrived, goOn, last := make(chan struct{}, count), make(chan struct{}), make(chan struct{})
		svc := start(t, setup{QueueType: "quorum", Prefetch: count,
			Options: amqpretry.Options{Concurrency: count, CloseTimeout: 15 * time.Second},
			Handler: func(msg *message.Message) error {
				arrived <- struct{}{}
				<-goOn
				if msg.UUID == "m-0" {
					<-last
				}

				return nil
			}})
		svc.publish(rabbit.Numbered("m", count)...)
		for range count {
			await.Closed(t, arrived, "each message reaches its handler")
		}
		closed := inBackground(func() { svc.close() })
		close(goOn)
		<-time.After(time.Duration(round%10) * 500 * time.Microsecond) // the others are being acknowledged
		close(last)
		await.Closed(t, closed, "the end of the close")
		assert.Zero(t, svc.Broker.Depth(svc.Queue), "messages that were handled are there again")
	}
}

// countsFailuresOnly tells brokers from 4.3 on: an explicit requeue does not raise the count that a
// lost channel raises.
func countsFailuresOnly(t *testing.T) bool {
	t.Helper()
	return newRabbit(t, brokertest.URI(t)).AtLeast(4, 3)
}

// A handler that does not finish in time: its context ends, its message goes back, and the close
// does not wait for it.
func TestCloseDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	// A machine that stands still makes a close longer and never shorter, so the shortest of three
	// counts.
	took := closeBesideAHandler(t, timeout)
	for again := 0; again < 2 && took >= 2*timeout; again++ {
		took = closeBesideAHandler(t, timeout)
	}
	assert.Less(t, took, 2*timeout, "Close waits no longer for the handler, and not for the default of 10 s")
}

func closeBesideAHandler(t *testing.T, timeout time.Duration) time.Duration {
	t.Helper()
	running, goOn := make(chan struct{}), make(chan struct{})
	defer close(goOn)
	svc := newService(t, setup{Options: amqpretry.Options{CloseTimeout: timeout}, Handler: succeed})
	messages := must(svc.Sub.Subscribe(context.Background(), svc.Queue))(t)
	svc.publish("message")
	cause := make(chan error, 1)
	go func() {
		msg := <-messages
		close(running)
		<-msg.Context().Done()
		cause <- context.Cause(msg.Context())
		<-goOn // it ignores that
	}()
	await.Closed(t, running, "the handler runs")

	began := time.Now()
	require.NoError(t, svc.Retrier.Close())
	took := time.Since(began)
	assert.GreaterOrEqual(t, took, timeout, "the handler has this long")
	require.Error(t, await.Value(t, cause, "the end of the handler's context"))
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 1 }, "the message goes back")

	return took
}

// Deliveries whose copies cannot be stored stay in their queue.
func TestCloseWhileHeld(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*proxy){
		"stalled": func(p *proxy) { p.stall(forwarder) },
		"refused": func(p *proxy) { p.refuse(forwarder) },
	}, func(t *testing.T, _ string, fault func(*proxy)) {
		network := newProxy(t, brokertest.URI(t))
		fault(network)
		svc := start(t, setup{Tiers: true,
			URI: network.URI, QueueType: "quorum", Handler: byFate,
			Options: amqpretry.Options{CloseTimeout: time.Second, Policies: retries(time.Hour)},
		})
		svc.publish(append(rabbit.Numbered("never", 3), rabbit.Numbered("ok", 20)...)...)
		await.Until(t, func() bool { return svc.Calls.count() == 23 && len(svc.Held()) > 0 }, "all are held")

		assert.Less(t, svc.close(), longClose)
		await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 3 }, "they are in their queue")
		assert.Zero(t, svc.Broker.Depth(svc.retryQueue(time.Hour)))
		assert.Equal(t, 23, svc.Calls.count())
	})
}

// A forward that is confirmed late, but in time, ends the close early and the message is where it
// belongs.
func TestCloseWaitsForForwards(t *testing.T) {
	t.Parallel()
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{Tiers: true,
		URI: network.URI, QueueType: "quorum", Handler: byFate,
		Options: amqpretry.Options{CloseTimeout: time.Minute, Policies: retries(time.Hour)},
	})
	network.refuse(forwarder)
	svc.publish(rabbit.Numbered("never", 3)...)
	await.Until(t, func() bool { return len(svc.Held()) > 0 && svc.Calls.count() == 3 }, "all are held")

	closed := inBackground(func() { svc.close() })
	await.Until(t, func() bool { return len(svc.Logs.with("Closing router")) > 0 }, "the close has begun")
	began := time.Now()
	network.allow(forwarder)
	await.Closed(t, closed, "the end of the close")
	assert.Less(t, time.Since(began), 30*time.Second, "it ends when the copies are stored, and not after CloseTimeout")
	assert.Equal(t, 3, svc.Broker.Depth(svc.retryQueue(time.Hour)))
	assert.Empty(t, svc.Broker.Drain(svc.Queue), "all acknowledged")
}

// Everything that closes may be called again, and at the same time.
func TestCloseTwiceAndConcurrently(t *testing.T) {
	t.Parallel()
	running, goOn := make(chan struct{}), make(chan struct{})
	svc := start(t, setup{
		Options: amqpretry.Options{CloseTimeout: time.Minute},
		Handler: func(*message.Message) error {
			close(running)
			<-goOn

			return nil
		},
	})
	svc.publish("message")
	await.Closed(t, running, "the handler runs")

	var all sync.WaitGroup
	for _, end := range []func() error{svc.Retrier.Close, svc.Retrier.Close, svc.Sub.Close, svc.Sub.Close,
		svc.Router.Close, svc.Router.Close} {
		all.Add(1)
		go func() {
			defer all.Done()
			assert.NoError(t, end())
		}()
	}
	closed := inBackground(all.Wait)
	await.Until(t, func() bool { return svc.Broker.Consumers(svc.Queue) == 0 }, "the close has begun")
	began := time.Now()
	close(goOn)
	await.Closed(t, closed, "all of them end")
	assert.Less(t, time.Since(began), 30*time.Second, "they end with the handler, and not after CloseTimeout")
	require.NoError(t, svc.Retrier.Close())
	require.NoError(t, svc.Sub.Close())
	assert.Zero(t, svc.Broker.Depth(svc.Queue))

	_, err := svc.Retrier.NewSubscriber()
	require.Error(t, err, "a closed retrier has no subscribers")
	_, err = svc.Sub.Subscribe(t.Context(), svc.Queue)
	require.Error(t, err, "a closed subscriber does not subscribe")
}

// The end of Subscribe's context drains that subscription, and no other.
func TestCloseBySubscribeContext(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{
		Prefetch: 5,
		Options:  amqpretry.Options{Concurrency: 2, CloseTimeout: time.Minute},
		Handler:  succeed,
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages := must(svc.Sub.Subscribe(ctx, svc.Queue))(t)
	svc.publish(rabbit.Numbered("message", 5)...)
	msg := await.Value(t, messages, "a message")
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 0 }, "the rest is prefetched")

	cancel()
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 4 }, "the rest goes back")
	assert.NoError(t, msg.Context().Err(), "the message in hand is not taken away")
	began := time.Now()
	msg.Ack()
	assert.Nil(t, await.Value(t, messages, "the channel of messages is closed"),
		"a message is handed out after the end")
	assert.Less(t, time.Since(began), 30*time.Second, "it is closed at once, and not after CloseTimeout")
	// What the closed channel gave back last may still be on its way into the queue.
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 4 }, "the rest is in the queue")
	await.Stays(t, 300*time.Millisecond, func() bool {
		return svc.Broker.Depth(svc.Queue) == 4
	}, "the message in hand is acknowledged")
	assert.Equal(t, 0, svc.Broker.Consumers(svc.Queue))

	again, err := svc.Sub.Subscribe(context.Background(), svc.Queue)
	require.NoError(t, err, "the subscriber itself is still open")
	await.Value(t, again, "a message").Ack()
}

// Nothing hangs when the broker is frozen or dead, whatever the service is doing.
func TestCloseWithoutABroker_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	for _, fault := range []struct {
		name, queueType string
		happens, ends   func()
	}{
		{"frozen", "quorum", broker.Pause, broker.Resume},
		// RabbitMQ 3.10 may leave a quorum queue that is killed this young without a leader.
		{"killed", "classic", broker.Kill, broker.Start},
	} {
		t.Run(fault.name, func(t *testing.T) {
			const timeout = time.Second
			var running atomic.Int32
			goOn := make(chan struct{})
			busy := func(fate string) *service {
				svc := start(t, setup{
					URI: broker.URI, QueueType: fault.queueType, KeepObjects: true,
					Options: amqpretry.Options{CloseTimeout: timeout},
					Handler: func(msg *message.Message) error {
						running.Add(1)
						<-goOn

						return byFate(msg)
					},
				})
				svc.publish(fate, "prefetched")

				return svc
			}
			services := []*service{busy("ok"), busy("never")}
			idle := start(t, setup{
				URI: broker.URI, KeepObjects: true, Options: amqpretry.Options{CloseTimeout: timeout},
				Handler: succeed,
			})
			await.Until(t, func() bool { return running.Load() == 2 }, "the handlers run")

			fault.happens()
			close(goOn)
			var all sync.WaitGroup
			for _, svc := range append(services, idle) {
				all.Add(1)
				go func() {
					defer all.Done()
					took := svc.close()
					assert.Less(t, took, longClose, "close")
					t.Logf("closed in %s", took)
				}()
			}
			all.Wait()
			fault.ends()

			never := services[1]
			assert.Len(t, never.Calls.of("never"), 1)
			await.Until(t, func() bool {
				return never.Broker.Depth(never.Queue)+never.Broker.Depth(never.dlq()) >= 2
			}, "both messages are there")
			found := map[string]bool{}
			for _, queue := range []string{never.Queue, never.dlq()} {
				for _, d := range never.Broker.Drain(queue) {
					found[rabbit.UUID(d)] = true
				}
			}
			assert.Equal(t, map[string]bool{"never": true, "prefetched": true}, found)
		})
	}
}

// pointerError panics in the hands of whoever asks a nil pointer to it.
type pointerError struct{ cause error }

func (e *pointerError) Error() string { return e.cause.Error() }
func (e *pointerError) Unwrap() error { return e.cause }

// P2: whatever a handler does, or a middleware outside of ours, two retries are two retries.
func TestNoHotLoopOddHandlers(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)

	type row struct {
		outside []message.HandlerMiddleware
		handler func(*message.Message) error
		reason  retry.Reason
		text    string
	}
	each(t, map[string]row{
		"an error that is a nil pointer": {
			handler: func(*message.Message) error {
				var e *pointerError
				return e
			},
			reason: retry.ReasonExhausted,
		},
		"a timeout outside of the retrier": {
			outside: []message.HandlerMiddleware{wmmiddleware.Timeout(20 * time.Millisecond)},
			handler: func(msg *message.Message) error {
				<-msg.Context().Done()
				return msg.Context().Err()
			},
			reason: retry.ReasonExhausted,
		},
		"a handler that nacks and fails": {
			handler: func(msg *message.Message) error {
				msg.Nack()
				wait(5 * time.Millisecond) // time enough for the consumer to answer too early

				return errFate
			},
			reason: retry.ReasonExhausted,
		},
		"a handler that nacks and succeeds": {
			handler: func(msg *message.Message) error {
				msg.Nack()
				wait(5 * time.Millisecond)

				return nil
			},
			reason: retry.ReasonExhausted,
			text:   "the handler nacked the message and returned no error",
		},
		"a handler that acks and fails": {
			handler: func(msg *message.Message) error {
				msg.Ack()
				wait(5 * time.Millisecond)

				return errFate
			},
			reason: retry.ReasonExhausted,
		},
	}, func(t *testing.T, _ string, test row) {
		svc := start(t, setup{
			URI: uri, Delays: ms(50, 50),
			Route: func(s *service) {
				bare(t, s, append(test.outside, s.Retrier.Middleware)...)
				s.Router.AddConsumerHandler("odd", s.Queue, s.Sub, s.recorded(test.handler))
			},
		})
		svc.publish("odd")

		letters := svc.Broker.Take(svc.dlq(), 1)
		assert.Equal(t, string(test.reason), rabbit.Text(letters[0], header.Reason))
		assert.Contains(t, rabbit.Text(letters[0], header.Error), test.text)
		assert.Equal(t, []int{1, 2, 3}, svc.Calls.attempts("odd"))
	})
}

func wait(d time.Duration) { <-time.After(d) }

// P1, P3: a held delivery, or a handler that takes its time, must not make the others dearer the
// more there are of them.
func TestHealthyBehindASlowHandler(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	svc := start(t, setup{
		Prefetch: 50,
		Options:  amqpretry.Options{Concurrency: 4, CloseTimeout: 15 * time.Second},
		Handler: func(msg *message.Message) error {
			if msg.UUID == "slow" {
				<-release
			}

			return nil
		},
	})
	svc.publish("slow")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the slow one is under way")

	const n = 5000
	svc.publish(rabbit.Numbered("ok", n)...)
	await.Until(t, func() bool { return svc.Calls.count() == n+1 }, "all others are handled")

	// Close is what proves that they were acknowledged: only what was not goes back.
	close(release)
	svc.close()
	assert.Zero(t, svc.Broker.Depth(svc.Queue))
}

// P11: a subscriber that is made while the retrier closes does not outlive it.
func TestCloseDuringNewSubscriber(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)

	for i := range 30 {
		svc := newService(t, setup{URI: uri, Handler: func(*message.Message) error { return errors.New("not called") }})
		late := make(chan *amqpretry.Subscriber, 1)
		go func() {
			s, err := svc.Retrier.NewSubscriber()
			if err != nil {
				s = nil
			}
			late <- s
		}()
		wait(time.Duration(i) * 300 * time.Microsecond)
		require.NoError(t, svc.Retrier.Close())

		if s := <-late; s != nil {
			_, err := s.Subscribe(t.Context(), svc.Queue)
			require.Error(t, err, "the retrier is closed, and with it every subscriber")
		}
	}
}

// Connections share nothing that amqp091-go writes into: the race detector tells.
func TestConnectionsOfSharedConfig(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{Handler: succeed})
	properties := amqp091.Table{"connection_name": "ours"}
	conf := svc.Retrier.Config()
	conf.Connection.AmqpConfig = &amqp091.Config{Properties: properties}
	retrier := newRetrier(t, conf, amqpretry.Options{})

	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			s, err := retrier.NewSubscriber()
			if err == nil {
				err = s.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	assert.Equal(t, amqp091.Table{"connection_name": "ours"}, properties, "the user's own table is left alone")
}

// late lets the answer to the first message wait, outside of the retry middleware, until its
// delivery's channel is gone.
type late struct {
	once     *sync.Once
	answered chan struct{}
}

func (l late) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		produced, err := h(msg)
		l.once.Do(func() {
			close(l.answered)
			<-ctx.Done()
		})

		return produced, err
	}
}

// P4: an answer that comes when the delivery's channel is gone is told as what it is: the broker
// delivers the message again.
func TestToldOnlyWhatTheBrokerHears(t *testing.T) {
	t.Parallel()
	type row struct {
		outcome error
		wrong   retry.EventKind
		told    retry.EventKind
	}
	each(t, map[string]row{
		"a success": {nil, retry.EventSucceeded, retry.EventRequeued},
		"a drop":    {retry.Drop(errFate), retry.EventDropped, retry.EventAbandoned},
	}, func(t *testing.T, _ string, test row) {
		network := newProxy(t, brokertest.URI(t))
		slow := late{&sync.Once{}, make(chan struct{})}
		handler := func(*message.Message) error { return test.outcome }
		svc := start(t, setup{URI: network.URI, QueueType: "quorum", Route: outside(slow.middleware, handler)})
		svc.publish("message")
		await.Closed(t, slow.answered, "the handler has answered")

		network.refuse(subscriber)
		network.cut(subscriber)
		await.Until(t, func() bool { return len(svc.Events(test.told)) == 1 }, "what has become of it")
		assert.Empty(t, svc.Events(test.wrong))

		network.allow(subscriber)
		await.Until(t, func() bool { return len(svc.Events(test.wrong)) == 1 }, "the next answer is heard")
		assert.Equal(t, 2, svc.Calls.count())
	})
}

type failingPublisher struct{ publishing, goOn chan struct{} }

func (p failingPublisher) Publish(string, ...*message.Message) error {
	p.publishing <- struct{}{}
	<-p.goOn

	return errors.New("closed")
}

func (failingPublisher) Close() error { return nil }

// P4: outputs that cannot be published during a shutdown are no failed attempt: the shutdown may
// have closed their publisher.
func TestShutdownOutputsThatCannotBePublished(t *testing.T) {
	t.Parallel()
	publisher := failingPublisher{make(chan struct{}), make(chan struct{})}
	c := setup{Route: func(svc *service) {
		svc.Router.AddHandler("told", svc.Queue, svc.Sub, "outputs", publisher,
			func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("output", nil)}, nil
			})
	}}
	c.Options.CloseTimeout = time.Minute // the close is not to give the message up
	svc := start(t, c)
	svc.publish("message")
	await.Closed(t, publisher.publishing, "the handler has succeeded")

	closed := inBackground(func() { assert.NoError(t, svc.Sub.Close()) })
	await.Until(t, func() bool { return svc.Broker.Consumers(svc.Queue) == 0 }, "the close has begun")
	close(publisher.goOn)
	await.Closed(t, closed, "the close ends")

	assert.Len(t, svc.Events(retry.EventRequeued), 1)
	assert.Empty(t, svc.Events(retry.EventFailed, retry.EventUnhandled, retry.EventRetried))
	svc.Broker.Has(svc.Queue, 1)
}
