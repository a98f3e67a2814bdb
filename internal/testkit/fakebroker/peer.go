package fakebroker

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Peer is amqp091-go with as much of a broker behind it as it takes to see what it writes, and to
// have it read what we want: the real encoder and the real decoder.
type Peer struct {
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	broker     net.Conn
	published  chan []byte // content header frames
}

// NewPeer connects them, through a wrap of the client's side, with frames of at most limit bytes.
func NewPeer(t testing.TB, limit int, wrap func(net.Conn) net.Conn) *Peer {
	t.Helper()
	client, broker := net.Pipe()
	p := &Peer{broker: broker, published: make(chan []byte, 1)}
	t.Cleanup(func() { _, _ = client.Close(), broker.Close() })
	go p.serve()

	conn, err := amqp091.Open(wrap(client), amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{}},
		Vhost: "/", FrameSize: limit})
	require.NoError(t, err)
	p.channel, err = conn.Channel()
	require.NoError(t, err)
	p.deliveries, err = p.channel.Consume("q", "tag", true, false, false, false, nil)
	require.NoError(t, err)

	return p
}

// newServerPeer is the side of a broker only.
func newServerPeer(broker net.Conn) *Peer { return &Peer{broker: broker} }

func (p *Peer) serve() {
	p.each(func(frame []byte) {
		switch frame[0] {
		case headerType:
			p.published <- frame
		case 1:
			p.answer(binary.BigEndian.Uint32(frame[startBytes:]))
		}
	})
}

// each begins the handshake, answers heartbeats, and gives all other frames of the client, until it
// has gone.
func (p *Peer) each(take func(frame []byte)) {
	if _, err := io.ReadFull(p.broker, make([]byte, 8)); err != nil {
		return
	}
	p.Method(0, 10, 10, "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	for {
		frame, err := readFrame(p.broker)
		if err != nil {
			return
		}
		if frame[0] == 8 { // heartbeat
			p.write(8, 0, nil)
			continue
		}
		take(frame)
	}
}

func (p *Peer) answer(method uint32) {
	switch method {
	case 10<<16 | 11: // start-ok
		p.Method(0, 10, 30, "\x07\xff\x00\x00\x00\x00\x00\x00")
	case 10<<16 | 40: // open
		p.Method(0, 10, 41, "\x00")
	case 20<<16 | 10:
		p.Method(1, 20, 11, "\x00\x00\x00\x00")
	case 60<<16 | 20: // consume
		p.Method(1, 60, 21, "\x03tag")
	}
}

// Method writes a method frame to the client.
func (p *Peer) Method(channel, class, method uint16, arguments string) {
	var e Encoder
	e.Number(class, method)
	e.WriteString(arguments)
	p.write(1, channel, e.Bytes())
}

func (p *Peer) write(kind byte, channel uint16, payload []byte) {
	_, _ = p.broker.Write(Frame(kind, channel, payload))
}

// Encode is a message's content header frame as amqp091-go writes it.
func (p *Peer) Encode(m amqp091.Publishing) ([]byte, error) {
	if err := p.channel.Publish("", "q", false, false, m); err != nil {
		return nil, err
	}

	return <-p.published, nil
}

// Deliver gives amqp091-go a content header and returns what it reads.
func (p *Peer) Deliver(header []byte) (amqp091.Delivery, error) {
	deliver := "\x00\x3c\x00\x3c\x03tag\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x01q"
	go func() {
		_, _ = p.broker.Write(append(Frame(1, 1, []byte(deliver)), Frame(headerType, 1, header)...))
	}()
	d, ok := <-p.deliveries
	if !ok {
		return d, errors.New("amqp091-go has given up the connection")
	}

	return d, nil
}

// socket writes in a goroutine of its own, as a real one: a broker that waited with an answer for a
// client that is writing itself would never read what that writes.
type socket struct {
	net.Conn

	out  chan []byte
	over chan struct{}
	once sync.Once
}

func newSocket(conn net.Conn) *socket {
	q := &socket{Conn: conn, out: make(chan []byte, 10_000), over: make(chan struct{})}
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
