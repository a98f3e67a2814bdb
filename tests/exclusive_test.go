package tests

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// A queue that somebody else has for himself is no matter of permissions: the error says so, and
// how to find out who it is.
func TestExclusiveToSomebodyElse(t *testing.T) {
	t.Parallel()

	type row struct {
		there     func(*amqp091.Channel, string) error // what somebody else does first
		exclusive bool                                 // what the retrier wants
		owned     bool
		says      string
	}
	each(t, map[string]row{
		"an exclusive consumer": {there: consumes(true), says: "rabbitmqctl list_consumers -p " +
			"'/'"},
		"a consumer, and an exclusive one is wanted": {there: consumes(false), exclusive: true, says: "have neither " +
			"consume exclusively"},
		"an exclusive queue": {owned: true, says: "rabbitmqctl list_queues -p '/' name owner_pid",
			there: func(ch *amqp091.Channel, queue string) error {
				_, err := ch.QueueDeclare(queue, true, false, true, false, nil)
				return err
			}},
	}, func(t *testing.T, _ string, c row) {
		uri, queue := brokertest.URI(t), uniqueName("exclusive")
		broker := newRabbit(t, uri)
		t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.200ms", queue+".dlq") })
		conf := plainConfig(uri, "classic") // quorum queues take any number of exclusive consumers
		conf.Consume.Exclusive = c.exclusive
		retrier := newRetrier(t, conf, amqpretry.Options{Policies: retries(ms(200)...)})
		sub := must(retrier.NewSubscriber())(t)
		if !c.owned {
			require.NoError(t, sub.SubscribeInitialize(queue))
		}
		require.NoError(t, c.there(newRabbit(t, uri).Channel(), queue))

		_, err := sub.Subscribe(t.Context(), queue)
		exclusive := errorAs[*topology.ExclusiveError](t, err)
		t.Log(err)
		assert.Equal(t, []any{queue, "/", c.owned}, []any{exclusive.Queue, exclusive.VirtualHost, exclusive.Owned})
		assert.ErrorContains(t, err, c.says)
		assert.NotContains(t, err.Error(), "permission")
		assert.NotContains(t, err.Error(), "grant")
	})
}

func consumes(exclusively bool) func(*amqp091.Channel, string) error {
	return func(ch *amqp091.Channel, queue string) error {
		_, err := ch.Consume(queue, "", false, exclusively, false, false, nil)
		return err
	}
}
