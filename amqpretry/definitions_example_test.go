package amqpretry_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
)

// A file for rabbitmqctl import_definitions, for a service that may configure nothing.
func ExampleRetrier_Definitions() {
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{
		AssumeTopology: true,
		Policies: config.Policies{
			Default: config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared},
		},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	file, err := retrier.Definitions("orders")
	if err != nil {
		panic(err)
	}
	fmt.Print(string(file))
	// Output:
	// {
	//   "exchanges": [],
	//   "queues": [
	//     {
	//       "name": "orders",
	//       "vhost": "/",
	//       "durable": true,
	//       "auto_delete": false,
	//       "arguments": {}
	//     },
	//     {
	//       "name": "orders.dlq",
	//       "vhost": "/",
	//       "durable": true,
	//       "auto_delete": false,
	//       "arguments": {
	//         "x-delivery-limit": 2147483647,
	//         "x-queue-leader-locator": "balanced",
	//         "x-queue-type": "quorum"
	//       }
	//     }
	//   ],
	//   "bindings": []
	// }
}
