package publish

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

func TestRefusals(t *testing.T) {
	link, other := &connection.Link{}, &connection.Link{}
	var r refusals
	large := &amqp091.Publishing{Body: make([]byte, 101)}
	assert.Nil(t, r.of(link, large), "nobody knows yet")
	assert.False(t, r.learn(link, &amqp091.Error{Reason: "PRECONDITION_FAILED - invalid expiration"}))
	assert.True(t, r.learn(link, &amqp091.Error{
		Reason: "PRECONDITION_FAILED - message size 200 is larger than configured max size 100"}))
	assert.ErrorContains(t, r.of(link, large), "message size 101 is larger than configured max size 100 (not sent)")
	assert.Nil(t, r.of(link, &amqp091.Publishing{Body: make([]byte, 100)}))
	assert.Nil(t, r.of(other, large), "a broker that was configured anew")

	for _, fine := range []amqp091.Publishing{
		{Expiration: "0"}, {Expiration: "60000"}, {Expiration: "+5"},
		{Headers: amqp091.Table{"CC": []any{"a"}, "BCC": []any{}}},
	} {
		assert.Nil(t, r.of(link, &fine))
	}
	for _, refused := range []amqp091.Publishing{
		{Expiration: "soon"}, {Expiration: "-1"}, {Expiration: "1.5"}, {Headers: amqp091.Table{"CC": "a"}},
		{Headers: amqp091.Table{"BCC": nil}},
	} {
		assert.NotNil(t, r.of(link, &refused))
	}
}
