package fakebroker

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"
)

// Reluctant is as much of a broker as a consumer asks for. Like RabbitMQ with a quorum queue that
// has no leader, it answers nobody who wants to consume before it is willing, and on such a channel
// nothing else either.
type Reluctant struct {
	Willing chan struct{}

	Mu       sync.Mutex
	asked    int          // to consume
	Channels map[int]bool // that are open
	network  []net.Conn
	Peers    []*Peer
	// cancelling are consumers that are being cancelled, and overtaken whether a channel was closed
	// meanwhile, or before anything else.
	cancelling int
	Overtaken  bool
	Slow       time.Duration // until a cancel is answered
}

// Count is how often it was asked to consume, and how many channels are open.
func (r *Reluctant) Count() (asked, channels int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()

	return r.asked, len(r.Channels)
}

// Dial connects to it.
func (r *Reluctant) Dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	answers := newSocket(broker)
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.network = append(r.network, answers)
	p := NewServerPeer(answers)
	r.Peers = append(r.Peers, p)
	go r.serve(p)

	return client, nil
}

// socket is a connection whose writes do not wait for who reads, as those of a socket. A broker
// that waited with an answer for a client that is writing itself would never read what that writes.
type socket struct {
	net.Conn

	out  chan []byte
	over chan struct{}
	once sync.Once
}

func newSocket(conn net.Conn) *socket {
	q := &socket{Conn: conn, out: make(chan []byte, 1000), over: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-q.out:
				if _, err := conn.Write(b); err != nil {
					return
				}
			case <-q.over:
				return
			}
		}
	}()

	return q
}

func (q *socket) Write(b []byte) (int, error) {
	select {
	case q.out <- slices.Clone(b):
		return len(b), nil
	case <-q.over:
		return 0, net.ErrClosed
	}
}

func (q *socket) Close() error {
	q.once.Do(func() { close(q.over) })
	return q.Conn.Close()
}

// Cut ends all connections; from then on nobody is answered who wants to consume.
func (r *Reluctant) Cut() {
	r.Mu.Lock()
	defer r.Mu.Unlock()

	r.Willing = make(chan struct{})
	for _, conn := range r.network {
		_ = conn.Close()
	}
	clear(r.Channels)
}

func (r *Reluctant) serve(p *Peer) {
	defer func() { _ = p.broker.Close() }()
	p.each(func(frame []byte) {
		r.answer(p, binary.BigEndian.Uint16(frame[1:]), binary.BigEndian.Uint32(frame[startBytes:]))
	})
}

func (r *Reluctant) answer(p *Peer, channel uint16, method uint32) {
	r.Mu.Lock()
	defer r.Mu.Unlock()

	if channel > 0 && method != 20<<16|10 && !r.Channels[int(channel)] {
		r.Overtaken = true // RabbitMQ closes the connection
	}
	switch method {
	case 10<<16 | 50: // close
		p.Method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		r.Channels[int(channel)] = true
		p.Method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		r.Overtaken = r.Overtaken || r.cancelling > 0
		delete(r.Channels, int(channel))
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
	case 60<<16 | 30: // cancel
		if r.Slow == 0 {
			p.Method(channel, 60, 31, "\x03tag")
			return
		}
		r.cancelling++
		time.AfterFunc(r.Slow, func() {
			r.Mu.Lock()
			r.cancelling--
			r.Mu.Unlock()
			p.Method(channel, 60, 31, "\x03tag")
		})
	default:
		p.answer(method)
	}
}
