// Package deadletter makes dead letters for tests: messages as the retrier leaves them in a
// dead-letter queue.
package deadletter

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Died is when the first attempt of every [State] failed.
var Died = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// State is what the headers of the nth dead letter of a queue say: a message that exhausted its
// policy, and failed for the last time n seconds after [Died].
func State(queue string, n int) wire.State {
	return wire.State{
		Count: header.CountDead, Attempts: 4, Queue: queue, Topic: queue, Handler: "charge", Host: "host-1",
		Arrival:      wire.NewArrival("events", "order.created", "", "", ""),
		FirstFailure: Died, LastFailure: Died.Add(time.Duration(n) * time.Second),
		Reason: retry.ReasonExhausted, Error: fmt.Sprintf("card %d declined", n), ErrorType: "*cards.DeclinedError",
		History: []retry.FailedCall{{Number: 1, At: Died, Error: "timeout", Type: "*url.Error"}},
	}
}

// Message is a dead letter with that state, UUID and body.
func Message(state wire.State, uuid, body string) amqp091.Publishing {
	message := rabbit.Message(uuid, body)
	message.ContentType = "application/json"
	for key, value := range state.Headers(uuid) {
		message.Headers[key] = value
	}

	return message
}

// New is the nth dead letter of a queue: its UUID is "uuid-n", its body [Body], and its header
// "tenant" n modulo 3.
func New(queue string, n int) amqp091.Publishing { return Of(State(queue, n), n) }

// Of is [New] with a state of the test's own.
func Of(state wire.State, n int) amqp091.Publishing {
	message := Message(state, "uuid-"+strconv.Itoa(n), Body(n))
	message.Headers["tenant"] = int64(n % 3)

	return message
}

// Body is the body of the nth dead letter.
func Body(n int) string { return fmt.Sprintf(`{"n":%d}`, n) }

// Bodies are the bodies of the first n dead letters.
func Bodies(n int) []string {
	bodies := make([]string, n)
	for i := range bodies {
		bodies[i] = Body(i)
	}

	return bodies
}

// Queue returns the name and the arguments of the dead-letter queue that the library declares for a
// main queue.
func Queue(t testing.TB, main string) (name string, arguments amqp091.Table) {
	t.Helper()
	onlyDead := config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared}
	plan, err := topology.New(main, onlyDead, topology.Names{})
	require.NoError(t, err)

	return plan.Queues[0].Name, plan.Queues[0].Arguments
}

// Fill declares a quorum queue and its dead-letter queue, and puts the first dead letters into the
// latter. Their bodies are padded to bodySize bytes.
func Fill(t testing.TB, broker *rabbit.Client, main string, messages, bodySize int) (dead string) {
	t.Helper()
	const batch = 1000
	dead, arguments := Queue(t, main)
	broker.Declare(main, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	broker.Declare(dead, arguments)
	for first := 0; first < messages; first += batch {
		var letters []amqp091.Publishing
		for n := first; n < min(first+batch, messages); n++ {
			letter := New(main, n)
			letter.Body = append(letter.Body, strings.Repeat(" ", max(0, bodySize-len(letter.Body)))...)
			letters = append(letters, letter)
		}
		broker.Publish(dead, letters...)
	}
	broker.Has(dead, messages)

	return dead
}
