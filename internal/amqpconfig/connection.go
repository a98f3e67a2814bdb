package amqpconfig

import (
	"maps"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Own is c with a copy of what amqp091-go writes into while it connects.
//
// Upstream: Dial writes into the properties of its caller.
func (c Connection) Own() Connection {
	if c.AmqpConfig != nil {
		own := *c.AmqpConfig
		own.Properties = maps.Clone(own.Properties)
		if own.TLSClientConfig != nil {
			own.TLSClientConfig = own.TLSClientConfig.Clone()
		}
		c.AmqpConfig = &own
	}
	if c.TLSConfig != nil {
		c.TLSConfig = c.TLSConfig.Clone()
	}

	return c
}

// InTurn is c, for clients that know one address only, with a dialer that knows them all.
func (c Connection) InTurn(addresses []string) Connection {
	if len(addresses) == 0 {
		return c
	}

	own := amqp091.Config{}
	if c.AmqpConfig != nil {
		own = *c.AmqpConfig
	}
	if c.TLSConfig == nil {
		c.TLSConfig = own.TLSClientConfig
	}
	plain, dial, err := connection.DialInTurn(c.AmqpURI, addresses, c.TLSConfig, own.Dial)
	if err != nil {
		return c // it is not readable to the client either: its error comes from there
	}
	own.Dial, own.TLSClientConfig = dial, nil
	c.AmqpURI, c.AmqpConfig, c.TLSConfig = plain, &own, nil

	return c
}
