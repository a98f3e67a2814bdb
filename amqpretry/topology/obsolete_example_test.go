package topology_test

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

func ExampleObsolete() {
	old, _ := topology.New("orders", config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second, 10 * time.Minute}}, topology.Names{})
	now, _ := topology.New("orders", config.Policy{Delays: []time.Duration{time.Second, time.Minute}}, topology.Names{})
	for _, queue := range topology.Obsolete([]topology.Plan{now}, old) {
		fmt.Println(queue.Name, queue.Delay)
	}
	// Output:
	// orders.retry.30s 30s
	// orders.retry.10m 10m0s
}

func ExampleRetireCommands() {
	old, _ := topology.New("orders", config.Policy{Delays: []time.Duration{30 * time.Second}}, topology.Names{})
	now, _ := topology.New("orders", config.Policy{Mode: config.ModeDeadLetter}, topology.Names{})
	commands, err := topology.RetireCommands("/", topology.Obsolete([]topology.Plan{now}, old)...)
	if err != nil {
		panic(err)
	}
	fmt.Print(commands)
	// Output:
	// # Deletes retry queues that no policy uses any more, each only if it is empty.
	// # First make sure that no instance with an old policy runs any more, as the queues stay bound until then.
	// # Then wait 30s and half a minute, until what still waits in them is back in its main queue.
	// # Run this while no node of the broker restarts. It takes about 15 seconds for each queue.
	// amqpretry_retire() (
	// 	vhost=$1 queue=$2
	// 	shift 2
	// 	for pause in 6 6 0; do
	// 		if ! { rows=$(rabbitmqctl list_queues --vhost="$vhost" messages consumers name </dev/null) &&
	// 			printf '%s\n' "$rows" | LC_ALL=C grep -qxF -e "$(printf '0\t0\t%s' "$queue")"; }; then
	// 			printf 'kept, as it is not there, not empty, in use or down: %s\n' "$queue" >&2
	// 			exit 1
	// 		fi
	// 		sleep "$pause"
	// 	done
	// 	rabbitmqctl delete_queue --vhost="$vhost" "$@" -- "$queue" </dev/null
	// )
	// amqpretry_retire '/' 'orders.retry.30s'
}
