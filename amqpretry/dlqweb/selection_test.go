package dlqweb

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestSelection(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	letter := func(uuid, body string, failed time.Time, replays int) *dlq.DeadLetter {
		return &dlq.DeadLetter{UUID: uuid, DeadLetter: retry.DeadLetter{LastFailure: failed, Replays: replays},
			Message: amqp091.Publishing{Body: []byte(body)}}
	}
	counted := letter("a", "body", at, 1)
	filter := selection{identity(counted)}.filter()
	for range 2 { // a run with a canary goes through the queue twice
		assert.True(t, filter.Matches(letter("a", "body", at, 1), at))
	}
	for _, other := range []*dlq.DeadLetter{
		letter("b", "body", at, 1), letter("a", "bodies", at, 1), letter("a", "body", at.Add(time.Millisecond), 1),
		letter("a", "body", at, 2), letter("", "body", at, 1), letter("a", "body", time.Time{}, 1),
	} {
		assert.False(t, filter.Matches(other, at))
	}
	assert.False(t, selection{}.filter().Matches(counted, at))
}
