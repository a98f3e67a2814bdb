package crashes

import (
	"sync"
	"testing"

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
