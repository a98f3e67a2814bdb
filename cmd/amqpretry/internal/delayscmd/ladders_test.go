package delayscmd

import (
	"errors"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// A refused count names the permission to look, not those of a declaration: nothing was declared.
func TestRefusedCount(t *testing.T) {
	refused := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - configure access to queue " +
		"'l.unroutable' in vhost '/' refused for user 'reader'"} // RabbitMQ 4.3
	err := notCounted("l.unroutable", refused)
	var access *topology.AccessError
	if assert.ErrorAs(t, err, &access) {
		assert.Equal(t, topology.UseLook, access.Use)
	}
	assert.ErrorContains(t, err, `no configure permission for user "reader" to read its depth; grant it`)
	assert.NotContains(t, err.Error(), "declaring")

	lost := errors.New("connection lost")
	assert.EqualError(t, notCounted("q", lost), `cannot count the messages of queue "q": connection lost`)
}
