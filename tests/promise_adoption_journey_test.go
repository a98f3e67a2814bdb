package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// journey knows every message of a queue and what became of it, whoever consumed it.
type journey struct {
	// bearsReturns tells whether a stock service bears a message that comes a second time, so that it may fail.
	bearsReturns bool

	mu        sync.Mutex
	published []string
	calls     map[string][]string // who was called with it, in order
	done      map[string]string   // who handled it first
}

// The services of a journey, in the order of their coming.
const (
	stockFirst = "stock"
	offFirst   = "off"
	policiesOn = "policies" // two of them
	offAgain   = "off again"
	stockAgain = "stock again"
	kindOK     = "ok"
	kindFlaky  = "flaky"
	kindDoomed = "doomed"
)

// handler fails a flaky message once, where it comes first, and a doomed one always. All others succeed.
func (j *journey) handler(who string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		j.mu.Lock()
		defer j.mu.Unlock()

		id := msg.UUID
		j.calls[id] = append(j.calls[id], who)
		first := len(j.calls[id]) == 1
		if is(id, kindDoomed) || is(id, kindFlaky) && first && (j.bearsReturns || who == policiesOn) {
			return errors.New("this message fails")
		}
		if j.done[id] == "" {
			j.done[id] = who
		}

		return nil
	}
}

func is(id, kind string) bool { return strings.HasPrefix(id, kind+"-") }

// count counts the messages for which a condition on who was called with them, and who handled them, holds.
func (j *journey) count(condition func(id string, calls []string, done string) bool) int {
	j.mu.Lock()
	defer j.mu.Unlock()

	n := 0
	for _, id := range j.published {
		if condition(id, j.calls[id], j.done[id]) {
			n++
		}
	}

	return n
}

func (j *journey) handledBy(who string) int {
	return j.count(func(_ string, _ []string, done string) bool { return done == who })
}

// from counts the messages that failed with the one and were handled by the other.
func (j *journey) from(one, other string) int {
	return j.count(func(_ string, calls []string, done string) bool {
		return len(calls) > 1 && calls[0] == one && done == other
	})
}

// missing counts those that nobody has handled yet, of all that can be handled.
func (j *journey) missing() int {
	return j.count(func(id string, _ []string, done string) bool { return done == "" && !is(id, kindDoomed) })
}

// publishing publishes all the time, as a stock publisher does, until the test ends: messages of the kinds that are
// asked for.
func (j *journey) publishing(t *testing.T, conf amqp.Config, queue string) (ask chan<- []string) {
	t.Helper()
	conf.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	require.NoError(t, err)

	random, _ := env.Random(t)
	kinds, ended := make(chan []string), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		var asked []string
		for n := 0; ; n++ {
			select {
			case <-t.Context().Done():
				return
			case asked = <-kinds:
				continue
			case <-ticker.C:
			}
			if len(asked) == 0 {
				continue
			}
			// At random, so that no consumer gets all of a kind.
			id := fmt.Sprintf("%s-%d", asked[random.IntN(len(asked))], n)
			j.mu.Lock()
			j.published = append(j.published, id)
			j.mu.Unlock()
			assert.NoError(t, publisher.Publish(queue, message.NewMessage(id, []byte(id))))
		}
	}()
	t.Cleanup(func() { // the context of the test has ended
		<-ended
		assert.NoError(t, publisher.Close())
	})

	return kinds
}

// stock runs a service that knows nothing of the library. It may meet no message that it cannot read: it would spin on
// it.
func (j *journey) stock(t *testing.T, conf amqp.Config, queue, who string) (stop func()) {
	t.Helper()
	logged := newLogs(t)
	subscriber, err := amqp.NewSubscriber(conf, logged)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logged)
	require.NoError(t, err)
	router.AddConsumerHandler(who, queue, subscriber, j.handler(who))
	go func() { assert.NoError(t, router.Run(context.Background())) }()
	closesWithin(t, 10*time.Second, router.Running(), "the stock service runs")
	stop = sync.OnceFunc(func() {
		assert.NoError(t, router.Close())
		assert.Empty(t, logged.with("Processing message failed"), "messages that %s cannot read", who)
	})
	t.Cleanup(stop)

	return stop
}

// bearing is a marshaler as users of quorum queues have one: it bears the broker's headers, which are numbers.
type bearing struct{ amqp.DefaultMarshaler }

func (m bearing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	headers := amqp091.Table{}
	for key, value := range d.Headers {
		if _, isText := value.(string); isText {
			headers[key] = value
		}
	}
	d.Headers = headers

	return m.DefaultMarshaler.Unmarshal(d)
}

