package amqpretry_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
)

// A quorum queue that exists: an operator sets a policy of the broker.
func ExampleRetrier_ProtectPolicy() {
	conf := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/shop")
	conf.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	retrier, err := amqpv2.New(conf, amqpretry.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	policy, err := retrier.ProtectPolicy("orders.eu")
	if err != nil {
		panic(err)
	}
	fmt.Println(policy.Pattern)
	fmt.Println(policy.ClearCommand())
	// policy.String() is what to give to the operator.
	// Output:
	// ^orders\.eu$
	// rabbitmqctl clear_policy -p 'shop' 'amqpretry.orders.eu'
}

// A new quorum queue: it is declared with the protection. What the config says otherwise is
// refused.
func ExampleRetrier_protectionArguments() {
	conf := amqp.NewDurableQueueConfig(exampleURI)
	conf.Queue.Arguments = amqp091.Table{"x-overflow": "drop-head"}
	_, err := amqpv2.New(conf, amqpretry.Options{Policies: config.Policies{
		Topics: map[string]config.Policy{"orders": {Protect: config.ProtectionArguments}},
	}})
	fmt.Println(err)
	// Output:
	// invalid config of the retrier:
	// Config.Queue.Arguments["x-overflow"]: differs from the protection that Options.Policies.Topics["orders"] asks for (protect: arguments): must be left out, or "reject-publish", got "drop-head"
}
