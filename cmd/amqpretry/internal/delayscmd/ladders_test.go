package delayscmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The default ladder for retries may be used by retries, whose services declare it again, and by
// delayed publishing.
func TestWhatDeclaresALadder(t *testing.T) {
	const service, publish = "each minute while messages of it wait", "the next delayed publish"
	s := &cli.Session{Getenv: func(string) string { return "" }}
	all, err := (&ladders{s}).candidates()
	assert.NoError(t, err)
	for _, c := range append(all, candidate{use: retries}, candidate{}) {
		name := c.Name()
		assert.Equal(t, c.use != delayed, strings.Contains(c.declare(), service), name)
		assert.Equal(t, c.use != retries, strings.Contains(c.declare(), publish), name)
		if c.use == delayed {
			assert.Equal(t, topology.Ladder{Config: config.ScheduleLadder()}.Name(), name)
		}
	}
	assert.Len(t, all, 2)
}

// A refused count names the permission to look, not those of a declaration: nothing was declared.
func TestRefusedCount(t *testing.T) {
	refused := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - configure access to queue " +
		"'l.unroutable' in vhost '/' refused for user 'reader'"} // RabbitMQ 4.3
	err := notCounted("l.unroutable", refused)
	var access *topology.AccessError
	if assert.ErrorAs(t, err, &access) {
		assert.Equal(t, rabbitmq.UseLook, access.Use)
	}
	assert.ErrorContains(t, err, `no configure permission for user "reader" to read its depth; grant it`)
	assert.NotContains(t, err.Error(), "declaring")

	lost := errors.New("connection lost")
	assert.EqualError(t, notCounted("q", lost), `cannot count the messages of queue "q": connection lost`)
}
