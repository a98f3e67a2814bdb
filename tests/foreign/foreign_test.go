//go:build foreign

package foreign

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

const (
	processors = 2
	consumers  = 2 // of each main queue
	prefetch   = 20
)

func bodyOf(id string) string { return `{"order":"` + id + `"}` }

// delaysOf are those of a main queue: main queues of a failed queue differ.
func delaysOf(i int) []time.Duration {
	return []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, 300 * time.Millisecond,
		100 * time.Millisecond}[:2+i%3]
}

// Messages that consumers in Python and JavaScript reject are retried and dead-lettered while
// processors are killed (SIGKILL), closed (SIGTERM), and a consumer dies now and then: none is
// lost. Ten main queues that share a failed queue get back their own messages, as often as the
// policy of each says: those with even numbers dead-letter by the default exchange, the others by a
// topic exchange with their names as the routing keys.
func TestForeignConsumers(t *testing.T) {
	broker := rabbit.New(t, brokertest.URI(t))
	messages := env.Int(t, "MESSAGES", 2000)
	random, seed := env.Random(t)
	command := commandtest.Build(t, t.TempDir())

	table := report.Table{
		Title: "Consumers in other languages",
		Notes: []string{fmt.Sprintf("RabbitMQ %s, seed %d, %d processors with prefetch %d.", broker.Version(), seed,
			processors, prefetch)},
		Head: []string{"language", "main queues", "messages", "deliveries", "handled", "dead letters", "lost",
			"doubled", "processors killed", "closed", "consumers killed"},
	}
	py, js := python(t), javascript(t)
	for _, test := range []struct {
		clients []client // main queues have them in turn
		mains   int
	}{{[]client{py}, 1}, {[]client{js}, 1}, {[]client{py, js}, 10}} {
		w := &world{broker: broker, failed: "foreign-" + watermill.NewShortUUID() + ".failed"}
		for _, c := range test.clients {
			w.languages = append(w.languages, c.language)
		}
		t.Run(strings.Join(w.languages, " and "), func(t *testing.T) {
			w.t = t
			w.begin(command, test.clients, test.mains)
			w.publish(messages)
			w.disturb(random)
			w.judge(&table)
		})
	}
	report.Write(t, table.String())
}

// world is a failed queue with its main queues, their consumers, and processors.
type world struct {
	t         *testing.T
	broker    *rabbit.Client
	languages []string
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
	client    client
	attempts  int
	heard     *heard
	consumers []*process
	ids       []string
}

// countsOf are the numbers of failures with which a message comes, whoever is killed.
func (q *queue) countsOf(id string) []int {
	kind, _, _ := strings.Cut(id, "-")
	deliveries, ok := map[string]int{"ok": 1, "once": 2, "twice": 3}[kind]
	if !ok {
		deliveries = q.attempts
	}

	return []int{0, 1, 2, 3, 4}[:deliveries]
}

// begin declares the queues, and starts all processes.
func (w *world) begin(command string, clients []client, mains int) {
	w.t.Helper()
	w.published = make(chan struct{})
	exchange, name := w.failed+".dlx", strings.TrimSuffix(w.failed, ".failed")
	w.broker.Declare(w.failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)})
	w.broker.Do(func(c *amqp091.Channel) error {
		return errors.Join(c.ExchangeDeclare(exchange, "topic", true, false, false, false, nil),
			c.QueueBind(w.failed, "#", exchange, false, nil))
	})
	w.t.Cleanup(func() { w.broker.Remove(exchange) })
	policies := "topics:\n"
	for i := range mains {
		q := &queue{name: fmt.Sprintf("%s-%d", name, i), client: clients[i%len(clients)],
			attempts: 1 + len(delaysOf(i)),
			heard:    &heard{t: w.t, done: map[string]int{}, seen: map[string]map[int]bool{}}}
		policies += fmt.Sprintf("  %s: {delays: [%s]}\n", q.name,
			strings.Trim(strings.ReplaceAll(fmt.Sprint(delaysOf(i)), " ", ", "), "[]"))
		w.queues = append(w.queues, q)
		if i%2 == 0 {
			w.declare(q.name, "", w.failed, delaysOf(i))
		} else {
			w.declare(q.name, exchange, q.name, delaysOf(i))
		}
	}
	file := filepath.Join(w.t.TempDir(), "retry.yaml")
	require.NoError(w.t, os.WriteFile(file, []byte(policies), 0o600))
	w.command = []string{command, "processor", "--policies", file, "--prefetch", fmt.Sprint(prefetch)}
	for _, q := range w.queues {
		w.command = append(w.command, "--queues", w.failed+"="+q.name)
	}
	for range processors {
		w.running = append(w.running, w.process())
	}
	for _, q := range w.queues {
		for range consumers {
			q.consumers = append(q.consumers, w.consume(q))
		}
	}
}

// declare declares a main queue.
func (w *world) declare(name, exchange, key string, delays []time.Duration) {
	w.t.Helper()
	w.broker.Declare(name, amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		"x-delivery-limit": int64(2147483647), // consumers are killed
	})
	plan, err := topology.New(name, config.Policy{Delays: delays}, topology.Names{})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { w.broker.RemovePlan(plan) })
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
	p := start(w.t, q.heard.hear, q.client.env, append(slices.Clone(q.client.command), w.broker.URI, q.name)...)
	p.says(w.t, map[string]string{"Python": "pika ", "JavaScript": "amqplib "}[q.client.language])

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

// disturb ends processors and consumers, and starts others in their place, while messages are
// published.
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
				assert.Equal(w.t, []string{"rejected", fmt.Sprint(q.attempts), q.name, bodyOf(d.MessageId)}, []string{
					rabbit.Text(d, header.Reason), rabbit.Text(d, header.Attempts), rabbit.Text(d, header.Queue),
					string(d.Body)}, d.MessageId)
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
		counts := q.heard.counts()
		assert.ElementsMatch(w.t, q.ids, slices.Collect(maps.Keys(counts)), "those of this queue and no others")
		for _, id := range q.ids {
			assert.Equal(w.t, q.countsOf(id), counts[id], id)
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
	table.Add(strings.Join(w.languages, " and "), len(w.queues), messages, deliveries, handled, len(letters),
		len(missing), doubled, w.killed, w.closed, w.died)
	assert.Empty(w.t, missing, "lost")
	assert.NotZero(w.t, w.killed+w.closed)
	// Each SIGKILL can double the deliveries that were in flight in its process.
	assert.LessOrEqual(w.t, doubled, prefetch*(w.killed+w.died))
	w.broker.Has(w.failed, 0)
}
