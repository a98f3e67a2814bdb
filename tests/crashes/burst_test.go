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

	"github.com/amqpretry/watermill-retry/internal/brokertest"
)

// P11: hundreds of single acknowledgements right before the channel closes are not lost. They are single ones because the first message
// is in its handler until the end.
func TestCloseRightBehindManyAcknowledgements(t *testing.T) {
	b := dial(t)
	for range 6 {
		const messages = 1000
		s := service{URI: brokertest.URI(t), Queues: queuesFor(1), QueueType: "quorum", Concurrency: messages, Prefetch: messages}
		b.declare(s)
		b.publish(s.Queues[0], named("message", messages)...)

		var running, ended sync.WaitGroup
		running.Add(messages)
		ended.Add(messages - 1)
		others, first := make(chan struct{}), make(chan struct{})
		svc := begin(t, s, func(msg *message.Message) error {
			running.Done()
			if msg.UUID == "message-0" {
				<-first
				return nil
			}
			defer ended.Done()
			<-others

			return nil
		})
		running.Wait()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			svc.close()
		}()
		close(others)
		ended.Wait()
		close(first)
		<-closed
		assert.Empty(t, b.rest(s.Queues[0], func(string) bool { return false }, 0), "messages that come again after a success")
	}
}

// P11: a queue that is slow to apply acknowledgements, here as it stands still for a second, is waited for. Else the channel closes with those that
// it has not sent to the queue.
func TestCloseWaitsForTheQueue(t *testing.T) {
	t.Parallel()
	const messages = 100
	private := brokertest.Start(t)
	b := dialTo(t, private.URI)
	s := service{ // rabbitmqctl takes 10 s on a busy machine
		URI: private.URI, Queues: queuesFor(1), QueueType: "quorum", Concurrency: messages, Prefetch: messages, CloseTimeout: 3 * time.Minute,
	}
	b.declare(s)
	b.publish(s.Queues[0], named("message", messages)...)

	var running, ended sync.WaitGroup
	running.Add(messages)
	ended.Add(messages - 1)
	others, first := make(chan struct{}), make(chan struct{})
	svc := begin(t, s, func(msg *message.Message) error {
		running.Done()
		if msg.UUID == "message-0" { // which makes the acknowledgements of the others single ones
			<-first
			return nil
		}
		defer ended.Done()
		<-others

		return nil
	})
	running.Wait()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		svc.close()
	}()
	// The consumer is cancelled meanwhile: rabbitmqctl takes longer to start. Were it not, its cancel would wait for the queue.
	server := func(action string) {
		private.Ctl("eval", fmt.Sprintf("sys:%s(whereis('%%2F_%s')).", action, s.Queues[0]))
	}
	server("suspend")
	close(others)
	ended.Wait()
	eventually(t, time.Minute, func() bool { return unsettled(private) == 1 }, "the broker has the acknowledgements of all others")
	close(first)
	select {
	case <-closed:
		assert.Fail(t, "closed before the queue has applied anything")
	case <-time.After(time.Second):
	}
	server("resume")
	<-closed
	assert.Empty(t, b.rest(s.Queues[0], func(string) bool { return false }, 0), "messages that come again after a success")
}

// unsettled is how many deliveries the channels of a broker still expect an answer for.
func unsettled(broker *brokertest.Broker) int {
	sum := 0
	for _, count := range strings.Fields(broker.Ctl("-q", "list_channels", "messages_unacknowledged", "--no-table-headers")) {
		if n, err := strconv.Atoi(count); err == nil {
			sum += n
		}
	}

	return sum
}
