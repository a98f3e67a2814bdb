package dlq_test

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// wiretap notes what a client says to its broker.
type wiretap struct {
	net.Conn

	mu   sync.Mutex
	said []byte
}

func (w *wiretap) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.said = append(w.said, p...)
	w.mu.Unlock()

	return w.Conn.Write(p)
}

// methods are those of AMQP that were called, class and method in one number, in their order.
func (w *wiretap) methods() []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var methods []uint32
	for said := w.said[len("AMQP0091"):]; len(said) > 7; {
		size := int(binary.BigEndian.Uint32(said[3:]))
		if said[0] == 1 {
			methods = append(methods, binary.BigEndian.Uint32(said[7:]))
		}
		said = said[7+size+1:]
	}

	return methods
}

const (
	consume      = 60<<16 | 20
	cancel       = 60<<16 | 30
	closeChannel = 20<<16 | 40
)

// A browse that gives back what it has seen waits longer where nobody else consumes the queue. So
// none of its own consumers may be there then, also those that get nothing more.
func TestBrowseEndsItsConsumersBeforeItGivesBack(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(100)
	var taps []*wiretap
	client, err := dlq.Open(t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true,
		AMQP: &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqp091.DefaultDial(30*time.Second)(network, address)
			tap := &wiretap{Conn: conn}
			taps = append(taps, tap)

			return tap, err
		}}})
	require.NoError(t, err)
	seen := 0
	for _, err := range client.Queue(f.main).Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		seen++
	}
	assert.Equal(t, 100, seen)
	require.NoError(t, client.Close())

	opened := 0
	for _, tap := range taps {
		consumers, began := 0, false
		for _, method := range tap.methods() {
			switch method {
			case consume:
				consumers++
				opened++
				began = true
			case cancel:
				consumers--
			case closeChannel:
				assert.False(t, began && consumers > 0, "%d of its own, when a channel is closed", consumers)
			}
		}
		assert.Zero(t, consumers)
	}
	assert.GreaterOrEqual(t, opened, 2, "else it shows little")
}
