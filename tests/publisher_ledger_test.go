package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/publishtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

type ledger struct {
	mu     sync.Mutex
	told   map[string]publishtest.Outcome // by UUID
	found  map[string]int
	errors map[string]int // by kind
}

func (l *ledger) tell(messages []*message.Message, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	maps.Copy(l.told, publishtest.Outcomes(messages, err))
	var failed *publish.Error
	switch {
	case err == nil:
	case errors.As(err, &failed):
		for _, f := range failed.Failed {
			for _, kind := range []error{publish.ErrUnroutable, publish.ErrNacked, publish.ErrUnconfirmed} {
				if errors.Is(f.Err, kind) {
					l.errors[kind.Error()]++
				}
			}
		}
	default:
		l.errors[err.Error()]++
	}
}

func (l *ledger) find(d amqp091.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found[rabbit.UUID(d)]++
}

// judge compares both. Every message must be told.
func (l *ledger) judge(t *testing.T, published int) (doubles, perhaps, notStored int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()

	require.Len(t, l.told, published)
	lost, untrue := 0, 0
	for uuid, outcome := range l.told {
		found := l.found[uuid]
		if found > 1 {
			doubles += found - 1
		}
		switch {
		case outcome == publishtest.Stored && found == 0:
			lost++
			t.Logf("lost: %s", uuid)
		case outcome == publishtest.NotStored && found > 0:
			untrue++
		}
		switch outcome {
		case publishtest.MayBeStored:
			perhaps++
		case publishtest.NotStored:
			notStored++
		}
	}
	assert.Zero(t, lost, "Publish returned nil for them, and no queue has them")
	assert.Zero(t, untrue, "Publish said that they are not stored, and they are")

	return doubles, perhaps, notStored
}

type ledgerRun struct {
	t      *testing.T
	broker *brokertest.Broker
	proxy  *proxy
	ledger *ledger
	topics []string // a queue, one that is often full, one behind an exchange
	queue  *rabbit.Client
}

// Everything fails while messages are published. Each message for which Publish returned nil is
// stored, and none of which it said that it is not. MESSAGES, KILLS and SEED can be given.
func TestPublisher_Ledger_OwnBroker(t *testing.T) {
	t.Parallel()
	messages, kills := env.Int(t, "MESSAGES", 6000), env.Int(t, "KILLS", 1)
	random, seed := env.Random(t)
	broker := brokertest.Start(t)
	r := &ledgerRun{t: t, broker: broker, proxy: newProxy(t, broker.URI), queue: newRabbit(t, broker.URI),
		ledger: &ledger{told: map[string]publishtest.Outcome{}, found: map[string]int{}, errors: map[string]int{}}}
	for _, name := range []string{"quorum", "full", "exchange"} {
		r.topics = append(r.topics, uniqueName(name))
	}
	r.queue.Declare(r.topics[0], amqp091.Table{"x-queue-type": "quorum"})
	r.queue.Declare(r.topics[1], amqp091.Table{"x-max-length": int64(400), "x-overflow": "reject-publish"})
	r.queue.Declare(r.topics[2]+"-x", amqp091.Table{"x-queue-type": "quorum"})

	began := time.Now()
	var published atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Add(3)
	go func() { defer background.Done(); r.drain(ctx) }()
	go func() { defer background.Done(); r.bind(ctx) }()
	go func() { defer background.Done(); r.fail(ctx, random, &published, messages, kills) }()
	r.publishAll(&published, messages, seed)
	stop()
	background.Wait()
	took := time.Since(began)

	r.proxy.resume()
	for _, queue := range r.queues() {
		await.Until(t, func() bool { return r.takeAll(queue) == nil }, "%s is emptied", queue)
		for _, d := range r.queue.Drain(queue) { // what was on the way when takeAll ended
			r.ledger.find(d)
		}
	}
	doubles, perhaps, notStored := r.ledger.judge(t, messages)
	assert.NotZero(t, notStored, "there were errors")
	table := report.Table{Title: fmt.Sprintf("Publisher: %d messages in %s, broker killed %d times, SEED=%d", messages,
		took.Round(time.Second), kills, seed), Head: []string{"told", "messages"}}
	table.Add("stored", messages-perhaps-notStored)
	table.Add("not stored", notStored)
	table.Add("may be stored", perhaps)
	table.Add("stored twice or more", doubles)
	for kind, n := range r.ledger.errors {
		table.Add(kind, n)
	}
	report.Write(t, table.String())
}

