package bench

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkHoarding measures what messages suffer that were sent ahead to a handler which is not
// ready for them: with a fixed prefetch, and with one that follows the handlers.
func BenchmarkHoarding(b *testing.B) {
	t := report.Table{
		Title: "Messages that are sent ahead",
		Notes: []string{fmt.Sprintf("With a prefetch of %d, and with the default, which follows the handlers. Each "+
			"process handles one message at a time.", amqpretry.DefaultPrefetch)},
		Head: []string{"case", "queue", "measured", "fixed", "adaptive"},
	}
	broker := newBroker(b)
	defer t.WriteOn(b, broker.URI)

	for _, c := range []struct {
		name, unit string
		timeout    time.Duration // of consumers; RabbitMQ's own without one
		run        func(h *hoarder) float64
	}{
		{"handlers of 1.5 s, consumer timeout 4 s, 12 messages", "handled again", 4 * time.Second, slowHandlers},
		{"one of two processes is stuck, 60 messages", "never handled", 0, stuckProcess},
		{"the same, consumer timeout 4 s", "never handled", 4 * time.Second, stuckProcess},
		{"40 bodies of 2 MiB, handlers of 50 ms", "MiB ahead", 0, largeBodies},
		{"a process joins another, 20 messages, handlers of 500 ms", "s", 0, lateProcess},
		{"two processes, every tenth of 200 messages takes 1 s", "s", 0, oftenSlow},
		{"30 copies are held, 20 messages, handlers of 200 ms", "s", 0, heldCopies},
	} {
		for _, queueType := range queueTypes {
			b.Run(c.name+"/"+queueType, func(b *testing.B) {
				broker.Ctl("eval", fmt.Sprintf("application:set_env(rabbit, channel_tick_interval, 500), "+
					"application:set_env(rabbit, consumer_timeout, %d).",
					cmp.Or(c.timeout, 30*time.Minute).Milliseconds()))
				with := func(prefetch int) func(b *testing.B) figures {
					return func(b *testing.B) figures {
						h := &hoarder{b: b, broker: broker, queueType: queueType, prefetch: prefetch,
							queue: newQueue(b, queueType, holding), calls: map[string]int{}, end: make(chan struct{})}
						defer h.close()

						return figures{report.Unit(c.unit): c.run(h)}
					}
				}
				all := report.Compare(b, contender{"fixed", with(amqpretry.DefaultPrefetch)},
					contender{"adaptive", with(0)})
				t.Add(c.name, queueType, c.unit, all.Median("fixed", report.Unit(c.unit)),
					all.Median("adaptive", report.Unit(c.unit)))
			})
		}
	}
}

// holding has a retry queue, in which copies may have no room.
var holding = config.Policy{Delays: []time.Duration{time.Minute}}

// stuck is the message whose handler does not return, once.
const stuck = "stuck"

// longHandled is how long is waited for what may never be handled.
const longHandled = 25 * time.Second

// slowHandlers are so slow that the broker loses its patience with what waits behind them.
func slowHandlers(h *hoarder) float64 {
	const messages = 12
	h.publish(messages, nil)
	h.process(1500*time.Millisecond, nil)
	h.wait(longHandled, func(handled int) bool { return handled == messages })
	_, calls := h.count()

	return float64(calls - messages)
}

// stuckProcess is one whose handler does not return, and another that could do its work.
func stuckProcess(h *hoarder) float64 {
	const before, messages = 200, 60
	h.publish(before, nil) // both are quick, and know it
	var wasStuck atomic.Bool
	handler := func(id string) {
		if id == stuck && wasStuck.CompareAndSwap(false, true) {
			<-h.end
		}
	}
	h.process(0, handler)
	h.process(0, handler)
	h.wait(longHandled, func(handled int) bool { return handled == before })
	h.client().Publish(h.queue, rabbit.Message(stuck, ""))
	h.publish(messages, nil)
	h.wait(longHandled, func(handled int) bool { return handled == before+messages })
	handled, _ := h.count()

	return float64(before + messages - handled)
}