// P8: the whole way of a queue that is in use, to retries and back. Messages come all the time; each is handled, none
// is lost, none spins, and the dead letters are those that were doomed while everybody had policies.
//
// On a quorum queue watermill-amqp's own marshaler rejects every message that comes a second time, for its
// x-delivery-count, and a stock service spins on it, with or without the library. So none fails there in this test
// while a stock service is on the queue, and none may be returned to it: publishing pauses before the last step.
func TestP8_Journey(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		queueType    string
		bearsReturns bool
		marshaler    amqp.Marshaler
	}{
		"classic":                            {"classic", true, amqp.DefaultMarshaler{}},
		"quorum":                             {"quorum", false, amqp.DefaultMarshaler{}},
		"quorum with a marshaler of its own": {"quorum", true, bearing{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			uri, queue := brokertest.URI(t), uniqueName("journey")
			plain := plainConfig(uri, test.queueType)
			plain.Marshaler = test.marshaler
			broker := newRabbit(t, uri)
			t.Cleanup(func() { removeProtected(broker, queue) })

			j := &journey{bearsReturns: test.bearsReturns, calls: map[string][]string{}, done: map[string]string{}}
			retrier := func(who string, policies config.Policies) *service {
				c := setup{URI: uri, Queue: queue, Prefetch: 2, KeepObjects: true, Handler: j.handler(who)}
				c.Configure = func(conf *amqp.Config) { conf.Queue, conf.Marshaler = plain.Queue, plain.Marshaler }
				c.Options.Policies = policies

				return start(t, c)
			}
			policies := retries(ms(50, 50)...)
			until := func(what string, condition func() bool) {
				t.Helper()
				eventually(t, 10*time.Second, condition, what)
			}
			// stockWorks waits until a stock service has handled some, and its failures, too.
			stockWorks := func(who string) {
				t.Helper()
				until(who+" works", func() bool {
					return j.handledBy(who) >= 10 && (!j.bearsReturns || j.from(who, who) >= 3)
				})
			}

			// The queue is there, with messages in it, before anything of ours is.
			before, err := amqp.NewSubscriber(plain, watermill.NopLogger{})
			require.NoError(t, err)
			require.NoError(t, before.SubscribeInitialize(queue))
			require.NoError(t, before.Close())
			ask := j.publishing(t, plain, queue)
			healthy := []string{kindOK, kindOK, kindFlaky}
			ask <- healthy
			until("messages wait", func() bool { return broker.Depth(queue) >= 10 })

			stopStock := j.stock(t, plain, queue, stockFirst)
			stockWorks(stockFirst)

			// Policy off first, beside it.
			off1 := retrier(offFirst, off())
			seenBefore := j.handledBy(stockFirst)
			until("both work", func() bool {
				return j.handledBy(offFirst) >= 10 && j.handledBy(stockFirst) >= seenBefore+10
			})
			stopStock()

			// Policies second, beside policy off: retries come to either.
			policies1 := retrier(policiesOn, policies)
			until("either handles what failed with the policies", func() bool {
				return j.from(policiesOn, offFirst) >= 3 && j.from(policiesOn, policiesOn) >= 3
			})
			policies2 := retrier(policiesOn, policies)
			off1.close()

			// All have policies. Only now is it defined what becomes of a message that never succeeds.
			deadLetters := func() int { return policies1.deadLettered() + policies2.deadLettered() }
			ask <- []string{kindOK, kindFlaky, kindDoomed}
			until("dead letters", func() bool { return deadLetters() >= 5 })
			ask <- healthy
			doomed := j.count(func(id string, _ []string, _ string) bool { return is(id, kindDoomed) })
			until("all that were doomed are dead", func() bool { return deadLetters() >= doomed })

			// The way back: policy off everywhere, until nothing waits and nothing that has waited is left.
			off2 := retrier(offAgain, off())
			policies1.close()
			policies2.close()
			until("no retry is left", func() bool {
				left := j.count(func(id string, calls []string, done string) bool {
					return done == "" && len(calls) > 0 && calls[0] == policiesOn && !is(id, kindDoomed)
				})

				return left == 0 && broker.Depth(queue+".retry.50ms") == 0
			})
			until("policy off works", func() bool { return j.handledBy(offAgain) >= 10 })
			if !j.bearsReturns {
				ask <- nil
				until("nothing can be returned", func() bool { return j.missing() == 0 && broker.Depth(queue) == 0 })
				off2.close()
			}
			stopStock = j.stock(t, plain, queue, stockAgain)
			ask <- healthy
			off2.close()
			stockWorks(stockAgain)

			ask <- nil
			until("every message was handled", func() bool { return j.missing() == 0 })
			until("nothing is left", func() bool { return broker.Depth(queue) == 0 })
			stopStock()
			letters := broker.Drain(queue + ".dlq")

			j.mu.Lock()
			defer j.mu.Unlock()
			expected, most := map[string]string{}, 0
			for _, id := range j.published {
				calls := j.calls[id]
				most = max(most, len(calls))
				if is(id, kindDoomed) {
					expected[id] = "exhausted"
					assert.Len(t, calls, 3, id)
				} else { // a stock service gives messages back whose handler has succeeded, when it stops
					assert.LessOrEqual(t, len(calls), 4, "%s: %v", id, calls)
				}
			}
			assert.Equal(t, expected, reasons(letters))
			assert.Len(t, letters, len(expected), "none twice")
			t.Logf("%d messages, %d dead letters, at most %d calls", len(j.published), len(letters), most)
		})
	}
}
