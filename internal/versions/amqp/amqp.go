// Package amqp is watermill-amqp: v2, or with the build tag amqpv3 v3. Tests that import it go over
// both.
package amqp

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
)

// Builder is a topology builder of a function; exchanges are declared as usual.
type Builder func(channel *amqp091.Channel, queue, exchange string, conf Config, logger watermill.LoggerAdapter) error

// ExchangeDeclare declares an exchange.
func (Builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, conf Config) error {
	return (&DefaultTopologyBuilder{}).ExchangeDeclare(channel, exchange, conf)
}
