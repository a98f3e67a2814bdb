package bench

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/retry"
)

// BenchmarkSizeQueues measures what queues without messages take of a broker: the queues of main
// queues with a number of delays each.
func BenchmarkSizeQueues(b *testing.B) {
	t := report.Table{
		Title: "Size: queues without messages",
		Notes: []string{
			"Main queues with retry queues and a dead-letter queue each, declared over 8 channels. Memory is what " +
				"the Erlang machine has in use above what it had before, after a collection of garbage. *CPU* is " +
				"that of the idle broker above that without the queues, for 10 s. *Restart* is from the start of " +
				"the stopped broker until each queue answers, above that of a broker without queues. A broker " +
				"of its own for each row.",
		},
		Head: []string{"type", "main queues", "delays", "queues", "declare, s", "memory, KiB each", "disk, KiB each",
			"CPU, % of a core", "restart, s"},
	}
	for _, c := range []struct {
		queueType    string
		main, delays int
	}{{"quorum", 40, 3}, {"quorum", 200, 3}, {"classic", 200, 3}, {"quorum", 500, 3}} {
		b.Run(fmt.Sprintf("%s-%dx%d", c.queueType, c.main, c.delays), func(b *testing.B) {
			once(b, func() {
				mains := report.Scaled(b, c.main, 2)
				broker := newBroker(b)
				empty := restart(b, broker, nil, 0)
				idle, memory, disk := cores(b, broker), brokerMiB(b, broker), diskMiB(b, broker)

				queues, seconds := declareAll(b, c.queueType, mains, c.delays)
				number := float64(len(queues))
				memory = (brokerMiB(b, broker) - memory) * 1024 / number
				idle = cores(b, broker) - idle
				back := restart(b, broker, queues, 0) - empty
				t.Add(c.queueType, mains, c.delays, len(queues), seconds, memory,
					(diskMiB(b, broker)-disk)*1024/number, idle*100, back)
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// declareAll declares everything of main queues, as fast as 8 channels can.
func declareAll(b *testing.B, queueType string, mains, delays int) (queues []string, seconds float64) {
	b.Helper()
	policy := config.Policy{ClassicQueues: queueType == "classic"}
	for i := range delays {
		policy.Delays = append(policy.Delays, time.Duration(i+1)*time.Minute)
	}
	plans := make(chan topology.Plan, mains)
	for i := range mains {
		plan := planOf(b, fmt.Sprintf("size-%d", i), policy.WithDefaults())
		plans <- plan
		queues = append(queues, plan.Queue)
		for _, queue := range plan.Queues {
			queues = append(queues, queue.Name)
		}
	}
	close(plans)
	connection := dial(b)
	defer connection.Close()
	began := time.Now()
	var all sync.WaitGroup
	for range 8 {
		channel, err := connection.Channel()
		require.NoError(b, err)
		all.Go(func() {
			for plan := range plans {
				_, err := channel.QueueDeclare(plan.Queue, true, false, false, false, arguments(queueType))
				if assert.NoError(b, err) {
					assert.NoError(b, plan.Declare(channel))
				}
			}
		})
	}
	all.Wait()

	return queues, time.Since(began).Seconds()
}

// restart stops and starts the broker, and waits until each queue answers with so many messages.
func restart(b *testing.B, broker *brokertest.Broker, queues []string, messages int) (seconds float64) {
	b.Helper()
	broker.Stop()
	began := time.Now()
	broker.Start()
	client := rabbit.New(b, broker.URI)
	for _, queue := range queues {
		await.Within(b, 5*time.Minute, func() bool {
			found := amqp091.Queue{Messages: -1}
			_ = client.Try(func(channel *amqp091.Channel) (err error) { // it has no leader yet
				found, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err
			})

			return found.Messages == messages
		})
	}

	return time.Since(began).Seconds()
}

// cores is how many of them the broker uses while nothing is asked of it.
func cores(b *testing.B, broker *brokertest.Broker) float64 {
	b.Helper()
	const period = 10 * time.Second
	before := brokerCPU(b, broker)
	<-time.After(period)

	return float64(brokerCPU(b, broker)-before) / float64(period)
}

// diskMiB is the size of the broker's data.
func diskMiB(b *testing.B, broker *brokertest.Broker) float64 {
	b.Helper()
	var bytes int64
	_ = filepath.WalkDir(broker.Dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // a segment that was deleted meanwhile
		}
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
		}

		return nil
	})

	return float64(bytes) / (1 << 20)
}

// BenchmarkSizeWaiting measures what waiting messages take of a broker, and how fast a retry queue
// hands them back.
func BenchmarkSizeWaiting(b *testing.B) {
	t := report.Table{
		Title: "Size: waiting messages",
		Notes: []string{
			"Messages with bodies of 1 KiB in one retry queue of 1 h. Memory and restart as above, and memory again " +
				"after the restart. The disk is what the broker's folder has grown by, after the restart.",
		},
		Head: []string{"type", "messages", "published/s", "memory, MiB", "after restart, MiB", "disk, MiB",
			"restart, s"},
	}
	for _, c := range []struct {
		queueType string
		messages  int
	}{{"quorum", 100_000}, {"classic", 100_000}, {"quorum", 200_000}, {"quorum", 700_000}} {
		b.Run(fmt.Sprintf("%s-%d", c.queueType, c.messages), func(b *testing.B) {
			once(b, func() {
				messages := report.Scaled(b, c.messages, 1000)
				broker := newBroker(b)
				_, queue := retryQueue(b, c.queueType, time.Hour)
				empty := restart(b, broker, []string{queue}, 0)
				memory, disk := brokerMiB(b, broker), diskMiB(b, broker)
				began := time.Now()
				fillKiB(b, queue, messages)
				rate := float64(messages) / time.Since(began).Seconds()
				full := brokerMiB(b, broker) - memory
				back := restart(b, broker, []string{queue}, messages) - empty
				t.Add(c.queueType, messages, rate, full, brokerMiB(b, broker)-memory, diskMiB(b, broker)-disk, back)
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// retryQueue declares a main queue with one retry queue, and gives the names of both.
func retryQueue(b *testing.B, queueType string, delay time.Duration) (main, retry string) {
	b.Helper()
	policy := config.Policy{Delays: []time.Duration{delay}, ClassicQueues: queueType == "classic"}.WithDefaults()
	plan := planOf(b, newQueue(b, queueType, policy), policy)
	newClient(b).Do(func(channel *amqp091.Channel) error { return plan.Declare(channel) })

	return plan.Queue, plan.Queues[0].Name
}

// fillKiB publishes persistent messages of 1 KiB with confirms.
func fillKiB(b *testing.B, queue string, messages int) {
	b.Helper()
	client := newClient(b)
	defer client.Close()
	portion := make([]amqp091.Publishing, 2000)
	for i := range portion {
		portion[i] = amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: make([]byte, 1024)}
	}
	for at := 0; at < messages; at += len(portion) {
		client.Publish(queue, portion[:min(len(portion), messages-at)]...)
	}
}

// BenchmarkSizeReturn measures how fast one retry queue hands back messages that are due.
func BenchmarkSizeReturn(b *testing.B) {
	t := report.Table{
		Title: "Size: return of messages that are due",
		Notes: []string{
			"Messages of 1 KiB in one retry queue became due while the broker was stopped: from a tenth of them to " +
				"nine tenths in the main queue, which has no consumer. A single run each, on a broker of its own.",
		},
		Head: []string{"type", "messages", "returned/s"},
	}
	for _, queueType := range queueTypes {
		b.Run(queueType, func(b *testing.B) {
			once(b, func() {
				messages := report.Scaled(b, 200_000, portion)
				t.Add(queueType, messages, returnRate(b, queueType, messages))
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

func returnRate(b *testing.B, queueType string, messages int) float64 {
	b.Helper()
	broker := brokertest.Start(b, brokertest.ConfirmTimeout(b, 5*time.Second))
	b.Setenv("AMQP_URI", broker.URI)
	const delay = 30 * time.Second
	main, queue := retryQueue(b, queueType, delay)
	due := time.After(delay)
	for range messages / portion {
		fillKiB(b, queue, portion)
		due = time.After(delay)
	}
	broker.Stop()
	<-due
	broker.Start()
	client := newClient(b)
	arrived := func(share int) (n int, at time.Time) {
		await.Within(b, 5*time.Minute, func() bool {
			n, at = client.Depth(main), time.Now()
			return n > messages*share/10
		})

		return n, at
	}
	first, began := arrived(1)
	last, ended := arrived(9)

	return float64(last-first) / ended.Sub(began).Seconds()
}

// BenchmarkSizeRetry measures the broker's processor time for a retry, by strategy.
func BenchmarkSizeRetry(b *testing.B) {
	messages, broker := report.Scaled(b, 5000, 200), newBroker(b)
	t := report.Table{
		Title: "Size: processor time of a retry",
		Notes: []string{
			fmt.Sprintf("Processor time of the broker, in microseconds: for a message that succeeds (*healthy*), "+
				"and how much more for one that fails once and then succeeds. %d messages at a time, quorum main "+
				"queues, a delay of 3 s. The idle broker's is subtracted. Medians.", messages),
		},
		Head: []string{"strategy", "us"},
	}
	const delay = 3 * time.Second
	delays := []time.Duration{delay}
	type measured struct {
		name   string
		policy config.Policy
	}
	all := []measured{
		{"queues", config.Policy{Delays: delays}},
		{"queues, classic", config.Policy{Delays: delays, ClassicQueues: true}},
		{"shared", config.Policy{Delays: delays, Strategy: config.StrategyShared}},
		{"ladder, 1 digit", config.Policy{Delays: delays, Strategy: config.StrategyLadder,
			Ladder: config.Ladder{Prefix: "bench-size"}}},
		{"cycle", config.Policy{Delays: delays, Retries: 1, Strategy: config.StrategyCycle}},
	}
	if newClient(b).AtLeast(4, 3) {
		all = append(all, measured{"native",
			config.Policy{Delays: delays, Retries: 1, Strategy: config.StrategyNative}})
	}
	var contenders []contender
	for _, w := range all {
		contenders = append(contenders, contender{w.name, func(b *testing.B) figures {
			return figures{costPerMessage: costOfRetry(b, costRun{broker: broker, messages: messages, policy: w.policy,
				delay: delay})}
		}})
	}
	contenders = append(contenders,
		contender{"healthy", func(b *testing.B) figures {
			return figures{costPerMessage: costOfEnd(b, broker, messages, nil)}
		}},
		contender{"dead letter", func(b *testing.B) figures {
			return figures{costPerMessage: costOfEnd(b, broker, messages, retry.Permanent(errRefused))}
		}})
	r := report.Compare(b, contenders...)
	healthy := r.Median("healthy", costPerMessage)
	for _, c := range contenders {
		us := r.Median(c.Name, costPerMessage)
		if c.Name != "healthy" {
			us -= healthy
		}
		t.Add(c.Name, us)
	}
	t.WriteOn(b, brokertest.URI(b))
}

// costOfEnd is the processor time of messages whose handler gives err, which is final.
func costOfEnd(b *testing.B, broker *brokertest.Broker, messages int, err error) float64 {
	b.Helper()
	policy := config.Policy{Delays: []time.Duration{time.Second}}
	queue := newQueue(b, "quorum", policy)
	t := newTally(messages)
	options := amqpretry.Options{Policies: config.Policies{Default: policy}}

	return costRun{broker: broker, messages: messages}.perMessage(b, func() {
		fill(b, queue, messages, numbered)
		handle := func(msg *message.Message) error {
			t.add(msg)
			return err
		}
		ownConsumer(options).consume(b, durable(b, "quorum", failurePrefetch), queue, handle, t.all, 2*time.Minute)
	})
}
