package dlq_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// deaf is a connection on which some answers of the broker never come.
type deaf struct {
	net.Conn

	method *atomic.Uint32 // class and number of the answers that do not; 0: all come
	ready  bytes.Buffer
}

func (d *deaf) Read(p []byte) (int, error) {
	for d.ready.Len() == 0 {
		var start [7]byte // type, channel, size
		if _, err := io.ReadFull(d.Conn, start[:]); err != nil {
			return 0, err
		}
		frame := make([]byte, binary.BigEndian.Uint32(start[3:])+1)
		if _, err := io.ReadFull(d.Conn, frame); err != nil {
			return 0, err
		}
		const method = 1
		if start[0] == method && binary.BigEndian.Uint32(frame) == d.method.Load() {
			continue
		}
		d.ready.Write(start[:])
		d.ready.Write(frame)
	}

	return d.ready.Read(p)
}

// answerTime is longer than a busy broker takes to answer.
const answerTime = 5 * time.Second

// deafClient opens a client that does not get the answers of one method.
func (f *fixture) deafClient() (*dlq.Client, *atomic.Uint32) {
	f.t.Helper()
	silent := &atomic.Uint32{}
	client, err := dlq.Open(f.t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true, AMQP: &amqp091.Config{
		Dial: func(network, address string) (net.Conn, error) {
			socket, err := amqp091.DefaultDial(30*time.Second)(network, address)
			return &deaf{Conn: socket, method: silent}, err
		},
	}})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = client.Close() })
	client.AnswerWithin(answerTime)

	return client, silent
}

// A broker that is there and does not answer hangs nothing up: the connection is given up, and all
// is where it was.
func TestBrokerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const (
		channelClose = 20<<16 | 41
		cancel       = 60<<16 | 31
		declare      = 50<<16 | 11
		qos          = 60<<16 | 11
	)
	for name, test := range map[string]struct {
		deadLetters int
		method      uint32
		from        int // of the dead letters: from then on it does not answer
		ordered     bool
		failed      string
	}{
		"a close":            {10, channelClose, 10, true, ""},
		"a close of several": {100, channelClose, 100, false, "order of its messages has changed"},
		"a cancel":           {100, cancel, 10, true, "no answer from the broker"},
		"how many there are": {10, declare, 10, true, ""},
		"a further consumer": {100, qos, 10, true, "no answer from the broker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(test.deadLetters)
			client, silent := f.deafClient()
			seen := 0
			ended := make(chan error, 1)
			go func() {
				var failed error
				for _, err := range client.Queue(f.main).Browse(t.Context(), dlq.Filter{}) {
					if failed = err; err != nil {
						break
					}
					if seen++; seen == test.from {
						silent.Store(test.method)
					}
				}
				ended <- failed
			}()
			if err := await.Value(t, ended, "the browse ends"); test.failed == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.failed)
			}
			silent.Store(0)
			found := rabbit.Bodies(f.drained(f.queue.Name(), test.deadLetters))
			if test.ordered {
				assert.Equal(t, deadletter.Bodies(test.deadLetters), found)
			} else {
				assert.ElementsMatch(t, deadletter.Bodies(test.deadLetters), found)
			}
		})
	}
}

// The first thing that a run with a canary consumes is what becomes of it.
func TestCanaryWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(10)
	client, silent := f.deafClient()
	const consume = 60<<16 | 21
	silent.Store(consume)
	ended := make(chan error, 1)
	go func() {
		_, err := client.Queue(f.main).Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 2}})
		ended <- err
	}()
	require.ErrorContains(t, await.Value(t, ended, "the replay ends"), "no answer from the broker")
	assert.Equal(t, deadletter.Bodies(10), rabbit.Bodies(f.drained(f.queue.Name(), 10)))
}

// An answer that takes long, as it comes behind messages over a slow link, is no silence.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	const deadLetters, size = 3, 3 << 19 // 9 s of the link
	f := onBroker(t, nil)
	f.fillWith(deadLetters, func(i int) amqp091.Publishing {
		deadLetter := deadletter.New(f.main, i)
		deadLetter.Body = bytes.Repeat([]byte("x"), size)

		return deadLetter
	})
	client, err := dlq.Open(t.Context(), dlq.Config{
		URI: f.URI, NoDeliveryLimitPolicy: true, AMQP: &amqp091.Config{Dial: network{perSecond: 1 << 19}.dial},
	})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	client.AnswerWithin(answerTime)

	stat, err := client.Queue(f.main).Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Equal(t, deadLetters, stat.Seen)
}
