package topology_test

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func ExampleNew() {
	plan, err := topology.New("orders", config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}},
		topology.Names{})
	if err != nil {
		panic(err)
	}
	for _, queue := range plan.Queues {
		fmt.Println(queue.Name, queue.Delay)
	}
	// Output:
	// orders.retry.1s 1s
	// orders.retry.30s 30s
	// orders.dlq 0s
}

func ExampleNames() {
	names := topology.Names{
		RetryQueue: func(p topology.RetryQueueParams) string { return "retry/" + p.Delay + "/" + p.Queue },
	}
	plan, err := topology.New("orders", config.Policy{Delays: []time.Duration{time.Minute}}, names)
	if err != nil {
		panic(err)
	}
	fmt.Println(plan.Queues[0].Name)
	// Output: retry/1m/orders
}

func ExampleCheck() {
	dead := topology.Names{DeadLetterQueue: func(string) string { return "dead" }}
	orders, _ := topology.New("orders", config.Policy{}, dead)
	emails, _ := topology.New("emails", config.Policy{}, dead)
	fmt.Println(topology.Check(orders, emails))
	// Output: topology of queue "emails": queue "dead": belongs to the topology of queue "orders"; give another name through Names
}

func ExamplePlan_Mermaid() {
	plan, err := topology.New("orders", config.Policy{Mode: config.ModeDeadLetter}, topology.Names{})
	if err != nil {
		panic(err)
	}
	fmt.Print(plan.Mermaid())
	// Output:
	// flowchart LR
	//     publisher(["publisher"]) --> main["orders"]
	//     main --> consumer(["consumer"])
	//     exchange1{{"orders.retry"}}
	//     consumer -- "failed" --> exchange1
	//     queue1[("orders.dlq")]
	//     exchange1 -- "amqpretry-count: -1" --> queue1
}

func ExampleExplain() {
	err := topology.Explain("", rabbitmq.KindQueue, "orders", &amqp.Error{Code: amqp.AccessRefused,
		Reason: "ACCESS_REFUSED - configure access to queue 'orders.dlq' in vhost '/' refused for user 'worker'"})
	var access *topology.AccessError
	if errors.As(err, &access) {
		fmt.Println(access.User, "may not", access.Permission, access.Kind, access.Name)
	}
	// Output: worker may not configure queue orders.dlq
}
