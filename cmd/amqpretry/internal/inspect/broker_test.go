package inspect

import (
	"errors"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// A refused look names the permission to look, not those of a declaration: nothing was declared.
func TestRefusedLook(t *testing.T) {
	refused := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - configure access to queue " +
		"'l.unroutable' in vhost '/' refused for user 'reader'"} // RabbitMQ 4.3
	found := exists(rabbitmq.KindQueue, "l.unroutable", refused)
	assert.False(t, found.Known)
	assert.Equal(t, notPermitted, found.Why)
	var access *topology.AccessError
	if assert.ErrorAs(t, found.Err, &access) {
		assert.Equal(t, rabbitmq.UseLook, access.Use)
	}
	assert.ErrorContains(t, found.Err, `no configure permission for user "reader" to read its depth; grant it`)
	assert.NotContains(t, found.Err.Error(), "declaring")

	lost := errors.New("connection lost")
	assert.Equal(t, lost, exists(rabbitmq.KindQueue, "q", lost).Err)
	assert.Equal(t, Known(false), exists(rabbitmq.KindQueue, "q", &amqp091.Error{Code: amqp091.NotFound}))
	assert.Equal(t, Known(true), exists(rabbitmq.KindQueue, "q", &amqp091.Error{Code: amqp091.ResourceLocked}))
}
