package tests

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// confirmTimeout is after how long the broker of the following test tries again to hand back what a
// queue did not take.
const confirmTimeout = 10 * time.Second

// blockedOwn is the number of retries of the blocked queue, and the length limit of the queue that
// is full. It is more than the 32 that the broker hands back at a time. With a lower limit the
// queue would fill up again, and the remaining retries would wait for another confirmTimeout.
const blockedOwn = 200

// A main queue that is full, or was deleted, keeps its own retries waiting and nobody else's, which
// go through the same queues of the ladder. It gets them when it can take them.
func TestExactDelays_BlockedQueue_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, confirmTimeout))
	table := report.Table{
		Title: "Retries of others while a main queue is blocked",
		Head: []string{"meanwhile", "p50, ms", "p99, ms", "max, ms", "retries that wait for it",
			"all of them back, s"},
	}
	b := &blocked{t: t, broker: broker, policies: exact(ms(100)...), table: &table}
	b.others = start(t, setup{
		URI: broker.URI, QueueType: "quorum", Prefetch: 100, Options: amqpretry.Options{Policies: b.policies},
		Handler: b.askOnce,
	})

	late := b.measure("nothing")
	table.Add("nothing is blocked", late[0], late[1], late[2], 0, "")

	full := func(conf *amqp.Config) {
		conf.Queue.Arguments = amqp091.Table{
			"x-queue-type": "quorum", "x-max-length": int32(blockedOwn), "x-overflow": "reject-publish",
		}
	}
	b.during("a full main queue", full, func(queue string) {
		client := newRabbit(t, broker.URI)
		client.Publish(queue, rabbit.Messages(rabbit.Numbered("fill", blockedOwn)...)...)
		await.Until(t, func() bool {
			return client.TryPublish("", queue, rabbit.Messages("fill")...) != nil
		}, "queue %s is full", queue)
	}, func(string) {})
	b.during("a deleted main queue", nil, func(queue string) {
		newRabbit(t, broker.URI).Remove("", queue)
	}, func(queue string) {
		newRabbit(t, broker.URI).Declare(queue, mainQueueArguments("quorum"))
	})
	report.Write(t, fmt.Sprintf("%s\nRabbitMQ %s, confirm timeout %s.\n", table.String(),
		newRabbit(t, broker.URI).Version(), confirmTimeout))
}

type blocked struct {
	t        *testing.T
	broker   *brokertest.Broker
	policies config.Policies
	others   *service
	table    *report.Table
}

// askedFor is the wait for a message with a number: so many that all messages go through the same
// few queues.
func askedFor(id string) time.Duration {
	_, number, _ := strings.Cut(id, "-")
	n, _ := strconv.Atoi(number)

	return time.Second + time.Duration(n%20)*100*time.Millisecond
}

func (b *blocked) askOnce(msg *message.Message) error {
	if a, _ := retry.AttemptFromContext(msg.Context()); a.Number == 1 {
		return retry.RetryAfter(askedFor(msg.UUID), errFate)
	}

	return nil
}

// measure fails messages of the others over some seconds, and gives how late they came back. A
// queue that holds them up does so each time, and a busy machine now and then, so the best of three
// counts.
func (b *blocked) measure(name string) [3]float64 {
	b.t.Helper()
	const most = float64(confirmTimeout/2) / float64(time.Millisecond)
	var late [3]float64
	for try := range 3 {
		if late = b.measureOnce(fmt.Sprint(strings.ReplaceAll(name, " ", "_"), "_", try)); late[2] < most {
			return late
		}
	}
	assert.Less(b.t, late[2], most, "they have waited for somebody else's queue")

	return late
}

func (b *blocked) measureOnce(name string) [3]float64 {
	b.t.Helper()
	const messages = 300
	before := b.others.Calls.count()
	for i := range messages {
		b.others.publish(fmt.Sprintf("%s-%d", name, i))
		<-time.After(10 * time.Millisecond)
	}
	await.Until(b.t, func() bool { return b.others.Calls.count() >= before+2*messages }, "the others are back")

	failed := map[string]time.Time{}
	var late []float64
	for _, c := range b.others.Calls.All() {
		switch {
		case !strings.HasPrefix(c.ID, name+"-"):
		case c.Attempt == 1:
			failed[c.ID] = c.At
		default:
			by := c.At.Sub(failed[c.ID]) - askedFor(c.ID)
			assert.GreaterOrEqual(b.t, by, -rounding, "early")
			late = append(late, float64(by)/float64(time.Millisecond))
		}
	}
	require.Len(b.t, late, messages)
	slices.Sort(late)

	return [3]float64{late[messages/2], late[messages*99/100], late[messages-1]}
}

// during has retries of a queue wait that is blocked meanwhile, measures those of the others, and
// then lets the queue have its own.
func (b *blocked) during(name string, configure func(*amqp.Config), block, unblock func(queue string)) {
	b.t.Helper()
	c := setup{
		URI: b.broker.URI, QueueType: "quorum", Prefetch: 100, Queue: uniqueName("blocked"),
		Options: amqpretry.Options{Policies: b.policies}, Handler: succeed,
		Configure: configure,
	}
	first := start(b.t, c)
	plan := must(first.Retrier.Plan(c.Queue))(b.t)
	first.close()
	block(c.Queue)

	all := map[string]bool{}
	client := newRabbit(b.t, b.broker.URI)
	for i := range blockedOwn { // due while the others' are measured
		id := fmt.Sprintf("own-%d", i)
		m := rabbit.Message(id, "")
		all[id] = true
		exchange, key := plan.Route(1, askedFor(id), &m)
		client.PublishTo(exchange, key, m)
	}
	late := b.measure(name)
	waiting := 0
	await.Until(b.t, func() bool { // all were due before the last of the others
		waiting = b.depth(c.Queue + ".landing")
		return waiting == blockedOwn
	}, "all retries wait in the landing queue of their own")

	unblock(c.Queue)
	began := time.Now()
	second := start(b.t, c)
	missing := func() map[string]bool {
		missing := maps.Clone(all)
		for id := range second.Calls.ids() {
			delete(missing, id)
		}

		return missing
	}
	await.Until(b.t, func() bool { return len(missing()) == 0 }, "all retries of the queue come")
	b.table.Add(name, late[0], late[1], late[2], waiting, time.Since(began).Seconds())
	second.close()
}

// depth counts also what a queue holds to hand it on.
func (b *blocked) depth(queue string) int {
	b.t.Helper()
	for line := range strings.Lines(b.broker.Ctl("list_queues", "name", "messages")) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == queue {
			depth := must(strconv.Atoi(n))(b.t)

			return depth
		}
	}
	b.t.Fatalf("queue %s is not there", queue)

	return 0
}
