package retire_test

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

func ExampleObsolete() {
	old, _ := topology.New("orders",
		config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second, 10 * time.Minute}}, topology.Names{})
	now, _ := topology.New("orders", config.Policy{Delays: []time.Duration{time.Second, time.Minute}}, topology.Names{})
	for _, queue := range retire.Obsolete([]topology.Plan{now}, old) {
		fmt.Println(queue.Name, queue.Delay)
	}
	// Output:
	// orders.retry.30s 30s
	// orders.retry.10m 10m0s
}
