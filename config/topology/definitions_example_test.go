package topology_test

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func ExampleDefinitions() {
	plan, err := topology.New("orders", config.Policy{Mode: config.ModeOff}, topology.Names{})
	if err != nil {
		panic(err)
	}
	file, err := topology.Definitions("shop",
		topology.MainQueue{Plan: plan, Arguments: amqp.Table{"x-queue-type": "quorum"}})
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
	//       "vhost": "shop",
	//       "durable": true,
	//       "auto_delete": false,
	//       "arguments": {
	//         "x-queue-type": "quorum"
	//       }
	//     }
	//   ],
	//   "bindings": []
	// }
}
