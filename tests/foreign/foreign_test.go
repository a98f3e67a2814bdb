//go:build foreign

package foreign

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

const (
	processors = 3
	consumers  = 2 // of each language
	prefetch   = 20
	policies   = "default: {delays: [200ms, 500ms]}"
)

func bodyOf(id string) string { return `{"order":"` + id + `"}` }

// Messages that consumers in Python and JavaScript reject are retried and dead-lettered while processors are killed
// (SIGKILL), closed (SIGTERM), and a consumer dies now and then: none is lost.
func TestForeignConsumers(t *testing.T) {
	broker := rabbit.New(t, brokertest.URI(t))
	messages := env.Int(t, "MESSAGES", 2000)
	random, seed := env.Random(t)
	command := filepath.Join(t.TempDir(), "amqpretry")
	out, err := exec.Command("go", "build", "-o", command, "../../cmd/amqpretry").CombinedOutput()
	require.NoError(t, err, string(out))
	file := filepath.Join(t.TempDir(), "retry.yaml")
	require.NoError(t, os.WriteFile(file, []byte(policies), 0o600))

	table := report.Table{
		Title: "Consumers in other languages",
		Notes: []string{fmt.Sprintf("RabbitMQ %s, seed %d, %d processors with prefetch %d.", broker.Version(), seed,
			processors, prefetch)},
		Head: []string{"language", "messages", "deliveries", "handled", "dead letters", "lost", "doubled",
			"processors killed", "closed", "consumers killed"},
	}
	for _, c := range []client{python(t), javascript(t)} {
		t.Run(c.language, func(t *testing.T) {
			w := newWorld(t, broker, c, command, file)
			w.publish(messages)
			w.disturb(random)
			w.judge(&table)
		})
	}
	report.Write(t, table.String())
}

// world is a queue with its consumers and processors.
type world struct {
	t         *testing.T
	broker    *rabbit.Client
	client    client
	command   []string
	main      string
	heard     *heard
	consumers []*process
	running   []*process
	ids       []string
	published chan struct{}

	killed, closed, died int
}

func newWorld(t *testing.T, broker *rabbit.Client, c client, command, file string) *world {
	t.Helper()
	main := strings.ToLower(c.language) + "-" + watermill.NewShortUUID()
	failed := main + ".failed"
	broker.Declare(failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)})
	broker.Declare(main, amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": failed,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		"x-delivery-limit": int64(2147483647), // consumers are killed
	})
	plan, err := topology.New(main, config.Policy{Delays: []time.Duration{200 * time.Millisecond,
		500 * time.Millisecond}}, topology.Names{})
	require.NoError(t, err)
	t.Cleanup(func() { broker.RemovePlan(plan) })

	w := &world{t: t, broker: broker, client: c, main: main, published: make(chan struct{}),
		heard: &heard{t: t, done: map[string]int{}, seen: map[string]int{}},
		command: []string{command, "processor", "--policies", file, "--queues", failed + "=" + main, "--prefetch",
			fmt.Sprint(prefetch)}}
	for range processors {
		w.running = append(w.running, w.process())
	}
	for range consumers {
		w.consumers = append(w.consumers, w.consume())
	}

	return w
}

func (w *world) process() *process {
	w.t.Helper()
	environ := slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "AMQP") })
	p := start(w.t, func(string) {}, append(environ, "AMQP_URI="+w.broker.URI), w.command...)
	p.says(w.t, "msg=Consuming")

	return p
}

func (w *world) consume() *process {
	w.t.Helper()
	p := start(w.t, w.heard.hear, w.client.env, append(slices.Clone(w.client.command), w.broker.URI, w.main)...)
	p.says(w.t, map[string]string{"Python": "pika ", "JavaScript": "amqplib "}[w.client.language])

	return p
}

// publish publishes messages over some seconds, beside the rest.
func (w *world) publish(n int) {
	kinds := []string{"ok", "once", "twice", "never", "ok"}
	for i := range n {
		w.ids = append(w.ids, fmt.Sprintf("%s-%d", kinds[i%len(kinds)], i))
	}
	go func() {
		defer close(w.published)
		for ids := range slices.Chunk(w.ids, 50) {
			var messages []amqp091.Publishing
			for _, id := range ids {
				messages = append(messages, amqp091.Publishing{MessageId: id, DeliveryMode: amqp091.Persistent,
					Body: []byte(bodyOf(id)), Headers: amqp091.Table{"tenant": "acme"}})
			}
			if err := w.broker.TryPublish("", w.main, messages...); err != nil {
				w.t.Errorf("publish: %v", err)
			}
			<-time.After(300 * time.Millisecond)
		}
	}()
}

// disturb ends processors and consumers, and starts others in their place, while messages are published.
func (w *world) disturb(random *rand.Rand) {
	w.t.Helper()
	for {
		select {
		case <-w.published:
			return
		case <-time.After(time.Duration(random.IntN(300)) * time.Millisecond):
		}
		i := random.IntN(len(w.running))
		switch random.IntN(4) {
		case 0:
			w.running[i].exit(w.t)
			w.closed++
		case 1:
			c := random.IntN(len(w.consumers))
			w.consumers[c].kill()
			w.died++
			w.consumers[c] = w.consume()
			continue
		default:
			w.running[i].kill()
			w.killed++
		}
		w.running[i] = w.process()
	}
}

// judge waits until each message has met its fate, and counts.
func (w *world) judge(table *report.Table) {
	w.t.Helper()
	letters := map[string]int{}
	isNever := func(id string) bool { return strings.HasPrefix(id, "never-") }
	lost := func() (missing []string) {
		for _, d := range w.broker.Drain(w.main + ".dlq") {
			letters[d.MessageId]++
			assert.Equal(w.t, []string{"rejected", "3", bodyOf(d.MessageId)}, []string{
				rabbit.Text(d, header.Reason), rabbit.Text(d, header.Attempts), string(d.Body)}, d.MessageId)
		}
		for _, id := range w.ids {
			if isNever(id) && letters[id] == 0 || !isNever(id) && w.heard.doneOf(id) == 0 {
				missing = append(missing, id)
			}
		}
		return missing
	}
	await.Until(w.t, func() bool { return len(lost()) == 0 }, "every message is handled or in the dead-letter queue")
	for _, p := range w.running {
		p.exit(w.t)
	}
	missing, handled, doubled := lost(), 0, 0
	for _, id := range w.ids {
		if isNever(id) {
			doubled += max(letters[id]-1, 0)
			assert.Zero(w.t, w.heard.doneOf(id), id)
			continue
		}
		assert.Zero(w.t, letters[id], id)
		handled++
		doubled += max(w.heard.doneOf(id)-1, 0)
	}
	table.Add(w.client.language, len(w.ids), w.heard.all, handled, len(letters), len(missing), doubled, w.killed,
		w.closed, w.died)
	assert.Empty(w.t, missing, "lost")
	assert.NotZero(w.t, w.killed+w.closed)
	// Each SIGKILL can double the deliveries that were in flight in its process.
	assert.LessOrEqual(w.t, doubled, prefetch*(w.killed+w.died))
	w.broker.Has(w.main+".failed", 0)
}
