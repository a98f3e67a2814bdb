package crashes

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// cables are the connections of a service, which can be cut.
type cables struct {
	mu  sync.Mutex
	all []net.Conn
}

func (c *cables) dial(network, address string) (net.Conn, error) {
	conn, err := amqp091.DefaultDial(10*time.Second)(network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conn)

	return conn, nil
}

func (c *cables) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
	c.all = nil
}

// Lost connections charge nobody, however many there are and however much is in flight.
func TestCutsChargeNobody(t *testing.T) {
	sideBySide(t)
	cuts, concurrency, prefetch, messages, work := 14, 4, 200, 300, 10*time.Millisecond
	if os.Getenv("CRASHES") != "" {
		cuts, concurrency, prefetch, messages, work = 100, 10, 500, 900, 50*time.Millisecond
	}
	b, r := dial(t), newRecord()
	network := &cables{}
	s := service{URI: brokertest.URI(t), Queues: queuesFor(1), QueueType: "quorum", Concurrency: concurrency,
		Prefetch: prefetch, Dial: network.dial}
	s.hear = r.hear
	b.declare(s)
	b.publish(s.Queues[0], rabbit.Numbered("innocent", messages)...)

	var starts atomic.Int64
	began := time.Now()
	svc := begin(t, s, func(msg *message.Message) error {
		starts.Add(1)
		<-time.After(work)
		r.hear(fmt.Sprintln(saidDone, msg.UUID))

		return nil
	})
	for range cuts {
		before := starts.Load()
		// What is handled now was delivered after the cut before, all but one message of each
		// worker.
		await.Until(t, func() bool {
			return starts.Load() > before+int64(concurrency) || r.is(func(r *record) bool {
				return len(r.done) == messages
			})
		}, "messages are handled after the cut before")
		network.cut()
	}
	await.Within(t, 3*time.Minute, func() bool {
		return r.is(func(r *record) bool { return len(r.done) == messages })
	}, "all are handled")
	took := time.Since(began)
	svc.close()
	assert.Empty(t, r.charged)
	assert.Empty(t, r.dead)

	table := report.Table{Head: []string{"RabbitMQ " + b.Version() + ": cuts", "prefetch",
		fmt.Sprintf("messages of %s", work), "charged", "dead", "largest x-delivery-count", "s"}}
	table.Add(cuts, prefetch, messages, len(r.charged), len(r.dead), r.most, int(took.Seconds()))
	report.Write(t, table.String())
}