func (r *ledgerRun) queues() []string { return []string{r.topics[0], r.topics[1], r.topics[2] + "-x"} }

func (r *ledgerRun) publishAll(published *atomic.Int64, messages int, seed uint64) {
	toQueue := newPublisher(r.t, amqp.NewDurableQueueConfig(r.proxy.URI), withTimeout(4*time.Second))
	toExchange := newPublisher(r.t, amqp.NewDurablePubSubConfig(r.proxy.URI, amqp.GenerateQueueNameConstant("unused")),
		withTimeout(4*time.Second))
	var publishers sync.WaitGroup
	for i := range 48 {
		publishers.Add(1)
		go func() {
			defer publishers.Done()
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				n := 1
				if random.IntN(4) == 0 {
					n += random.IntN(60)
				}
				first := int(published.Add(int64(n))) - n
				if n = min(n, messages-first); n <= 0 {
					return
				}
				which := []int{0, 0, 0, 0, 0, 1, 2, 2, 2, 2}[random.IntN(10)]
				publisher := map[bool]*amqpretry.Publisher{true: toExchange, false: toQueue}[which == 2]
				r.publish(publisher, r.topics[which], first, n, random)
				pause(r.t.Context(), time.Duration(random.IntN(400))*time.Millisecond)
			}
		}()
	}
	publishers.Wait()
}

func (r *ledgerRun) publish(publisher message.Publisher, topic string, first, n int, random *rand.Rand) {
	batch := make([]*message.Message, n)
	for i := range batch {
		body := strings.Repeat("x", random.IntN(2000))
		batch[i] = message.NewMessage(fmt.Sprintf("%s-%d", topic, first+i), []byte(body))
		if random.IntN(50) == 0 {
			ctx, cancel := context.WithTimeout(r.t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
			defer cancel()
			batch[i].SetContext(ctx)
		}
	}
	r.ledger.tell(batch, publisher.Publish(topic, batch...))
}

func (r *ledgerRun) drain(ctx context.Context) {
	for ctx.Err() == nil {
		_ = r.takeAll(r.topics[1])
		pause(ctx, 300*time.Millisecond)
	}
}

func (r *ledgerRun) bind(ctx context.Context) {
	for ctx.Err() == nil {
		_ = r.queue.Try(func(channel *amqp091.Channel) error {
			for ctx.Err() == nil {
				if err := channel.QueueBind(r.topics[2]+"-x", "", r.topics[2], false, nil); err != nil {
					return err
				}
				pause(ctx, 20*time.Millisecond)
			}

			return nil
		})
		pause(ctx, 20*time.Millisecond)
	}
}

func (r *ledgerRun) takeAll(queue string) error {
	return r.queue.Try(func(channel *amqp091.Channel) error {
		if err := channel.Qos(500, 0, false); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		idle := time.NewTimer(idleQueue)
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return amqp091.ErrClosed
				}
				// An acknowledgement that is lost brings it back: it is found twice, and was never
				// lost.
				r.ledger.find(d)
				if err := d.Ack(false); err != nil {
					return err
				}
				idle.Reset(idleQueue)
			case <-idle.C:
				left, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
				if err == nil && left.Messages > 0 {
					err = fmt.Errorf("%d are left", left.Messages)
				}

				return err
			}
		}
	})
}

// idleQueue is how long nothing comes from a queue that is taken for empty.
const idleQueue = 300 * time.Millisecond

// fail makes faults at random, and kills the broker so often, evenly over the messages.
func (r *ledgerRun) fail(ctx context.Context, random *rand.Rand, published *atomic.Int64, messages, kills int) {
	killed := 0
	for ctx.Err() == nil {
		if done := int(published.Load()); killed < kills && done > (killed+1)*messages/(kills+1) {
			killed++
			r.broker.Kill()
			r.broker.Start()
		}
		switch random.IntN(7) {
		case 0:
			r.proxy.cut(plainPublisher)
		case 1:
			r.proxy.cutAfter(plainPublisher, random.Int64N(50_000))
		case 2:
			r.proxy.stallAnswers(plainPublisher)
			pause(ctx, time.Duration(random.IntN(700))*time.Millisecond)
			r.proxy.resume()
		case 3:
			_ = r.queue.Try(func(channel *amqp091.Channel) error {
				return channel.ExchangeDelete(r.topics[2], false, false)
			})
		}
		pause(ctx, time.Duration(random.IntN(400))*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
