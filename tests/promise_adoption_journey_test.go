package tests

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// journey knows every message of a queue and what became of it, whoever consumed it.
type journey struct {
	// bearsReturns tells whether a stock service bears a message that comes a second time, so that
	// it may fail.
	bearsReturns bool
	// slow is how long handlers take on the way there: a message that somebody returns then goes
	// round among those who cannot read it, as all others are busy.
	slow time.Duration

	mu        sync.Mutex
	published []string
	calls     map[string][]string // who was called with it, in order
	done      map[string]string   // who handled it first
}

// The services of a journey, in the order of their coming. There are two instances of each.
const (
	stockFirst = "stock"
	offFirst   = "off"
	policiesOn = "policies"
	offAgain   = "off again"
	stockAgain = "stock again"
	kindOK     = "ok"
	kindFlaky  = "flaky"
	kindDoomed = "doomed"
)

// handler fails a flaky message once, where it comes first, and a doomed one always. All others
// succeed.
func (j *journey) handler(who string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if who == stockFirst || who == offFirst {
			select {
			case <-time.After(j.slow):
			case <-msg.Context().Done(): // it stops, as a query to a database does
				return msg.Context().Err()
			}
		}
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

func (j *journey) from(one, other string) int {
	return j.count(func(_ string, calls []string, done string) bool {
		return len(calls) > 1 && calls[0] == one && done == other
	})
}

func (j *journey) missing() int {
	return j.count(func(id string, _ []string, done string) bool { return done == "" && !is(id, kindDoomed) })
}

// publishing publishes all the time, as a stock publisher does, until the test ends: messages of
// the kinds that are asked for.
func (j *journey) publishing(t *testing.T, conf amqp.Config, queue string) (ask chan<- []string) {
	t.Helper()
	conf.Publish.ConfirmDelivery = true
	publisher := must(amqp.NewPublisher(conf, watermill.NopLogger{}))(t)

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

// stock runs a service that knows nothing of the library. Unless it may spin, it may meet no
// message that it cannot read.
func (j *journey) stock(t *testing.T, conf amqp.Config, queue, who string, spins bool) (stop func()) {
	t.Helper()
	logged := newLogs(t)
	subscriber := must(amqp.NewSubscriber(conf, logged))(t)
	router := newRouter(t, logged)
	router.AddConsumerHandler(who, queue, subscriber, j.handler(who))
	runRouter(t, router)
	stop = sync.OnceFunc(func() {
		assert.NoError(t, router.Close())
		if !spins {
			assert.Empty(t, logged.with("Processing message failed"), "messages that %s cannot read", who)
		}
	})
	t.Cleanup(stop)

	return stop
}

// bearing is a marshaler as users of quorum queues have one: it bears the broker's headers, which
// are numbers.
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

type route struct {
	queueType string
	marshaler amqp.Marshaler
	protect   config.Protection
	// bearsReturns tells whether stock services bear a message that comes a second time.
	bearsReturns bool
	// rolls: instances of the old version and of the new one run side by side on the way there, and
	// stop one by one. Else publishers pause, and the queue runs empty, before the stock services
	// stop.
	rolls bool
	// operator does what an operator does at a step. Optional.
	operator func(step string)
}

// The steps at which an operator has something to do.
const (
	policiesAreOn  = "policies are on"
	leavingIsNext  = "leaving is next"
	beforeAnything = "before anything"
)

// P8: the whole way of a queue that is in use, to retries and back, with two instances of each
// version. Messages come all the time; each is handled, none is lost, and the dead letters are
// those that were doomed while everybody had policies.
//
// On a quorum queue watermill-amqp's own marshaler rejects every message that comes a second time,
// for its x-delivery-count, and a stock service spins on it, with or without the library. So none
// fails there in this test while a stock service is on the queue, and none may be returned to it:
// publishing pauses.
func TestP8_Journey(t *testing.T) {
	t.Parallel()

	each(t, map[string]route{
		"classic": {queueType: "classic", marshaler: amqp.DefaultMarshaler{}, bearsReturns: true, rolls: true},
		"quorum with a marshaler of its own": {queueType: "quorum", marshaler: bearing{}, bearsReturns: true,
			rolls: true},
		"quorum, with a pause": {queueType: "quorum", marshaler: amqp.DefaultMarshaler{}},
		"quorum, protected from its first day on, with a pause": {queueType: "quorum",
			marshaler: amqp.DefaultMarshaler{}, protect: config.ProtectionArguments},
	}, func(t *testing.T, _ string, r route) {
		r.travel(t, brokertest.URI(t), uniqueName("journey"))
	})
}

// P8: a rolling update of stock services on a quorum queue, whose marshaler rejects what a stopping
// instance returns. On RabbitMQ 4.0 to 4.2 the broker would drop such messages after 20 rounds, if
// no policy of the broker raised the limit before.
func TestP8_RollingUpdateOfQuorumQueue_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t)
	for _, protect := range []config.Protection{config.ProtectionNone, config.ProtectionPolicy} {
		t.Run(fmt.Sprintf("with a higher limit, Protect %s", protect), func(t *testing.T) {
			queue := uniqueName("journey")
			r := route{queueType: "quorum", marshaler: amqp.DefaultMarshaler{}, rolls: true, protect: protect}
			protection := topology.ProtectPolicy("/", queue, queue+".dlq")
			set := func(name, definition string) {
				broker.Ctl("set_policy", "--priority", "100", "--apply-to", "queues", name, protection.Pattern,
					definition)
			}
			r.operator = func(step string) {
				switch {
				case step == beforeAnything:
					set(protection.Name, `{"delivery-limit":1000000}`)
				case step == policiesAreOn && protect == config.ProtectionPolicy:
					set(protection.Name, protection.Definition) // the same name: it takes the place of the other
				case step == policiesAreOn || step == leavingIsNext && protect == config.ProtectionPolicy:
					broker.Ctl("clear_policy", protection.Name)
				}
			}
			r.travel(t, broker.URI, queue)
		})
	}
}

