package topology_test

import (
	"fmt"

	"github.com/amqpretry/watermill-retry/config/topology"
)

func ExampleProtectPolicy() {
	fmt.Println(topology.ProtectPolicy("/", "orders.eu", "orders.eu.dlq"))
	// Output:
	// # A queue has one policy: of all that match, the one with the highest priority. This one replaces the policy that
	// # applies to the queue today. Look for it, put what it sets into this definition, and if its priority is 100
	// # or more, use a higher one here:
	// #   rabbitmqctl list_queues -p '/' name policy
	// #   rabbitmqctl list_policies -p '/'
	// rabbitmqctl set_policy -p '/' --priority 100 --apply-to queues 'amqpretry.orders.eu' '^orders\.eu$' '{"dead-letter-exchange":"","dead-letter-routing-key":"orders.eu.dlq","dead-letter-strategy":"at-least-once","delivery-limit":1000,"overflow":"reject-publish"}'
}

func ExampleProtectArguments() {
	for argument, value := range topology.ProtectArguments("orders.dlq") {
		fmt.Printf("%s: %#v\n", argument, value)
	}
	// Unordered output:
	// x-queue-type: "quorum"
	// x-dead-letter-exchange: ""
	// x-dead-letter-routing-key: "orders.dlq"
	// x-dead-letter-strategy: "at-least-once"
	// x-overflow: "reject-publish"
	// x-delivery-limit: 1000
}
