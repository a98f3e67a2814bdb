//go:build foreign

package foreign

import (
	"errors"
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
// (SIGKILL), closed (SIGTERM), and a consumer dies now and then: none is lost. Two main queues that share a failed queue
// get back their own messages: one dead-letters by the default exchange, the other one by a topic exchange with its name
// as the routing key.
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
		Head: []string{"language", "main queues", "messages", "deliveries", "handled", "dead letters", "lost",
			"doubled", "processors killed", "closed", "consumers killed"},
	}
	for _, c := range []client{python(t), javascript(t)} {
		for _, mains := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d", c.language, mains), func(t *testing.T) {
				w := newWorld(t, broker, c, mains, command, file)
				w.publish(messages)
				w.disturb(random)
				w.judge(&table)
			})
		}
	}
	report.Write(t, table.String())
}

// world is a failed queue with its main queues, their consumers, and processors.
type world struct {
	t         *testing.T
	broker    *rabbit.Client
	client    client
	command   []string
	failed    string
	queues    []*queue
	running   []*process
	published chan struct{}

	killed, closed, died int
}

// queue is a main queue.
type queue struct {
	name      string
	heard     *heard
	consumers []*process
	ids       []string
}

func newWorld(t *testing.T, broker *rabbit.Client, c client, mains int, command, file string) *world {
	t.Helper()
	name := strings.ToLower(c.language) + "-" + watermill.NewShortUUID()
	w := &world{t: t, broker: broker, client: c, failed: name + ".failed", published: make(chan struct{}),
		command: []string{command, "processor", "--policies", file, "--prefetch", fmt.Sprint(prefetch)}}
	broker.Declare(w.failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)})
	exchange := name + ".dlx"
	broker.Do(func(c *amqp091.Channel) error {
		return errors.Join(c.ExchangeDeclare(exchange, "topic", true, false, false, false, nil),
			c.QueueBind(w.failed, "#", exchange, false, nil))
	})
	t.Cleanup(func() { broker.Remove(exchange) })
	for i, target := range [][2]string{{"", w.failed}, {exchange, name + "-1"}}[:mains] {
		w.addQueue(fmt.Sprintf("%s-%d", name, i), target[0], target[1])
	}
	for range processors {
		w.running = append(w.running, w.process())
	}
	for _, q := range w.queues {
		for range consumers {
			q.consumers = append(q.consumers, w.consume(q))
		}
	}

	return w
}

func (w *world) addQueue(name, exchange, key string) {
	w.t.Helper()
	w.broker.Declare(name, amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		"x-delivery-limit": int64(2147483647), // consumers are killed
	})
	plan, err := topology.New(name, config.Policy{Delays: []time.Duration{200 * time.Millisecond,
		500 * time.Millisecond}}, topology.Names{})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { w.broker.RemovePlan(plan) })
	w.command = append(w.command, "--queues", w.failed+"="+name)
	w.queues = append(w.queues, &queue{name: name,
		heard: &heard{t: w.t, done: map[string]int{}, seen: map[string]int{}}})
}

func (w *world) process() *process {
	w.t.Helper()
	environ := slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "AMQP") })
	p := start(w.t, func(string) {}, append(environ, "AMQP_URI="+w.broker.URI), w.command...)
	p.says(w.t, "msg=Consuming")

	return p
}

func (w *world) consume(q *queue) *process {
	w.t.Helper()
	p := start(w.t, q.heard.hear, w.client.env, append(slices.Clone(w.client.command), w.broker.URI, q.name)...)
	p.says(w.t, map[string]string{"Python": "pika ", "JavaScript": "amqplib "}[w.client.language])

	return p
}

// publish publishes messages over some seconds, beside the rest.
func (w *world) publish(n int) {
	kinds, longest := []string{"ok", "once", "twice", "never", "ok"}, 0
	for i := range n {
		q := w.queues[i/len(kinds)%len(w.queues)]
		q.ids = append(q.ids, fmt.Sprintf("%s-%d", kinds[i%len(kinds)], i))
		longest = max(longest, len(q.ids))
	}
	go func() {
		defer close(w.published)
		for from, step := 0, 50/len(w.queues); from < longest; from += step {
			for _, q := range w.queues {
				var messages []amqp091.Publishing
				for _, id := range q.ids[min(from, len(q.ids)):min(from+step, len(q.ids))] {
					messages = append(messages, amqp091.Publishing{MessageId: id, DeliveryMode: amqp091.Persistent,
						Body: []byte(bodyOf(id)), Headers: amqp091.Table{"tenant": "acme"}})
				}
				if err := w.broker.TryPublish("", q.name, messages...); err != nil {
					w.t.Errorf("publish: %v", err)
				}
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
			q, c := w.queues[random.IntN(len(w.queues))], random.IntN(consumers)
			q.consumers[c].kill()
			w.died++
			q.consumers[c] = w.consume(q)
			continue
		default:
			w.running[i].kill()
			w.killed++
		}
		w.running[i] = w.process()
	}
}

// judge waits until each message has met its fate in its own queue, and counts.
func (w *world) judge(table *report.Table) {
	w.t.Helper()
	letters := map[string]int{}
	isNever := func(id string) bool { return strings.HasPrefix(id, "never-") }
	lost := func() (missing []string) {
		for _, q := range w.queues {
			for _, d := range w.broker.Drain(q.name + ".dlq") {
				letters[d.MessageId]++
				assert.Equal(w.t, []string{"rejected", "3", bodyOf(d.MessageId)}, []string{
					rabbit.Text(d, header.Reason), rabbit.Text(d, header.Attempts), string(d.Body)}, d.MessageId)
				assert.Contains(w.t, q.ids, d.MessageId, "of another queue")
			}
			for _, id := range q.ids {
				if isNever(id) && letters[id] == 0 || !isNever(id) && q.heard.doneOf(id) == 0 {
					missing = append(missing, id)
				}
			}
		}
		return missing
	}
	await.Until(w.t, func() bool { return len(lost()) == 0 }, "every message is handled or in the dead-letter queue")
	for _, p := range w.running {
		p.exit(w.t)
	}
	missing, messages, deliveries, handled, doubled := lost(), 0, 0, 0, 0
	for _, q := range w.queues {
		messages += len(q.ids)
		deliveries += q.heard.all
		assert.Subset(w.t, q.ids, q.heard.ids(), "of another queue")
		for _, id := range q.ids {
			if isNever(id) {
				doubled += max(letters[id]-1, 0)
				assert.Zero(w.t, q.heard.doneOf(id), id)
				continue
			}
			assert.Zero(w.t, letters[id], id)
			handled++
			doubled += max(q.heard.doneOf(id)-1, 0)
		}
	}
	table.Add(w.client.language, len(w.queues), messages, deliveries, handled, len(letters), len(missing), doubled,
		w.killed, w.closed, w.died)
	assert.Empty(w.t, missing, "lost")
	assert.NotZero(w.t, w.killed+w.closed)
	// Each SIGKILL can double the deliveries that were in flight in its process.
	assert.LessOrEqual(w.t, doubled, prefetch*(w.killed+w.died))
	w.broker.Has(w.failed, 0)
}
