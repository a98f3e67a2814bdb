package tests

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// What docs/how-to/operate-exact-delays.md says of unroutable messages: they come without a landing
// queue, and go on by hand, as retries through the landing queue, and as fresh messages straight to
// the main queue.
func TestExactDelays_UnroutableByHand(t *testing.T) {
	t.Parallel()
	c := setup{Queue: uniqueName("promise")}
	c.Options.Policies = exact(ms(300)...)
	c.Options.Policies.Default.Ladder = ownLadder()
	c.Handler = func(*message.Message) error { return errNever }
	first := start(t, c)
	plan := must(first.Retrier.Plan(c.Queue))(t)
	landing, unroutable := c.Queue+".landing", plan.Ladder.Name()+".unroutable"
	first.Broker.Do(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(landing, false, false, false)
		return err
	})
	first.publish("landing", "direct")
	stuck := first.Broker.Take(unroutable, 2)
	require.Len(t, stuck, 2)
	first.close()
	c.Handler = succeed
	second := start(t, c) // declares the landing queue again
	for _, d := range stuck {
		assert.Regexp(t, `^0\.0\.3\.q\.`+c.Queue+`$`, d.RoutingKey, "it names the target")
		key := c.Queue
		if rabbit.UUID(d) == "landing" {
			key = landing
		}
		second.Broker.PublishTo("", key, amqp091.Publishing{
			Headers: d.Headers, DeliveryMode: d.DeliveryMode, Body: d.Body,
		})
	}
	await.Until(t, func() bool { return len(second.Calls.All()) == 2 }, "both arrive")
	assert.Equal(t, []int{2}, second.Calls.attempts("landing"), "a retry")
	assert.Equal(t, []int{1}, second.Calls.attempts("direct"), "a fresh message")
}
