package dlqcmd

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Errors about the unroutable queue call it that, and keep their types.
func TestErrorsOfTheUnroutableQueue(t *testing.T) {
	refused := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - configure access to queue " +
		"'l.unroutable.lock' in vhost '/' refused for user 'reader'"}
	var access *topology.AccessError
	assert.ErrorAs(t, topology.Explain("", rabbitmq.KindQueue, "l.unroutable.lock", refused), &access)
	err := unroutableError{&dlq.AccessError{Access: access}}
	assert.ErrorContains(t, err, "browsing an unroutable queue takes read on it")
	assert.NotContains(t, err.Error(), "dead-letter")
	assert.ErrorIs(t, err, refused)

	busy := &dlq.BusyError{Queue: "l.unroutable", Lock: "k"}
	err = unroutableError{&cli.ExitError{Code: cli.ExitIncomplete, Err: busy}}
	assert.ErrorContains(t, err, `unroutable queue "l.unroutable": another send, discard or list is at work`)
	var exit *cli.ExitError
	assert.ErrorAs(t, err, &exit)
}

// A routing key with an empty target names none.
func TestEmptyTarget(t *testing.T) {
	ladder := topology.Ladder{Config: config.Ladder{Levels: 2, Radix: 3}.WithDefaults()}
	for key, known := range map[string]bool{
		"0.1.q.orders": true, "0.1.q.": false, "0.1.x.": false, "0.1.x.events.": true, "garbage": false,
	} {
		l := dlq.DeadLetter{CameBy: dlq.Route{RoutingKey: key}}
		_, got := targetOf(ladder, &l)
		assert.Equal(t, known, got, key)
		assert.Equal(t, !known, (&selection{foreign: true}).filter(ladder).Where(&l), key)
		assert.Equal(t, !known, delayedOf(ladder, l).targetText() == "-", key)
	}
}

// A run that does not begin says so once; one that begins soon says nothing.
func TestTellOfWait(t *testing.T) {
	for wait, told := range map[time.Duration]bool{0: false, startWait + 500*time.Millisecond: true} {
		f := orders(deadLetters(1)...)
		f.onReplay = func() { <-time.After(wait) }
		_, _, errs := f.run(t, nil, "purge", "orders", "--all", "--yes", "--no-undo")
		if told {
			assert.Equal(t, "orders.dlq: waiting to begin: another command may be working on this queue\n", errs)
		} else {
			assert.Empty(t, errs)
		}
	}
}
