package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// peer is amqp091-go with as much of a broker behind it as it takes to see what it writes, and to have it read what we want: the real
// encoder and the real decoder.
type peer struct {
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	broker     net.Conn
	published  chan []byte // content header frames
	sieve      *sieve
}

// newPeer connects them, through a sieve with this limit.
func newPeer(t testing.TB, limit int) *peer {
	t.Helper()
	client, broker := net.Pipe()
	p := &peer{broker: broker, published: make(chan []byte, 1), sieve: newSieve(client)}
	t.Cleanup(func() { _, _ = client.Close(), broker.Close() })
	go p.serve()

	p.sieve.limit.Store(int64(limit))
	conn, err := amqp091.Open(p.sieve, amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{}}, Vhost: "/", FrameSize: limit})
	require.NoError(t, err)
	p.channel, err = conn.Channel()
	require.NoError(t, err)
	p.deliveries, err = p.channel.Consume("q", "tag", true, false, false, false, nil)
	require.NoError(t, err)

	return p
}

func (p *peer) serve() {
	if _, err := io.ReadFull(p.broker, make([]byte, 8)); err != nil {
		return
	}
	p.method(0, 10, 10, "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	for {
		frame, err := readFrame(p.broker)
		if err != nil {
			return
		}
		switch frame[0] {
		case frameType:
			p.published <- frame
		case 1:
			p.answer(binary.BigEndian.Uint32(frame[frameStart:]))
		}
	}
}

func (p *peer) answer(method uint32) {
	switch method {
	case 10<<16 | 11: // start-ok
		p.method(0, 10, 30, "\x07\xff\x00\x00\x00\x00\x00\x00")
	case 10<<16 | 40: // open
		p.method(0, 10, 41, "\x00")
	case 20<<16 | 10:
		p.method(1, 20, 11, "\x00\x00\x00\x00")
	case 60<<16 | 20: // consume
		p.method(1, 60, 21, "\x03tag")
	}
}

func (p *peer) method(channel, class, method uint16, arguments string) {
	var e encoder
	e.number(class, method)
	e.WriteString(arguments)
	p.write(1, channel, e.Bytes())
}

func (p *peer) write(kind byte, channel uint16, payload []byte) {
	_, _ = p.broker.Write(frameOf(kind, channel, payload))
}

func frameOf(kind byte, channel uint16, payload []byte) []byte {
	var e encoder
	e.number(kind, channel)
	e.long(payload)
	e.WriteByte(0xCE)

	return e.Bytes()
}

func readFrame(r io.Reader) ([]byte, error) {
	var frame bytes.Buffer
	if _, err := io.CopyN(&frame, r, frameStart); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(frame.Bytes()[3:])
	_, err := io.CopyN(&frame, r, int64(size)+frameEnds)

	return frame.Bytes(), err
}

// encode is a message's content header frame as amqp091-go writes it.
func (p *peer) encode(m amqp091.Publishing) ([]byte, error) {
	if err := p.channel.Publish("", "q", false, false, m); err != nil {
		return nil, err
	}

	return <-p.published, nil
}

// deliver gives amqp091-go a content header and returns what it reads.
func (p *peer) deliver(header []byte) (amqp091.Delivery, error) {
	deliver := "\x00\x3c\x00\x3c\x03tag\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x01q"
	go func() {
		_, _ = p.broker.Write(append(frameOf(1, 1, []byte(deliver)), frameOf(frameType, 1, header)...))
	}()
	d, ok := <-p.deliveries
	if !ok {
		return d, errors.New("amqp091-go has given up the connection")
	}

	return d, nil
}

// newPipe is a sieve before a stream that comes in pieces of at most so many bytes.
func newPipe(t *testing.T, stream []byte, size int) *sieve {
	t.Helper()
	client, broker := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	go func() {
		defer func() { _ = broker.Close() }()
		for len(stream) > 0 {
			n := min(size, len(stream))
			if _, err := broker.Write(stream[:n]); err != nil {
				return
			}
			stream = stream[n:]
		}
	}()

	return newSieve(client)
}
