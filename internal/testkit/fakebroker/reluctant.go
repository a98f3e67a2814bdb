package fakebroker

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Reluctant is as much of a broker as a consumer asks for. Like RabbitMQ with a quorum queue that
// has no leader, it answers nobody who wants to consume before it is willing, and on such a channel
// nothing else either.
type Reluctant struct {
	Willing chan struct{}
	Slow    time.Duration // until a cancel is answered
	// Consumers is how many each queue has, and Looks how often that was asked for.
	Consumers, Looks atomic.Int32

	mu       sync.Mutex
	asked    int             // to consume
	channels map[uint16]bool // that are open
	network  []net.Conn
	peers    []*Peer
	// cancelling are consumers that are being cancelled, and overtaken whether a channel was closed
	// meanwhile, or before anything else.
	cancelling int
	overtaken  bool
}

// NewReluctant returns a broker that is willing from the start, or when Willing is closed.
func NewReluctant(willing bool) *Reluctant {
	r := &Reluctant{Willing: make(chan struct{}), channels: map[uint16]bool{}}
	if willing {
		close(r.Willing)
	}

	return r
}

// Expect checks how often the broker was asked to consume, how many channels are open, and that
// none was closed too early.
func (r *Reluctant) Expect(t testing.TB, asked, channels int, why ...any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Equal(t, asked, r.asked, why...)
	assert.Len(t, r.channels, channels, why...)
	assert.False(t, r.overtaken, "a channel was closed too early")
}

// CancelConsumers cancels the consumer of each channel, as a broker whose queue is deleted.
func (r *Reluctant) CancelConsumers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for channel := range r.channels {
		r.peers[0].Method(channel, 60, 30, "\x03tag\x01")
	}
}

// Dial connects to it.
func (r *Reluctant) Dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	answers := newSocket(broker)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = append(r.network, answers)
	p := newServerPeer(answers)
	r.peers = append(r.peers, p)
	go r.serve(p)

	return client, nil
}

// Cut ends all connections; from then on nobody is answered who wants to consume.
func (r *Reluctant) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.Willing = make(chan struct{})
	for _, conn := range r.network {
		_ = conn.Close()
	}
	clear(r.channels)
}

func (r *Reluctant) serve(p *Peer) {
	defer func() { _ = p.broker.Close() }()
	p.each(func(frame []byte) {
		r.answer(p, binary.BigEndian.Uint16(frame[1:]), binary.BigEndian.Uint32(frame[startBytes:]))
	})
}

func (r *Reluctant) answer(p *Peer, channel uint16, method uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if channel > 0 && method != 20<<16|10 && !r.channels[channel] {
		r.overtaken = true // RabbitMQ closes the connection
	}
	switch method {
	case 10<<16 | 50: // close
		p.Method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		r.channels[channel] = true
		p.Method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		r.overtaken = r.overtaken || r.cancelling > 0
		delete(r.channels, channel)
		p.Method(channel, 20, 41, "")
	case 60<<16 | 10: // qos
		p.Method(channel, 60, 11, "")
	case 60<<16 | 20: // consume
		r.asked++
		willing := r.Willing
		go func() {
			<-willing
			p.Method(channel, 60, 21, "\x03tag")
		}()
	case 50<<16 | 10: // declare a queue
		r.Looks.Add(1)
		p.Method(channel, 50, 11, "\x00\x00\x00\x00\x00\x00\x00\x00"+string(r.Consumers.Load()))
	case 60<<16 | 30: // cancel
		if r.Slow == 0 {
			p.Method(channel, 60, 31, "\x03tag")
			return
		}
		r.cancelling++
		time.AfterFunc(r.Slow, func() {
			r.mu.Lock()
			r.cancelling--
			r.mu.Unlock()
			p.Method(channel, 60, 31, "\x03tag")
		})
	default:
		p.answer(method)
	}
}
