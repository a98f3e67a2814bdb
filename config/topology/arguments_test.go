package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// arguments lists what is declared with its Go types, on which the types on the wire depend.
func arguments(plan topology.Plan) string {
	var b strings.Builder
	list := func(args amqp.Table) {
		for _, key := range slices.Sorted(maps.Keys(args)) {
			fmt.Fprintf(&b, "  %s %T %v\n", key, args[key], args[key])
		}
	}
	for _, x := range plan.Exchanges {
		fmt.Fprintf(&b, "exchange %s %s\n", x.Name, x.Type)
	}
	for _, q := range plan.Queues {
		fmt.Fprintf(&b, "queue %s\n", q.Name)
		list(q.Arguments)
	}
	for _, x := range plan.Bindings {
		fmt.Fprintf(&b, "binding %s %q %s\n", x.Exchange, x.Key, x.Queue)
		list(x.Arguments)
	}
	return b.String()
}

// RabbitMQ refuses to declare a queue with other arguments than it has: what was declared once
// under a name stays so for ever, by all versions of this library, on all versions of the broker.
// Who changes one of these breaks every service at its next start: it takes a new name.
func TestArgumentsStayForEver(t *testing.T) {
	const (
		deadLetters = `queue orders.dlq
  x-delivery-limit int64 2147483647
  x-queue-leader-locator string balanced
  x-queue-type string quorum
`
		endBinding = `binding %s "" orders.dlq
  amqpretry-count string -1
  x-match string all
`
	)
	for _, test := range []struct {
		name   string
		policy config.Policy
		want   string
	}{
		{"own, quorum", config.Policy{}, `exchange orders.retry headers
queue orders.retry.1500ms
  x-dead-letter-exchange string ` + `
  x-dead-letter-routing-key string orders
  x-dead-letter-strategy string at-least-once
  x-delivery-limit int64 2147483647
  x-message-ttl int64 1500
  x-overflow string reject-publish
  x-queue-leader-locator string balanced
  x-queue-type string quorum
` + deadLetters + `binding orders.retry "" orders.retry.1500ms
  amqpretry-delay string 1500ms
  x-match string all
` + fmt.Sprintf(endBinding, "orders.retry")},
		{"own, classic", config.Policy{ClassicQueues: true}, `exchange orders.retry.classic headers
queue orders.retry.1500ms.classic
  x-dead-letter-exchange string ` + `
  x-dead-letter-routing-key string orders
  x-message-ttl int64 1500
  x-queue-type string classic
` + deadLetters + `binding orders.retry.classic "" orders.retry.1500ms.classic
  amqpretry-delay string 1500ms
  x-match string all
` + fmt.Sprintf(endBinding, "orders.retry.classic")},
		{"shared, quorum", config.Policy{Strategy: config.StrategyShared}, `exchange retry headers
exchange retry.return direct
queue retry.1500ms
  x-dead-letter-exchange string retry.return
  x-dead-letter-strategy string at-least-once
  x-delivery-limit int64 2147483647
  x-message-ttl int64 1500
  x-overflow string reject-publish
  x-queue-leader-locator string balanced
  x-queue-type string quorum
` + deadLetters + `binding retry "" retry.1500ms
  amqpretry-delay string 1500ms
  x-match string all
binding retry.return "orders" orders
`},
		{"shared, classic", config.Policy{Strategy: config.StrategyShared, ClassicQueues: true},
			`exchange retry.classic headers
exchange retry.return direct
queue retry.1500ms.classic
  x-dead-letter-exchange string retry.return
  x-message-ttl int64 1500
  x-queue-type string classic
` + deadLetters + `binding retry.classic "" retry.1500ms.classic
  amqpretry-delay string 1500ms
  x-match string all
binding retry.return "orders" orders
`},
		{"dead letters only", config.Policy{Mode: config.ModeDeadLetter}, "exchange orders.retry headers\n" +
			deadLetters + fmt.Sprintf(endBinding, "orders.retry")},
		{"dead letters only, shared", config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared},
			deadLetters},
		{"off", config.Policy{Mode: config.ModeOff}, ""},
	} {
		if test.policy.Mode == "" {
			test.policy.Delays = []time.Duration{1500 * time.Millisecond}
		}
		assert.Equal(t, test.want, arguments(mustPlan(t, "orders", test.policy)), test.name)
	}
	assert.Equal(t, amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": int64(1000),
	}, topology.ProtectArguments("orders.dlq"))
}