// largeBodies fill the memory of a process.
func largeBodies(h *hoarder) float64 {
	const messages, size = 40, 2 << 20
	h.publish(messages, make([]byte, size))
	h.process(50*time.Millisecond, nil)
	most := 0
	h.wait(time.Minute, func(handled int) bool {
		most = max(most, messages-handled-h.client().Depth(h.queue))
		return handled == messages
	})

	return float64(most) * size / (1 << 20)
}

// lateProcess is one that joins another that has much to do.
func lateProcess(h *hoarder) float64 {
	const messages, takes = 20, 500 * time.Millisecond
	h.publish(messages, nil)
	began := time.Now()
	h.process(takes, nil)
	h.wait(time.Minute, func(handled int) bool { return handled > 0 })
	h.process(takes, nil)
	h.wait(time.Minute, func(handled int) bool { return handled == messages })

	return time.Since(began).Seconds()
}

// oftenSlow are two processes whose handlers are quick, and slow now and then.
func oftenSlow(h *hoarder) float64 {
	const messages = 200
	h.publish(messages, nil)
	handler := func(id string) {
		if strings.HasSuffix(id, "0") {
			<-time.After(time.Second)
		}
	}
	began := time.Now()
	h.process(0, handler)
	h.process(0, handler)
	h.wait(time.Minute, func(handled int) bool { return handled == messages })

	return time.Since(began).Seconds()
}

// heldCopies take the room of others.
func heldCopies(h *hoarder) float64 {
	const held, messages = 30, 20
	h.broker.Ctl("set_policy", "--apply-to", "queues", "full", `\.retry\.`,
		`{"max-length":1,"overflow":"reject-publish"}`)
	defer h.broker.Ctl("clear_policy", "full")
	h.client().Publish(h.queue, rabbit.Messages(rabbit.Numbered("fails", held+1)...)...)
	h.publish(messages, nil)
	began := time.Now()
	h.process(200*time.Millisecond, nil)
	h.wait(time.Minute, func(handled int) bool { return handled == messages })

	return time.Since(began).Seconds()
}

// hoarder are processes that consume from a queue.
type hoarder struct {
	b         *testing.B
	broker    *brokertest.Broker
	queueType string
	prefetch  int
	queue     string
	ends      []func()
	end       chan struct{} // of all handlers

	mu        sync.Mutex
	calls     map[string]int
	published int
}

func (h *hoarder) client() *rabbit.Client { return newClient(h.b) }

// publish adds healthy messages with this body.
func (h *hoarder) publish(count int, body []byte) {
	h.b.Helper()
	messages := make([]amqp091.Publishing, count)
	for i := range messages {
		h.published++
		messages[i] = rabbit.Message(fmt.Sprintf("ok-%d", h.published), string(body))
	}
	h.client().Publish(h.queue, messages...)
}

// process starts one whose handlers take so long.
func (h *hoarder) process(takes time.Duration, then func(id string)) {
	h.b.Helper()
	handle := func(msg *message.Message) error {
		if msg.UUID[0] == 'f' {
			return errors.New("fails")
		}
		<-time.After(takes)
		if then != nil {
			then(msg.UUID)
		}
		if msg.UUID != stuck {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.calls[msg.UUID]++
		}

		return nil
	}
	options := amqpretry.Options{Policies: config.Policies{Default: holding}, CloseTimeout: 5 * time.Second}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ownConsumer(options).consume(h.b, durable(h.b, h.queueType, h.prefetch), h.queue, handle, done, 2*time.Minute)
	}()
	h.ends = append(h.ends, func() { close(done); <-ended })
}

// count is how many messages were handled, and how often.
func (h *hoarder) count() (handled, calls int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.calls {
		calls += n
	}

	return len(h.calls), calls
}

// wait waits until it is enough, for so long at the most.
func (h *hoarder) wait(within time.Duration, enough func(handled int) bool) {
	for end := time.Now().Add(within); time.Now().Before(end); {
		if handled, _ := h.count(); enough(handled) {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (h *hoarder) close() {
	close(h.end)
	for _, end := range h.ends {
		end()
	}
}
