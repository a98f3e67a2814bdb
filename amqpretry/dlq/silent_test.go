package dlq_test

import (
	"bytes"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// mute is a connection over which nothing comes any more once it is silent.
type mute struct {
	net.Conn
	silent *atomic.Bool
}

func (m mute) Read(p []byte) (int, error) {
	for {
		if n, err := m.Conn.Read(p); err != nil || !m.silent.Load() {
			return n, err
		}
	}
}

// muteQueue is the queue of a fixture for a client that misses heartbeats soon.
func (f *fixture) muteQueue() (*dlq.Queue, *atomic.Bool) {
	f.t.Helper()
	silent := &atomic.Bool{}
	client, err := dlq.Open(f.t.Context(), dlq.Config{URI: f.URI + "?heartbeat=1", NoDeliveryLimitPolicy: true,
		AMQP: &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			socket, err := amqp091.DefaultDial(30*time.Second)(network, address)
			return mute{socket, silent}, err
		}}})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = client.Close() })

	q := client.Queue(f.main)
	_, _, err = q.Ready(f.t.Context()) // amqp091-go misses heartbeats from the first frame on
	require.NoError(f.t, err)

	return q, silent
}

// A link that is silent ends what reads, with the queue and with what to do.
func TestSilentLink(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(f *fixture, q *dlq.Queue, silence func()) error{
		"ready": func(f *fixture, q *dlq.Queue, silence func()) error {
			silence()
			_, _, err := q.Ready(f.t.Context())
			return err
		},
		"depth": func(f *fixture, q *dlq.Queue, silence func()) error {
			silence()
			_, err := q.Depth(f.t.Context())
			return err
		},
		"get": func(f *fixture, q *dlq.Queue, silence func()) error {
			silence()
			_, err := q.Get(f.t.Context(), "uuid-1")
			return err
		},
		"browse": func(f *fixture, q *dlq.Queue, silence func()) error {
			for l, err := range q.Browse(f.t.Context(), dlq.Filter{}) {
				if err != nil {
					return err
				}
				if l.Position == 1 {
					silence()
				}
			}
			return nil
		},
		"stat": func(f *fixture, q *dlq.Queue, silence func()) error {
			_, err := q.Stat(f.t.Context(), dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
				if l.Position == 1 {
					silence()
				}
				return true
			}})
			return err
		},
		"export": func(f *fixture, q *dlq.Queue, silence func()) error {
			_, err := q.Export(f.t.Context(), &bytes.Buffer{}, dlq.ExportOptions{Progress: func(p dlq.Progress) {
				if p.Seen == 1 {
					silence()
				}
			}})
			return err
		},
		"replay": func(f *fixture, q *dlq.Queue, silence func()) error {
			_, err := q.Run(f.t.Context(), dlq.Plan{Kind: dlq.Replay, Rate: 100, Progress: func(p dlq.Progress) {
				if p.Done > 0 {
					silence()
				}
			}})
			return err
		},
		"purge": func(f *fixture, q *dlq.Queue, silence func()) error {
			_, err := q.Plan(f.t.Context(), dlq.Plan{Kind: dlq.Purge, Progress: func(p dlq.Progress) {
				if p.Seen == 1 {
					silence()
				}
			}})
			return err
		},
		"move": func(f *fixture, q *dlq.Queue, silence func()) error {
			_, err := q.Run(f.t.Context(), dlq.Plan{Kind: dlq.Move, To: f.main, Rate: 100,
				Progress: func(p dlq.Progress) {
					if p.Done > 0 {
						silence()
					}
				}})
			return err
		},
		"import": func(f *fixture, q *dlq.Queue, silence func()) error {
			var file bytes.Buffer
			_, err := f.queue.Export(f.t.Context(), &file, dlq.ExportOptions{})
			require.NoError(f.t, err)
			_, err = q.Import(f.t.Context(), &file, dlq.ImportOptions{Rate: 100, Imported: func(lines int) error {
				silence()
				return nil
			}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(100)
			q, silent := f.muteQueue()
			err := read(f, q, func() { silent.Store(true) })
			require.ErrorContains(t, err, `"`+f.queue.Name()+`": the connection was silent`)
			assert.Equal(t, 1, strings.Count(err.Error(), "; check the network"), err)
			assert.ErrorAs(t, err, new(*amqp091.Error))
		})
	}
}
