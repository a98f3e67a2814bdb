package tests

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

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
