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

type recordedConn struct {
	net.Conn
	to      *sentMethods
	greeted bool   // the protocol header, which is no frame, is over
	rest    []byte // the frame that is not yet whole
}

// Write is called by one goroutine at a time.
func (c *recordedConn) Write(b []byte) (int, error) {
	const header, frameHeader, frameEnd, methodFrame = 8, 7, 1, 1
	c.rest = append(c.rest, b...)
	if !c.greeted && len(c.rest) >= header {
		c.greeted, c.rest = true, c.rest[header:]
	}
	for c.greeted && len(c.rest) >= frameHeader {
		size := int(binary.BigEndian.Uint32(c.rest[3:]))
		if len(c.rest) < frameHeader+size+frameEnd {
			break
		}
		if c.rest[0] == methodFrame {
			c.to.add(binary.BigEndian.Uint32(c.rest[frameHeader:]))
		}
		c.rest = c.rest[frameHeader+size+frameEnd:]
	}

	return c.Conn.Write(b)
}