// P8: the reason for the pause, or for the higher limit. The one stock instance stops, and returns
// what it has in flight; the other one cannot read it.
func TestP8_StockInstancesCannotReadWhatOthersReturn(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("stock")
	broker := newRabbit(t, uri)
	plain := plainConfig(uri, "quorum")
	broker.Declare(queue, plain.Queue.Arguments)
	var calls calls
	instance := func(handler message.NoPublishHandlerFunc) (*message.Router, *logs) {
		logged := newLogs(t)
		subscriber := must(amqp.NewSubscriber(plain, logged))(t)
		router := newRouter(t, logged)
		router.AddConsumerHandler("stock", queue, subscriber, handler)
		runRouter(t, router)

		return router, logged
	}
	first, _ := instance(func(msg *message.Message) error {
		calls.add(msg)
		<-msg.Context().Done()

		return msg.Context().Err()
	})
	broker.Publish(queue, rabbit.Messages("returned")...)
	await.Until(t, func() bool { return calls.count() == 1 }, "it is in flight")
	second, logged := instance(func(msg *message.Message) error { calls.add(msg); return nil })
	require.NoError(t, first.Close())

	rejected := func() int { return len(logged.with("Processing message failed")) }
	if broker.AtLeast(4, 0) && !broker.AtLeast(4, 3) {
		await.Until(t, func() bool { return rejected() >= 15 }, "it is rejected up to the limit")
		await.Stays(t, time.Second, func() bool { return rejected() <= 21 }, "then it is gone")
		require.NoError(t, second.Close())
		assert.Empty(t, broker.Drain(queue), "lost")

		return
	}
	await.Until(t, func() bool { return rejected() > 100 }, "it spins")

	// An instance with policy off reads it.
	c := setup{URI: uri, Queue: queue, KeepObjects: true, Handler: func(msg *message.Message) error {
		calls.add(msg)

		return nil
	}}
	c.Configure = func(conf *amqp.Config) { conf.Queue = plain.Queue }
	c.Options.Policies = off()
	start(t, c)
	require.NoError(t, second.Close()) // it holds the message in its prefetch again and again
	await.Until(t, func() bool { return calls.count() == 2 }, "it is handled")
}

// P8: while policy off is out, PoisonQueue stays: without it, failures are plain nacks, which come
// back at once. With policies it goes.
func TestP8_PoisonQueueStaysWithPolicyOff(t *testing.T) {
	t.Parallel()

	for _, keeps := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept %t", keeps), func(t *testing.T) {
			t.Parallel()

			c := setup{URI: brokertest.URI(t), Handler: func(*message.Message) error { return errors.New("it fails") }}
			c.Options.Policies = off()
			svc := newService(t, c)
			poison := svc.Queue + ".poison"
			svc.Broker.Declare(poison, mainQueueArguments("classic"))
			conf := plainConfig(c.URI, "classic")
			conf.Publish.ConfirmDelivery = true
			publisher := must(amqp.NewPublisher(conf, svc.Logs))(t)
			t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
			if keeps {
				middleware := must(middleware.PoisonQueue(publisher, poison))(t)
				svc.Router.AddMiddleware(middleware)
			}
			svc.Router.AddPlugin(svc.Retrier.CheckRouter) // has nothing against it
			svc.run()
			svc.publish("1")

			if !keeps {
				await.Until(t, func() bool { return svc.Calls.count() > 100 }, "it spins")

				return
			}
			svc.Broker.Has(poison, 1)
			assert.Equal(t, 1, svc.Calls.count())
		})
	}
}

