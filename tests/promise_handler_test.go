package tests

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

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

// wait lets time pass in a handler.
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
	svc := newService(t, setup{
		Handler: succeed,
	})
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

// failingPublisher publishes nothing.
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
