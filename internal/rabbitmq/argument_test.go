package rabbitmq_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func TestSameArgument(t *testing.T) {
	assert.True(t, rabbitmq.SameArgument(1000, int64(1000)), "another width")
	assert.True(t, rabbitmq.SameArgument("quorum", "quorum"))
	assert.True(t, rabbitmq.SameArgument(nil, nil))
	assert.False(t, rabbitmq.SameArgument(20, int64(1000)))
	assert.False(t, rabbitmq.SameArgument("1000", int64(1000)), "a number as text")
	assert.False(t, rabbitmq.SameArgument([]byte("reject-publish"), "reject-publish"), "bytes")
	assert.False(t, rabbitmq.SameArgument(nil, int64(1000)))
}
