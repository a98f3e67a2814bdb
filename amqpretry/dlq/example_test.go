package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/retry"
)

// deadLetters makes three dead letters of a queue, as a retrier leaves them there, on the broker at
// AMQP_URI.
func deadLetters() (queue *dlq.Queue, done func()) {
	connection, err := amqp091.Dial(os.Getenv("AMQP_URI"))
	if err != nil {
		panic(err)
	}
	channel, err := connection.Channel()
	if err != nil {
		panic(err)
	}
	client, err := dlq.Open(context.Background(), dlq.Config{URI: os.Getenv("AMQP_URI"), NoDeliveryLimitPolicy: true})
	if err != nil {
		panic(err)
	}
	name := "orders-" + watermill.NewShortUUID()
	queue = client.Queue(name)
	plan, err := topology.New(name, config.Policy{Mode: config.ModeDeadLetter}, topology.Names{})
	if err != nil {
		panic(err)
	}
	quorum := amqp091.Table{amqp091.QueueTypeArg: "quorum"}
	for _, q := range []string{name, parked(queue)} {
		if _, err := channel.QueueDeclare(q, true, false, false, false, quorum); err != nil {
			panic(err)
		}
	}
	if err := plan.Declare(channel); err != nil {
		panic(err)
	}
	_ = channel.Confirm(false)
	for n := 1; n <= 3; n++ {
		confirmed, err := channel.PublishWithDeferredConfirm("", queue.Name(), false, false, deadletter.New(name, n))
		if err != nil || !confirmed.Wait() {
			panic("not published")
		}
	}

	return queue, func() {
		_, _ = channel.QueueDelete(name, false, false, false)
		_, _ = channel.QueueDelete(parked(queue), false, false, false)
		for _, q := range plan.Queues {
			_, _ = channel.QueueDelete(q.Name, false, false, false)
		}
		for _, e := range plan.Exchanges {
			_ = channel.ExchangeDelete(e.Name, false, false)
		}
		_, _ = client.Close(), connection.Close()
	}
}

// parked is another queue, for dead letters that are out of the way.
func parked(queue *dlq.Queue) string { return queue.Name() + ".parked" }

// Browsing takes nothing out, and leaves the order as it is.
func ExampleQueue_Browse() {
	queue, done := deadLetters()
	defer done()

	for deadLetter, err := range queue.Browse(context.Background(),
		dlq.Filter{Reasons: []retry.Reason{retry.ReasonExhausted}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(deadLetter.UUID, deadLetter.Reason, deadLetter.Calls, deadLetter.Error)
	}
	// Output:
	// uuid-1 exhausted 4 card 1 declined
	// uuid-2 exhausted 4 card 2 declined
	// uuid-3 exhausted 4 card 3 declined
}

// Get finds one dead letter by its UUID, and leaves it where it is.
func ExampleQueue_Get() {
	queue, done := deadLetters()
	defer done()

	deadLetter, err := queue.Get(context.Background(), "uuid-2")
	fmt.Println(deadLetter.Position, deadLetter.Error, deadLetter.History[0].Error, err)

	_, err = queue.Get(context.Background(), "uuid-9")
	var notFound *dlq.NotFoundError
	fmt.Println(errors.As(err, &notFound))
	// Output:
	// 2 card 2 declined timeout <nil>
	// true
}

// Move takes dead letters out of the way, with everything that they have: they can be moved back.
func ExampleQueue_Run_move() {
	queue, done := deadLetters()
	defer done()

	report, err := queue.Run(context.Background(), dlq.Plan{Kind: dlq.Move, To: parked(queue), Limit: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	stat, err := queue.Stat(context.Background(), dlq.Filter{})
	fmt.Println(report.Done, stat.Seen, err)
	// Output: 2 1 <nil>
}

// What there is, by reason, handler and error type.
func ExampleQueue_Stat() {
	queue, done := deadLetters()
	defer done()

	stat, err := queue.Stat(context.Background(), dlq.Filter{ErrorContains: "card 2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(stat.Matched, "of", stat.Seen)
	// Output: 1 of 3
}

// A replay sends dead letters back to the queue that has failed them. Nothing is lost: each leaves
// the dead-letter queue when the broker has confirmed its copy, and the undo file has all of them
// as they were.
func ExampleQueue_Run_replay() {
	queue, done := deadLetters()
	defer done()

	var undo bytes.Buffer
	report, err := queue.Run(context.Background(), dlq.Plan{
		Kind:   dlq.Replay,
		Filter: dlq.Filter{UUIDs: []string{"uuid-1", "uuid-3"}},
		Rate:   100, // a second
		Undo:   &undo,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("replayed:", report.Done, "undo lines:", strings.Count(undo.String(), "\n"))
	// Output: replayed: 2 undo lines: 2
}

// An export has everything of each message, and goes back with Import.
func ExampleQueue_Export() {
	queue, done := deadLetters()
	defer done()

	var file bytes.Buffer
	exported, err := queue.Export(context.Background(), &file, dlq.ExportOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	purged, err := queue.Run(context.Background(), dlq.Plan{Kind: dlq.Purge})
	if err != nil {
		fmt.Println(err)
		return
	}
	imported, err := queue.Import(context.Background(), &file, dlq.ImportOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(exported.Done, purged.Done, imported.Done)
	// Output: 3 3 3
}

// Options that cannot be are told before anything happens, all of them at once.
func ExampleFilter_Validate() {
	fmt.Println(dlq.Filter{Reasons: []retry.Reason{"bored"}, OlderThan: -time.Hour}.Validate())
	// Output:
	// Filter.Reasons[0]: must be one of exhausted, permanent, expired, undecodable, panic, crashed, unpublishable, rejected, delivery-limit, maxlen, too-large, postponed-too-long, got "bored"
	// Filter.OlderThan: must be 0 (no bound) or more, got -1h0m0s
}
