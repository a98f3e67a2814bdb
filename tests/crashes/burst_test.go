package crashes

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// burst is handlers that all run at the same time. The first message's ends last, which makes the
// acknowledgements of the others single ones.
type burst struct {
	running, ended sync.WaitGroup // all of them; all but the first
	others, first  chan struct{}  // closed to let them end
}

func newBurst(messages int) *burst {
	b := &burst{others: make(chan struct{}), first: make(chan struct{})}
	b.running.Add(messages)
	b.ended.Add(messages - 1)

	return b
}

func (b *burst) handle(msg *message.Message) error {
	b.running.Done()
	if msg.UUID == "message-0" {
		<-b.first
		return nil
	}
	defer b.ended.Done()
	<-b.others

	return nil
}

// closeOf closes a service, and tells when it has.
func closeOf(svc *inProcess) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		svc.close()
	}()

	return closed
}

// P11: hundreds of single acknowledgements right before the channel closes are not lost.
func TestCloseRightBehindManyAcknowledgements(t *testing.T) {
	sideBySide(t)
	b := dial(t)
	for range 6 {
		const messages = 1000
		s := service{URI: brokertest.URI(t), Queues: queuesFor(1), QueueType: "quorum", Concurrency: messages,
			Prefetch: messages}
		b.declare(s)
		b.publish(s.Queues[0], rabbit.Numbered("message", messages)...)

		handlers := newBurst(messages)
		svc := begin(t, s, handlers.handle)
		handlers.running.Wait()
		closed := closeOf(svc)
		close(handlers.others)
		handlers.ended.Wait()
		close(handlers.first)
		<-closed
		assert.Empty(t, b.left(s.Queues[0]), "messages that come again after a success")
	}
}

// P11: a queue that is slow to apply acknowledgements is waited for. Here it stands still for a
// second. Else the channel closes with those that it has not sent to the queue.
func TestCloseWaitsForTheQueue_OwnBroker(t *testing.T) {
	t.Parallel()
	const messages = 100
	private := brokertest.Start(t)
	b := dialTo(t, private.URI)
	s := service{ // rabbitmqctl takes 10 s on a busy machine
		URI: private.URI, Queues: queuesFor(1), QueueType: "quorum", Concurrency: messages, Prefetch: messages,
		CloseTimeout: 3 * time.Minute,
	}
	b.declare(s)
	b.publish(s.Queues[0], rabbit.Numbered("message", messages)...)

	handlers := newBurst(messages)
	svc := begin(t, s, handlers.handle)
	handlers.running.Wait()
	closed := closeOf(svc)
	// The consumer is cancelled meanwhile: rabbitmqctl takes longer to start. Were it not, its
	// cancel would wait for the queue.
	server := func(action string) {
		private.Ctl("eval", fmt.Sprintf("sys:%s(whereis('%%2F_%s')).", action, s.Queues[0]))
	}
	server("suspend")
	close(handlers.others)
	handlers.ended.Wait()
	await.Until(t, func() bool { return unsettled(private) == 1 }, "the broker has the acknowledgements of all others")
	close(handlers.first)
	select {
	case <-closed:
		assert.Fail(t, "closed before the queue has applied anything")
	case <-time.After(time.Second):
	}
	server("resume")
	<-closed
	assert.Empty(t, b.left(s.Queues[0]), "messages that come again after a success")
}

// unsettled is how many deliveries the channels of a broker still expect an answer for.
func unsettled(broker *brokertest.Broker) int {
	sum := 0
	for _, count := range strings.Fields(broker.Ctl("-q", "list_channels", "messages_unacknowledged",
		"--no-table-headers")) {
		if n, err := strconv.Atoi(count); err == nil {
			sum += n
		}
	}

	return sum
}
