package tests

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// poison is a broker that closes the connection when somebody consumes from a queue, as RabbitMQ
// does over some errors of its own.
type poison struct {
	queue string
	on    atomic.Bool
}

func (p *poison) wrap(conn net.Conn) net.Conn {
	return &poisonConn{Conn: conn, of: p, closed: make(chan struct{}, 1)}
}

// poisonConn reads ahead, so that it can read something else.
type poisonConn struct {
	net.Conn

	of     *poison
	closed chan struct{}
	after  []byte
}

func (c *poisonConn) Write(b []byte) (int, error) {
	const consume = "\x00\x3c\x00\x14"
	if i := bytes.Index(b, []byte(consume)); i >= 0 && c.of.on.Load() && bytes.Contains(b[i:], []byte(c.of.queue)) {
		c.closed <- struct{}{}
		_ = c.SetReadDeadline(time.Now())

		return len(b), nil
	}

	return c.Conn.Write(b)
}

func (c *poisonConn) Read(b []byte) (int, error) {
	if len(c.after) == 0 {
		n, err := c.Conn.Read(b)
		select {
		case <-c.closed:
			const why = "INTERNAL_ERROR"
			close := append([]byte{0, 10, 0, 50, 541 >> 8, 541 & 0xff, byte(len(why))}, why+"\x00\x00\x00\x00"...)
			c.after = append([]byte{1, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(len(close)))...)
			c.after = append(append(c.after, close...), 0xCE)
		default:
			return n, err
		}
	}
	n := copy(b, c.after)
	c.after = c.after[n:]

	return n, nil
}

// To consume from one queue costs the connection each time. The others go on.
func TestTrouble_OneQueueCostsTheConnection(t *testing.T) {
	t.Parallel()
	bad := &poison{queue: uniqueName("bad")}
	var fromBad calls
	svc := start(t, setup{QueueType: "quorum",
		Configure: func(c *amqp.Config) { wrapConnections(c, bad.wrap) },
		Route: func(s *service) {
			s.Router.AddConsumerHandler("good", s.Queue, s.Sub, s.recorded(succeed))
			s.Router.AddConsumerHandler("bad", bad.queue, s.Sub, func(m *message.Message) error {
				fromBad.add(m)
				return nil
			})
		}})
	t.Cleanup(func() { svc.Broker.Remove("", bad.queue, bad.queue+".dlq") })
	svc.Broker.Publish(bad.queue, rabbit.Messages("before")...)
	await.Until(t, func() bool { return fromBad.count() == 1 }, "it works")

	var busy sync.WaitGroup
	over := make(chan struct{})
	defer busy.Wait()
	defer close(over)
	busy.Go(func() { // the other is as busy whenever the connection is lost
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
				svc.Broker.Publish(svc.Queue, rabbit.Messages("busy")...)
			}
		}
	})
	bad.on.Store(true)
	svc.Broker.Publish(bad.queue, rabbit.Messages(rabbit.Numbered("grow", 100)...)...) // it consumes anew
	told := func() []logEntry { return svc.Logs.with("RabbitMQ closes the connection that consumes") }
	await.Until(t, func() bool { return len(told()) > 0 }, "it is told of")

	consuming := func() (good int) {
		for _, e := range svc.Events(retry.EventConsuming) {
			if e.Queue == svc.Queue {
				good++
			}
		}

		return good
	}
	before := consuming()
	calls := svc.Calls.count()
	await.Until(t, func() bool { return svc.Calls.count() > calls+100 && len(told()) > 2 }, "the others are handled")
	assert.LessOrEqual(t, consuming(), before+1, "the connection of the others stays")
	for _, e := range told() {
		assert.Equal(t, bad.queue, e.Fields["amqp_queue_name"])
	}
	bad.on.Store(false)
	await.Until(t, func() bool { return len(fromBad.ids()) == 101 }, "it goes on when the broker has recovered")
}
