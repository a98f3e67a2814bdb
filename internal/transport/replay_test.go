package transport

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

// A letter of Watermill's own poison queue keeps what it tells when it is moved or imported.
func TestMovedOfKeepsWatermillsKeys(t *testing.T) {
	d := &amqp091.Delivery{Expiration: "60000", Headers: amqp091.Table{
		"reason_poisoned": "boom", "topic_poisoned": "orders", "handler_poisoned": "charge", "subscriber_poisoned": "amqp.Subscriber",
	}}
	p, fits := MovedOf(d, "orders", 0)
	assert.True(t, fits)
	for key, value := range d.Headers {
		assert.Equal(t, value, p.Headers[key], key)
	}
}
