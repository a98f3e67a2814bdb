package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkTopics measures what it takes to serve many topics: the time to start, and the broker's
// memory.
func BenchmarkTopics(b *testing.B) {
	t := report.Table{
		Title: "Very many topics",
		Notes: []string{
			"Seconds from making the subscriber until a message has come from the queue of each topic; all are " +
				"subscribed to one after the other, as a Watermill router does. *First* with nothing declared, " +
				"*again* when all is there. Memory is what the broker's Erlang machine has in use above what it had " +
				"before, after a collection of garbage. Main queues are classic; the retrier has the default policy " +
				"of 5 delays. A single run each, on a broker of its own.",
		},
		Head: []string{"topics", "retry queues", "first / stock", "again / stock", "first, s", "again, s",
			"broker, MiB", "broker, KiB per topic", "client, KiB per topic"},
	}
	reference := map[int]figures{}
	for _, c := range []struct {
		name    string
		connect func(*testing.B) (subscriber message.Subscriber, stop func() error)
	}{
		{"none: stock", openStock},
		{"own", func(b *testing.B) (message.Subscriber, func() error) { return openRetrier(b, config.StrategyQueues) }},
		{"shared", func(b *testing.B) (message.Subscriber, func() error) {
			return openRetrier(b, config.StrategyShared)
		}},
	} {
		b.Run(report.Unit(c.name), func(b *testing.B) {
			once(b, func() {
				broker := newBroker(b)
				_, stop := serve(b, []string{"warm-up"}, c.connect)
				stop()
				for _, n := range numbersOfTopics(b) {
					topics := make([]string, n)
					for i := range topics {
						topics[i] = fmt.Sprintf("bench-%d-%d", n, i)
					}
					before, clientBefore := brokerMiB(b, broker), clientMiB()

					f := figures{}
					f["first-s"], stop = serve(b, topics, c.connect)
					f["client-KiB"] = (clientMiB() - clientBefore) * 1024 / float64(n)
					f["broker-MiB"] = brokerMiB(b, broker) - before
					stop()
					f["again-s"], stop = serve(b, topics, c.connect)
					stop()

					if reference[n] == nil {
						reference[n] = f
					}
					t.Add(n, c.name, f["first-s"]/reference[n]["first-s"], f["again-s"]/reference[n]["again-s"],
						f["first-s"], f["again-s"],
						f["broker-MiB"], f["broker-MiB"]*1024/float64(n), f["client-KiB"])
					for unit, value := range f {
						b.ReportMetric(value, strconv.Itoa(n)+":"+unit)
					}
				}
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// BenchmarkStart measures what a router with many topics takes until it runs, against the time that
// a program needs to declare the same objects, 8 at a time over 8 channels.
func BenchmarkStart(b *testing.B) {
	t := report.Table{
		Title: "Start of a router",
		Notes: []string{
			"Time until a router of one subscriber runs, divided by the time in which a program that does nothing " +
				"else declares the same objects over 8 channels. *First* with nothing declared, *again* when all is " +
				"there. Main queues are classic; the retrier has the default policy of 5 delays. Medians.",
		},
		Head: []string{"topics", "retry queues", "plugin", "first / raw", "again / raw", "first, s", "again, s",
			"raw first, s", "raw again, s"},
	}
	uri := newBroker(b).URI
	for _, scope := range []config.Strategy{config.StrategyQueues, config.StrategyShared} {
		for _, n := range numbersOfTopics(b) {
			b.Run(fmt.Sprintf("%s-%d", scope, n), func(b *testing.B) {
				var contenders []report.Contender
				for _, way := range []string{"raw", "with", "without"} {
					run := func(b *testing.B) map[string]float64 {
						s := newStart(b, scope, way, n)
						defer s.remove(b)

						return map[string]float64{"first-s": s.time(b), "again-s": s.time(b)}
					}
					contenders = append(contenders, report.Contender{Name: way, Run: run})
				}
				r := report.Compare(b, contenders...)
				for _, way := range []string{"with", "without"} {
					t.Add(n, scope, way, r.Ratio(way, "raw", "first-s"), r.Ratio(way, "raw", "again-s"),
						r.Median(way, "first-s"), r.Median(way, "again-s"),
						r.Median("raw", "first-s"), r.Median("raw", "again-s"))
				}
			})
		}
	}
	t.WriteOn(b, uri)
}

// starting is one way to declare the objects of many topics.
type starting struct {
	way     string
	options amqpretry.Options
	topics  []string
	plans   []topology.Plan
}

// newStart makes topics that do not exist yet.
func newStart(b *testing.B, scope config.Strategy, way string, n int) *starting {
	b.Helper()
	id := watermill.NewShortUUID()
	s := &starting{way: way,
		options: amqpretry.Options{Policies: config.Policies{Default: config.Policy{Strategy: scope}}}}
	s.options.Names.Shared = "bench-" + id
	retrier := newRetrier(b, durable(b, "classic", amqpretry.DefaultPrefetch), s.options)
	for i := range n {
		topic := fmt.Sprintf("bench-%s-%d", id, i)
		plan, err := retrier.Plan(topic)
		require.NoError(b, err)
		s.topics, s.plans = append(s.topics, topic), append(s.plans, plan)
	}
	require.NoError(b, retrier.Close())

	return s
}

// time is how many seconds it takes, connecting not included.
func (s *starting) time(b *testing.B) float64 {
	b.Helper()
	if s.way == "raw" {
		return s.raw(b, func(channel *amqp091.Channel, plan topology.Plan) error {
			_, err := channel.QueueDeclare(plan.Queue, true, false, false, false, arguments("classic"))
			if err != nil {
				return err
			}

			return plan.Declare(channel)
		})
	}
	router := newRouter(b)
	retrier := newRetrier(b, durable(b, "classic", amqpretry.DefaultPrefetch), s.options)
	router.AddMiddleware(retrier.Middleware)
	if s.way == "with" {
		router.AddPlugin(retrier.CheckRouter)
	}
	subscriber, err := retrier.NewSubscriber()
	require.NoError(b, err)
	for _, topic := range s.topics {
		router.AddConsumerHandler(topic, topic, subscriber, func(*message.Message) error { return nil })
	}
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		b.Fatal(err)
	}
	took := time.Since(began).Seconds()
	require.NoError(b, router.Close())
	require.NoError(b, retrier.Close())

	return took
}

// raw does something for each plan, over 8 channels of a connection. What many plans share is done
// once.
func (s *starting) raw(b *testing.B, do func(*amqp091.Channel, topology.Plan) error) float64 {
	b.Helper()
	connection := dial(b)
	defer connection.Close()
	plans := slices.Clone(s.plans)
	if s.options.Policies.Default.Strategy == config.StrategyShared {
		isShared := func(b topology.Binding) bool { return b.Exchange == plans[0].RetryExchange }
		for i := range plans[1:] {
			p := &plans[i+1]
			p.Exchanges = nil
			p.Queues = slices.DeleteFunc(slices.Clone(p.Queues), func(q topology.Queue) bool { return q.Shared })
			p.Bindings = slices.DeleteFunc(slices.Clone(p.Bindings), isShared)
		}
	}
	began := time.Now()
	var channels []*amqp091.Channel
	for range 8 {
		channel, err := connection.Channel()
		require.NoError(b, err)
		channels = append(channels, channel)
	}
	require.NoError(b, do(channels[0], plans[0])) // with what the others share
	next := make(chan topology.Plan, len(plans))
	for _, plan := range plans[1:] {
		next <- plan
	}
	close(next)
	var all sync.WaitGroup
	for _, channel := range channels {
		all.Go(func() {
			for plan := range next {
				assert.NoError(b, do(channel, plan))
			}
		})
	}
	all.Wait()

	return time.Since(began).Seconds()
}

// remove deletes what was declared.
func (s *starting) remove(b *testing.B) {
	b.Helper()
	s.raw(b, func(channel *amqp091.Channel, plan topology.Plan) error {
		for _, queue := range append(plan.Queues, topology.Queue{Name: plan.Queue}) {
			if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return err
			}
		}
		for _, exchange := range plan.Exchanges {
			if err := channel.ExchangeDelete(exchange.Name, false, false); err != nil {
				return err
			}
		}

		return nil
	})
}

// numbersOfTopics go as far as SCALE leaves time for.
func numbersOfTopics(b *testing.B) []int {
	b.Helper()
	switch s := report.Scale(b); {
	case s >= 0.5:
		return []int{1, 10, 100, 1000}
	case s >= 0.1:
		return []int{1, 10, 100}
	default:
		return []int{10}
	}
}

func openStock(b *testing.B) (message.Subscriber, func() error) {
	b.Helper()
	return stock(b, nil, durable(b, "classic", amqpretry.DefaultPrefetch))
}

func openRetrier(b *testing.B, strategy config.Strategy) (message.Subscriber, func() error) {
	b.Helper()
	options := amqpretry.Options{Policies: config.Policies{Default: config.Policy{Strategy: strategy}}}
	return ownConsumer(options)(b, newRouter(b), durable(b, "classic", amqpretry.DefaultPrefetch))
}

// serve subscribes to all topics and gives the seconds until a message has come from each. stop
// stops it.
func serve(b *testing.B, topics []string, connect func(*testing.B) (message.Subscriber, func() error)) (seconds float64,
	stop func()) {
	b.Helper()
	began := time.Now()
	subscriber, closeAll := connect(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()

	var all sync.WaitGroup
	for _, topic := range topics {
		messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), topic)
		require.NoError(b, err)
		all.Go(func() {
			select {
			case msg := <-messages:
				msg.Ack()
			case <-ctx.Done():
			}
		})
	}
	oneEach(b, topics)
	all.Wait()
	require.NoError(b, ctx.Err(), "a topic is not served")

	return time.Since(began).Seconds(), func() { require.NoError(b, closeAll()) }
}

// oneEach publishes a message to each queue.
func oneEach(b *testing.B, queues []string) {
	b.Helper()
	channel := open(b)
	defer channel.Close()
	for _, queue := range queues {
		publishNumbered(b, channel.Channel, queue, 0)
	}
}
