package retrier

import (
	"cmp"
	"maps"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// own is c with a copy of what amqp091-go writes into while it connects.
func (c Connection) own() Connection {
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

// inTurn is c, for clients that know one address only, with a dialer that knows them all.
func (c Connection) inTurn(addresses []string) Connection {
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

// ClientConnection says how watermill-amqp's own clients are to connect.
func (r *Retrier) ClientConnection() Connection {
	return r.config.Connection.own().inTurn(r.options.Addresses)
}

func (r *Retrier) connectionSettings(role string) connection.Settings {
	c := r.config.Connection
	// What is left out is the default: a backoff of zero would be a hot loop.
	byDefault := r.config.DefaultReconnect
	reconnect := cmp.Or(c.Reconnect, byDefault)

	return connection.Settings{
		URI:       c.AmqpURI,
		Addresses: r.options.Addresses,
		TLS:       c.TLSConfig,
		AMQP:      c.AmqpConfig,
		Reconnect: connection.Reconnect{
			InitialInterval:     cmp.Or(reconnect.BackoffInitialInterval, byDefault.BackoffInitialInterval),
			MaxInterval:         cmp.Or(reconnect.BackoffMaxInterval, byDefault.BackoffMaxInterval),
			RandomizationFactor: reconnect.BackoffRandomizationFactor,
			Multiplier:          cmp.Or(reconnect.BackoffMultiplier, byDefault.BackoffMultiplier),
		},
		Credentials: r.options.Credentials,
		Role:        role,
		Emit:        r.engine.Emit,
	}
}
