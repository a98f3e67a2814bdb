package tests

import (
	"bytes"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// slowWriter takes so many bytes a second, and no more.
type slowWriter struct {
	net.Conn
	rate int
}

func (c slowWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		n := 0
		n, err = c.Conn.Write(p[:min(len(p), 4096)])
		<-time.After(time.Duration(n) * time.Second / time.Duration(c.rate))
		written, p = written+n, p[n:]
	}

	return written, err
}

// slowly is a config whose connections send so many bytes a second.
func slowly(uri string, rate int) amqp.Config {
	conf := amqp.NewDurableQueueConfig(uri)
	wrapConnections(&conf, func(conn net.Conn) net.Conn { return slowWriter{conn, rate} })
	conf.Connection.AmqpConfig.Heartbeat = 2 * time.Second // a machine may stand still for three before it is lost

	return conf
}

// On a slow link, calls that take several heartbeats are confirmed, all at the same time; and one
// that is over its time says what is stored, and leaves a publisher that works.
func TestPublisher_SlowLink(t *testing.T) {
	t.Parallel()
	uri, topic := brokertest.URI(t), uniqueName("slow")
	broker := newRabbit(t, uri)
	broker.Declare(topic, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})

	t.Run("enough time", func(t *testing.T) {
		publisher := newPublisher(t, slowly(uri, 1<<19), withTimeout(await.Bound))
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				assert.NoError(t, publisher.Publish(topic, largeMessages(i*10, 10)...))
			})
		}
		callers.Wait()
		assert.Len(t, broker.Drain(topic), 80)
	})

	t.Run("too little time", func(t *testing.T) {
		publisher := newPublisher(t, slowly(uri, 1<<18), withTimeout(8*time.Second))
		messages := largeMessages(0, 240) // for a minute
		began := time.Now()
		err := publisher.Publish(topic, messages...)
		assert.Less(t, time.Since(began), 25*time.Second)
		maybe, not := map[string]bool{}, map[string]bool{}
		for _, f := range failures(t, err).Failed {
			maybe[f.UUID], not[f.UUID] = f.MayBeStored, !f.MayBeStored
		}
		require.NotEmpty(t, not)
		require.NoError(t, publisher.Publish(topic, watermillMessages("after")...), "the link is free again")

		stored := map[string]int{}
		for _, d := range broker.Drain(topic) {
			stored[rabbit.Text(d, amqp.DefaultMessageUUIDHeaderKey)]++
		}
		for _, m := range messages {
			switch {
			case maybe[m.UUID]:
			case not[m.UUID]:
				assert.Zero(t, stored[m.UUID], m.UUID)
			default:
				assert.Equal(t, 1, stored[m.UUID], m.UUID)
			}
		}
		assert.Equal(t, 1, stored["after"])
	})
}

// largeMessages have 64 KB each, and numbers as UUIDs.
func largeMessages(from, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = message.NewMessage(strconv.Itoa(from+i), bytes.Repeat([]byte("x"), 64<<10))
	}

	return messages
}
