// Package far makes the way to a broker longer.
package far

import (
	"net"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// Config is that of connections to a broker that is a round trip of this length away; nil for the
// way that there is.
func Config(roundTrip time.Duration) *amqp091.Config {
	if roundTrip == 0 {
		return nil
	}

	return &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
		near, err := amqp091.DefaultDial(30*time.Second)(network, address)
		if err != nil {
			return nil, err
		}
		far := &conn{Conn: near, arrives: make(chan arrival, 1<<14)}
		go far.read(roundTrip)

		return far, nil
	}}
}

// conn is a connection over which all arrives later. Nothing on it is slower, but the answers.
type conn struct {
	net.Conn

	arrives chan arrival
	rest    []byte
	err     error // of the connection; read after arrives
}

type arrival struct {
	at    time.Time
	bytes []byte
}

func (c *conn) read(later time.Duration) {
	defer close(c.arrives)
	for {
		b := make([]byte, 64<<10)
		n, err := c.Conn.Read(b)
		if n > 0 {
			c.arrives <- arrival{time.Now().Add(later), b[:n]}
		}
		if err != nil {
			c.err = err
			return
		}
	}
}

func (c *conn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		a, ok := <-c.arrives
		if !ok {
			return 0, c.err
		}
		<-time.After(time.Until(a.at))
		c.rest = a.bytes
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]

	return n, nil
}
