package middleware_test

import (
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/retry"
)

func TestGoexitInAShutdown(t *testing.T) {
	d := newDelivery()
	msg := messageOf(d)

	atGoexit(retrying(func(*message.Message) ([]*message.Message, error) {
		d.withdrawn = true
		runtime.Goexit()
		return nil, nil
	}), msg)

	assert.Equal(t, retry.Verdict{Action: retry.ActionRequeue}, settlement(t, d).Verdict, "nothing is counted")
	assertClosed(t, msg.Nacked())
	assert.Zero(t, d.inside, "it has left")
}
