package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/retry"
)

// A broker may take no further connection. Then the queue is consumed from over that of all.
func TestTroubleWithoutAnotherConnection(t *testing.T) {
	settings := connection.Settings{URI: "amqp://127.0.0.1:1/", Emit: func(retry.Event) {}}
	all := connection.New(settings, watermill.NopLogger{})
	all.Close(time.Now())
	s := &subscription{consumer: &Consumer{base: &base{connection: all}}, logger: watermill.NopLogger{},
		trouble: trouble{losses: manyLosses, own: connection.New(settings, watermill.NopLogger{})}}
	_, err := s.trouble.link(t.Context(), s)
	assert.ErrorIs(t, err, connection.ErrClosed, "that of all")
	assert.Equal(t, trouble{}, s.trouble)
}

func TestIsProtocol(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"an error of the broker's own":  {&amqp091.Error{Code: amqp091.InternalError, Server: true}, true},
		"a frame that it does not take": {&amqp091.Error{Code: amqp091.FrameError, Server: true}, true},
		"one that we do not take":       {amqp091.ErrFrame, true},
		"the network":                   {&amqp091.Error{Code: amqp091.FrameError, Reason: "EOF"}, false},
		"an operator":                   {&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, false},
		"credentials":                   {&amqp091.Error{Code: amqp091.NotAllowed, Server: true}, false},
		"something else":                {errors.New("EOF"), false},
		"nothing":                       {nil, false},
	} {
		assert.Equal(t, test.want, isProtocol(test.err), name)
	}
}
