package tests

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// sentMethods are some of the AMQP methods that a service sends, in their order.
type sentMethods struct{ records[string] }

var methodNames = map[uint32]string{
	60<<16 | 20: "basic.consume", 60<<16 | 30: "basic.cancel", 60<<16 | 80: "basic.ack",
}

// record makes the connections of a config tell what they send.
func (s *sentMethods) record(conf *amqp.Config) {
	wrapConnections(conf, func(conn net.Conn) net.Conn { return &recordedConn{Conn: conn, to: s} })
}

// wrapConnections makes a config use what wrap makes of its network connections.
func wrapConnections(conf *amqp.Config, wrap func(net.Conn) net.Conn) {
	conf.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: 10 * time.Second, Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqp091.DefaultDial(await.Bound)(network, address)
			if err != nil {
				return nil, err
			}

			return wrap(conn), nil
		},
	}
}

func (s *sentMethods) add(method uint32) {
	if name := methodNames[method]; name != "" {
		s.put(name)
	}
}

// recordedConn tells what is sent.
type recordedConn struct {
	net.Conn
	to     *sentMethods
	frames frameReader
}

// Write is called by one goroutine at a time.
func (c *recordedConn) Write(b []byte) (int, error) {
	c.frames.read(b, func(frame []byte) {
		const methodFrame = 1
		if frame[0] == methodFrame {
			c.to.add(binary.BigEndian.Uint32(frame[frameHead:]))
		}
	})

	return c.Conn.Write(b)
}

const frameHead, frameEnd = 1 + 2 + 4, 1

// frameReader finds the frames in what a client sends.
type frameReader struct {
	greeted bool   // the protocol header, which is no frame, is over
	rest    []byte // the frame that is not yet whole
}

// read returns the protocol header, if it is there now, and calls do with each whole frame.
func (r *frameReader) read(b []byte, do func(frame []byte)) (header []byte) {
	const headerSize = 8
	r.rest = append(r.rest, b...)
	if !r.greeted && len(r.rest) >= headerSize {
		r.greeted, header, r.rest = true, r.rest[:headerSize:headerSize], r.rest[headerSize:]
	}
	for r.greeted && len(r.rest) >= frameHead {
		size := frameHead + int(binary.BigEndian.Uint32(r.rest[3:])) + frameEnd
		if len(r.rest) < size {
			break
		}
		do(r.rest[:size:size])
		r.rest = r.rest[size:]
	}

	return header
}