func (r route) travel(t *testing.T, uri, queue string) {
	t.Helper()
	plain := plainConfig(uri, r.queueType)
	plain.Marshaler = r.marshaler
	if r.protect == config.ProtectionArguments {
		plain.Queue.Arguments = topology.ProtectArguments(queue + ".dlq")
	}
	broker := newRabbit(t, uri)
	t.Cleanup(func() { removeProtected(broker, queue) })

	slow, instances := time.Duration(0), 2
	if r.rolls && !r.bearsReturns { // each stop is a chance that a message goes round
		slow, instances = 100*time.Millisecond, 8
	}
	j := &journey{bearsReturns: r.bearsReturns, slow: slow, calls: map[string][]string{}, done: map[string]string{}}
	// pair starts two instances of the retrier.
	pair := func(who string, policy config.Policy) (both [2]*service) {
		t.Helper()
		for i := range both {
			c := setup{URI: uri, Queue: queue, Prefetch: 2, KeepObjects: true, Handler: j.handler(who)}
			c.Options.CloseTimeout = 15 * time.Second // no handler is interrupted, which would run again
			c.Configure = func(conf *amqp.Config) { conf.Queue, conf.Marshaler = plain.Queue, plain.Marshaler }
			policy.Protect = r.protect
			c.Options.Policies = config.Policies{Default: policy}
			both[i] = start(t, c)
		}

		return both
	}
	stock := func(who string, instances int, spins bool) (stop func()) {
		t.Helper()
		var stops []func()
		for range instances {
			stops = append(stops, j.stock(t, plain, queue, who, spins))
		}

		return func() {
			for _, stop := range stops {
				stop()
			}
		}
	}
	until := func(what string, condition func() bool) {
		t.Helper()
		await.Until(t, condition, what)
	}
	works := func(who string) {
		t.Helper()
		seen := j.handledBy(who)
		until(who+" works", func() bool {
			return j.handledBy(who) >= seen+10 &&
				(!j.bearsReturns || !strings.HasPrefix(who, stockFirst) || j.from(who, who) >= 3)
		})
	}
	operator := func(step string) {
		if r.operator != nil {
			r.operator(step)
		}
	}
	operator(beforeAnything)
	ask := j.publishing(t, plain, queue)
	healthy := []string{kindOK, kindOK, kindFlaky}
	// pause lets the queue run empty, so that nothing is returned by the instances that stop.
	pause := func() {
		t.Helper()
		ask <- nil
		until("the queue is empty", func() bool { return j.missing() == 0 && broker.Depth(queue) == 0 })
	}

	// The queue is there, with messages in it, before anything of ours is.
	before := must(amqp.NewSubscriber(plain, watermill.NopLogger{}))(t)
	require.NoError(t, before.SubscribeInitialize(queue))
	require.NoError(t, before.Close())
	ask <- healthy
	until("messages wait", func() bool { return broker.Depth(queue) >= 10 })
	stopStock := stock(stockFirst, instances, r.rolls && !r.bearsReturns)
	works(stockFirst)

	// Policy off first, everywhere.
	var offs [2]*service
	if r.rolls {
		offs = pair(offFirst, config.Policy{Mode: config.ModeOff})
		works(offFirst)
		stopStock()
	} else {
		pause()
		stopStock()
		offs = pair(offFirst, config.Policy{Mode: config.ModeOff})
		ask <- healthy
	}
	works(offFirst)

	// Policies second, beside policy off: retries come to either.
	policies := pair(policiesOn, config.Policy{Delays: ms(50, 50)})
	until("either handles what failed with the policies", func() bool {
		return j.from(policiesOn, offFirst) >= 3 && j.from(policiesOn, policiesOn) >= 3
	})
	offs[0].close()
	offs[1].close()
	operator(policiesAreOn)

	// All have policies. Only now is it defined what becomes of a message that never succeeds.
	deadLetters := func() int { return policies[0].deadLettered() + policies[1].deadLettered() }
	ask <- []string{kindOK, kindFlaky, kindDoomed}
	until("dead letters", func() bool { return deadLetters() >= 5 })
	ask <- healthy
	doomed := j.count(func(id string, _ []string, _ string) bool { return is(id, kindDoomed) })
	until("all that were doomed are dead", func() bool { return deadLetters() >= doomed })

	// The rollback: policy off everywhere, until nothing waits and nothing that has waited is left.
	offs = pair(offAgain, config.Policy{Mode: config.ModeOff})
	policies[0].close()
	policies[1].close()
	until("no retry is left", func() bool {
		left := j.count(func(id string, calls []string, done string) bool {
			return done == "" && len(calls) > 0 && calls[0] == policiesOn && !is(id, kindDoomed)
		})

		return left == 0 && (exactMode || broker.Depth(queue+".retry.50ms") == 0)
	})
	works(offAgain)
	operator(leavingIsNext)
	if r.bearsReturns {
		stopStock = stock(stockAgain, 2, false)
		offs[0].close()
		offs[1].close()
	} else {
		pause()
		offs[0].close()
		offs[1].close()
		stopStock = stock(stockAgain, 2, false)
		ask <- healthy
	}
	works(stockAgain)
	pause()
	stopStock()
	j.check(t, broker.Drain(queue+".dlq"))
}

func (j *journey) check(t *testing.T, letters []amqp091.Delivery) {
	t.Helper()
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
			assert.LessOrEqual(t, len(calls), 5, "%s: %v", id, calls)
		}
	}
	assert.Equal(t, expected, reasons(letters))
	assert.Len(t, letters, len(expected), "none twice")
	t.Logf("%d messages, %d dead letters, at most %d calls", len(j.published), len(letters), most)
}
