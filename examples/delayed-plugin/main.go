// Delayed-plugin shows a service on its way from the delayed-message-exchange plugin to retries
// without a plugin. Look at
//
//   - before.go, how such a service delays a message. It is compiled but not run here: the plugin
//     is archived, and RabbitMQ 4.3 cannot load it,
//   - after.go, the service with the retrier: each retry waits exactly as long as with the plugin,
//     and order-2 is published with a delay.
//
// docs/how-to/leave-the-delayed-plugin.md has the steps. Switch the plugin off only after its
// exchange has delivered everything: messages that wait in it are in no queue, and are lost with
// it. The management UI shows their number.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	conf := amqp.NewDurableQueueConfig(uri)
	topic := "orders-" + watermill.NewShortUUID()
	// A service leaves Ladder out, and shares the default one. This program deletes its own at its
	// end.
	policy := policy
	policy.Ladder = config.Ladder{Prefix: topic + ".delay", Unit: 100 * time.Millisecond, Radix: 10, Levels: 2}
	defer tidy.Ladder(uri, policy.Ladder) // no service deletes its queues
	defer tidy.Topic(uri, topic, policy)

	return after(ctx, conf, topic, policy, out)
}

// delays are those after the first, second and third failure.
var delays = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// policy has the plugin's delays. Exact means that any of them works, as with the plugin, and none
// needs a queue.
var policy = config.Policy{Delays: delays, Strategy: config.StrategyLadder}

// ship is the handler. It fails twice.
func ship(out io.Writer, attempt int, msg *message.Message) error {
	if attempt <= 2 {
		fmt.Fprintf(out, "%s: attempt %d, failed\n", msg.UUID, attempt)
		return errors.New("the warehouse does not answer")
	}
	fmt.Fprintf(out, "%s: attempt %d, shipped\n", msg.UUID, attempt)

	return nil
}
