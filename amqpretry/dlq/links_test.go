package dlq_test

import (
	"bytes"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
)

// network is a poor one between a client and the broker: what comes does so after a delay, at so
// many bytes a second, and stands still once.
type network struct {
	perSecond int
	latency   time.Duration
	stall     time.Duration // once, after the first 100 KB
}

func (n network) dial(network, address string) (net.Conn, error) {
	socket, err := amqp091.DefaultDial(30*time.Second)(network, address)
	if err != nil {
		return nil, err
	}
	w := &overNetwork{Conn: socket, network: n, came: make(chan part, 1000)}
	go w.carry()

	return w, nil
}

type part struct {
	due   time.Time
	bytes []byte
}

type overNetwork struct {
	net.Conn
	network

	came   chan part
	rest   []byte
	failed atomic.Pointer[error]
}

// carry takes no more from the socket than the network carries, so that the broker's writes wait.
func (w *overNetwork) carry() {
	defer close(w.came)
	received := 0
	for {
		buffer := make([]byte, 16<<10)
		n, err := w.Conn.Read(buffer)
		if err != nil {
			w.failed.Store(&err)
			return
		}
		if w.perSecond > 0 {
			<-time.After(time.Duration(n) * time.Second / time.Duration(w.perSecond))
		}
		if before := received; before < 100_000 && before+n >= 100_000 {
			<-time.After(w.stall)
		}
		received += n
		w.came <- part{time.Now().Add(w.latency), buffer[:n]}
	}
}

func (w *overNetwork) Read(p []byte) (int, error) {
	if len(w.rest) == 0 {
		next, ok := <-w.came
		if !ok {
			return 0, *w.failed.Load()
		}
		<-time.After(time.Until(next.due))
		w.rest = next.bytes
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]

	return n, nil
}

// What is on its way for long is neither missed nor taken for the end.
func TestPoorNetworks(t *testing.T) {
	t.Parallel()
	const mega = 1 << 20
	for name, test := range map[string]struct {
		network     network
		deadLetters int
		size        int
		queue       amqp091.Table
	}{
		"1 MB a second":          {network{perSecond: mega}, 3, 3 * mega / 2, nil},
		"1 MB a second, classic": {network{perSecond: mega}, 3, 3 * mega / 2, classic()},
		"1 MB a second, many":    {network{perSecond: mega}, 100, 10_000, nil},
		"100 ms":                 {network{latency: 100 * time.Millisecond}, 100, 100, nil},
		"stands still for 5 s":   {network{stall: 5 * time.Second}, 20, 50_000, nil},
		"a little of all, and slower": {network{perSecond: mega / 2, latency: 100 * time.Millisecond,
			stall: 3 * time.Second}, 2, mega, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, test.queue)
			filler := bytes.Repeat([]byte("x"), test.size)
			f.fillWith(test.deadLetters, func(i int) amqp091.Publishing {
				deadLetter := deadletter.New(f.main, i)
				deadLetter.Body = fmt.Appendf(nil, "%d %s", i, filler)

				return deadLetter
			})
			client, err := dlq.Open(t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true,
				AMQP: &amqp091.Config{Dial: test.network.dial}})
			require.NoError(t, err)
			defer func() { _ = client.Close() }()
			queue := client.Queue(f.main)

			var file bytes.Buffer
			report, err := queue.Export(t.Context(), &file, dlq.ExportOptions{})
			require.NoError(t, err)
			assert.Equal(t, dlq.Progress{Total: test.deadLetters, Seen: test.deadLetters, Matched: test.deadLetters,
				Done: test.deadLetters}, report.Progress)
			assert.Equal(t, test.deadLetters, bytes.Count(file.Bytes(), []byte("\n")))

			f.Has(f.queue.Name(), test.deadLetters)
			replayed, err := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
			require.NoError(t, err)
			assert.Equal(t, test.deadLetters, replayed.Done)
			f.Has(f.queue.Name(), 0)
			f.Has(f.main, test.deadLetters)
			for i, d := range f.drained(f.main, test.deadLetters) {
				assert.Equal(t, fmt.Sprintf("%d ", i), string(d.Body[:len(d.Body)-test.size]))
			}
		})
	}
}
