package amqpretry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	routermiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// uri is of a port where nobody listens: nothing here may touch a broker.
const uri = "amqp://guest:guest@127.0.0.1:1/"

func durable() amqp.Config { return amqp.NewDurableQueueConfig(uri) }

// paths lists the fields that an error of New complains about.
func paths(err error) []string {
	var (
		found []string
		walk  func(error)
	)
	walk = func(err error) {
		if f, ok := err.(*config.FieldError); ok { //nolint:errorlint // the tree is walked here
			found = append(found, f.Path)
			return
		}
		switch e := err.(type) { //nolint:errorlint // the tree is walked here
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				walk(inner)
			}
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				walk(inner)
			}
		}
	}
	walk(err)

	return found
}

func TestNewTakesTheDurableConfigs(t *testing.T) {
	t.Parallel()

	retrierOf(t, durable(), amqpretry.Options{})
	retrierOf(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("group")),
		amqpretry.Options{})
	exclusive := durable() // which is fine where the consumer is the only one
	exclusive.Consume.Exclusive = true
	retrierOf(t, exclusive, amqpretry.Options{Concurrency: 1})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		config func(*amqp.Config)
		option func(*amqpretry.Options)
		path   string
		says   string
	}{
		"non-durable queues": {config: func(c *amqp.Config) { c.Queue.Durable = false },
			path: "Config.Queue.Durable", says: "must be true"},
		"streams": {config: func(c *amqp.Config) { c.Queue.Arguments = amqp091.Table{"x-queue-type": "stream"} },
			path: `Config.Queue.Arguments["x-queue-type"]`, says: "must not be stream"},
		"auto-delete queues": {config: func(c *amqp.Config) { c.Queue.AutoDelete = true },
			path: "Config.Queue.AutoDelete", says: "must be false"},
		"exclusive queues": {config: func(c *amqp.Config) { c.Queue.Exclusive = true },
			path: "Config.Queue.Exclusive", says: "must be false"},
		"transactional publishing": {config: func(c *amqp.Config) { c.Publish.Transactional = true },
			path: "Config.Publish.Transactional", says: "ConfirmDelivery"},
		"no requeue on nack": {config: func(c *amqp.Config) { c.Consume.NoRequeueOnNack = true },
			path: "Config.Consume.NoRequeueOnNack", says: "must be false"},
		"global QoS": {config: func(c *amqp.Config) { c.Consume.Qos.Global = true },
			path: "Config.Consume.Qos.Global", says: "must be false"},
		"a negative prefetch": {config: func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = -1 },
			path: "Config.Consume.Qos.PrefetchCount", says: "got -1"},
		"a prefetch beyond AMQP's": {config: func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = 65536 },
			path: "Config.Consume.Qos.PrefetchCount", says: "got 65536"},
		"a prefetch in bytes": {config: func(c *amqp.Config) { c.Consume.Qos.PrefetchSize = 1 },
			path: "Config.Consume.Qos.PrefetchSize", says: "does not implement"},
		"an option beyond it": {option: func(o *amqpretry.Options) { o.Prefetch = 65536 },
			path: "Options.Prefetch", says: "65536"},
		"a negative option": {option: func(o *amqpretry.Options) { o.Prefetch = -1 },
			path: "Options.Prefetch", says: "-1"},
		"a concurrency beyond it": {option: func(o *amqpretry.Options) { o.Concurrency = 65536 },
			path: "Options.Concurrency", says: "65536"},
		"an exclusive consumer with concurrency": {
			config: func(c *amqp.Config) { c.Consume.Exclusive = true },
			option: func(o *amqpretry.Options) { o.Concurrency = 2 },
			path:   "Config.Consume.Exclusive", says: "Concurrency 2",
		},
		"TLS given twice": {config: func(c *amqp.Config) {
			c.Connection.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
			c.Connection.AmqpConfig = &amqp091.Config{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
		}, path: "Config.Connection.TLSConfig", says: "TLSClientConfig"},

		"a negative concurrency": {option: func(o *amqpretry.Options) { o.Concurrency = -1 },
			path: "Options.Concurrency", says: "-1"},
		"a negative close timeout": {option: func(o *amqpretry.Options) { o.CloseTimeout = -time.Second },
			path: "Options.CloseTimeout", says: "-1s"},
		"a negative hold warning": {option: func(o *amqpretry.Options) { o.HoldWarning = -time.Second },
			path: "Options.HoldWarning", says: "-1s"},
		"a bad default policy": {
			option: func(o *amqpretry.Options) { o.Policies.Default.Delays = []time.Duration{time.Microsecond} },
			path:   "Options.Policies.Default.Delays[0]", says: "1µs",
		},
		"a bad policy of a topic": {
			option: func(o *amqpretry.Options) {
				o.Policies.Topics = map[string]config.Policy{"orders": {Delays: []time.Duration{time.Second, 0}}}
			},
			path: `Options.Policies.Topics["orders"].Delays[1]`, says: "at least 1ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			conf, options := durable(), amqpretry.Options{}
			if test.config != nil {
				test.config(&conf)
			}
			if test.option != nil {
				test.option(&options)
			}

			retrier, err := adapter.New(conf, options)
			require.Error(t, err)
			assert.Nil(t, retrier)
			assert.Equal(t, []string{test.path}, paths(err), "this and nothing else")
			assert.ErrorContains(t, err, test.path)
			assert.ErrorContains(t, err, test.says)
		})
	}
}

func TestNewReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()

	conf := durable()
	conf.Marshaler, conf.Queue.GenerateName, conf.Connection.AmqpURI = nil, nil, "" // watermill-amqp's own complaints
	conf.Queue.Durable = false
	conf.Publish.Transactional = true
	conf.Consume.Qos.Global = true

	_, err := adapter.New(conf, amqpretry.Options{
		Concurrency: -3,
		Policies: config.Policies{
			Default: config.Policy{Delays: []time.Duration{0, time.Second, time.Microsecond}},
			Topics:  map[string]config.Policy{"orders": {CrashLimit: 20}},
		},
	})
	require.Error(t, err)

	assert.ElementsMatch(t, []string{
		"Options.Policies.Default.Delays[0]", "Options.Policies.Default.Delays[2]",
		`Options.Policies.Topics["orders"].CrashLimit`,
		"Options.Concurrency",
		"Config.Queue.Durable", "Config.Publish.Transactional", "Config.Consume.Qos.Global",
	}, paths(err))
	for _, own := range []string{"AmqpURI", "missing Config.Marshaler", "missing Config.Queue.GenerateName"} {
		assert.ErrorContains(t, err, own)
	}

	for line := range strings.SplitSeq(err.Error(), "\n") {
		assert.NotEmpty(t, strings.TrimSpace(line), "one line for each, none empty")
	}
	// A heading, three of watermill-amqp, seven of ours.
	assert.Len(t, strings.Split(err.Error(), "\n"), 1+3+7)
}

func TestPlanRefusesNames(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		queue string
		says  string
	}{
		"empty":                       {"", "server-named queues"},
		"of the broker":               {"amq.orders", "the broker's own"},
		"256 bytes":                   {strings.Repeat("q", 256), "the broker takes 255"},
		"255 bytes, with the suffix":  {strings.Repeat("q", 255), "retry queue for 10m"},
		"fits only without the delay": {strings.Repeat("q", 255-len(".retry")), "retry queue for 30s"},
		"not UTF-8":                   {"orders\xff", "not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			conf := durable()
			conf.Queue.GenerateName = func(string) string { return test.queue }
			retrier := retrierOf(t, conf, amqpretry.Options{})
			_, err := retrier.Plan("orders")
			var refused *topology.NameError
			require.ErrorAs(t, err, &refused)
			assert.ErrorContains(t, err, test.says)

			// On a stock subscriber the same error comes out of the builder, before the channel is
			// used: here is none.
			stock := retrier.Config()
			err = amqp.BuildTopology(stock, "orders", stock.Queue.GenerateName("orders"))
			require.ErrorAs(t, err, &refused)
			assert.ErrorContains(t, err, test.says)
		})
	}
}

// The longest name that still has room for the longest suffix is taken.
func TestPlanTakesTheLongestName(t *testing.T) {
	t.Parallel()

	retrier := retrierOf(t, durable(), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{1500 * time.Millisecond}}},
	})

	longest := strings.Repeat("q", 255-len(".retry.1500ms"))
	plan, err := retrier.Plan(longest)
	require.NoError(t, err)
	assert.Len(t, plan.Queues[0].Name, 255)

	_, err = retrier.Plan(longest + "q")
	require.Error(t, err)
}

// subscribed registers topics as stock subscribers do, and gives the error of the last.
func subscribed(retrier *adapter.Retrier, topics ...string) error {
	var (
		stock        = retrier.Config()
		topic, queue string
	)
	for _, topic = range topics {
		queue = stock.Queue.GenerateName(topic)
	}

	return amqp.BuildTopology(stock, topic, queue)
}

func TestStockSubscribersAreRefusedBeforeTheBrokerIsTouched(t *testing.T) {
	t.Parallel()

	t.Run("two topics, one queue, different policies", func(t *testing.T) {
		t.Parallel()

		conf := durable()
		conf.Queue.GenerateName = func(string) string { return "all" }
		retrier := retrierOf(t, conf, amqpretry.Options{Policies: config.Policies{
			Topics: map[string]config.Policy{"orders": {Delays: []time.Duration{time.Second}}},
		}})

		var shared *topology.SharedQueueError
		require.ErrorAs(t, subscribed(retrier, "invoices", "orders"), &shared)
		assert.Equal(t, topology.SharedQueueError{Queue: "all", Topics: [2]string{"invoices", "orders"}}, *shared)
	})

	t.Run("a queue that another one's dead-letter queue is named as", func(t *testing.T) {
		t.Parallel()

		retrier := retrierOf(t, durable(), amqpretry.Options{})

		var refused *topology.NameError
		require.ErrorAs(t, subscribed(retrier, "orders", "orders.dlq"), &refused)
	})

	t.Run("a name that is not stable", func(t *testing.T) {
		t.Parallel()

		conf := durable()
		n := 0
		conf.Queue.GenerateName = func(topic string) string { n++; return topic + strings.Repeat("x", n) }
		retrier := retrierOf(t, conf, amqpretry.Options{})
		assert.ErrorContains(t, subscribed(retrier, "orders", "orders"),
			`topic "orders" gave "ordersx" and then "ordersxx"`)
	})

	t.Run("a queue that was not generated", func(t *testing.T) {
		t.Parallel()

		stock := retrierOf(t, durable(), amqpretry.Options{}).Config()
		err := amqp.BuildTopology(stock, "orders", "elsewhere")
		assert.ErrorContains(t, err, `"elsewhere" was not generated`)
	})
}

func TestClosedRetrierGivesNoSubscriber(t *testing.T) {
	t.Parallel()

	retrier, err := adapter.New(durable(), amqpretry.Options{})
	require.NoError(t, err)
	require.NoError(t, retrier.Close())
	require.NoError(t, retrier.Close(), "closing again does nothing")

	_, err = retrier.NewSubscriber()
	assert.ErrorContains(t, err, "closed")
}

// delivered is a subscriber that hands out deliveries as a stock subscriber on the retrier's config
// does, without a broker.
type delivered struct {
	config     amqp.Config
	deliveries chan amqp091.Delivery
}

func (s delivered) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.config.Queue.GenerateName(topic)
	out := make(chan *message.Message)

	go func() {
		defer close(out)
		for {
			select {
			case d := <-s.deliveries:
				msg, _ := s.config.Marshaler.Unmarshal(d) // never an error
				msg.SetContext(ctx)
				out <- msg
				select {
				case <-msg.Acked():
					_ = d.Ack(false)
				case <-msg.Nacked():
					_ = d.Nack(false, true)
				}
			case <-ctx.Done():
				return
			}
		}
	}()

	return out, nil
}

func (s delivered) Close() error { return nil }

// answers notes what becomes of deliveries.
type answers chan string

func (a answers) Ack(uint64, bool) error        { a <- "ack"; return nil }
func (a answers) Nack(uint64, bool, bool) error { a <- "nack"; return nil }
func (a answers) Reject(uint64, bool) error     { a <- "reject"; return nil }

func (a answers) await(t *testing.T) string {
	t.Helper()
	return await.Value(t, a, "the delivery is answered")
}

// errorLog keeps what is logged as an error.
type errorLog struct {
	watermill.NopLogger
	mu     sync.Mutex
	errors []error
}

func (l *errorLog) Error(_ string, err error, _ watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors = append(l.errors, err)
}

func (l *errorLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// orderErrors are the complaints about the order of middlewares.
func (l *errorLog) orderErrors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	var found []string
	for _, err := range l.errors {
		if errors.As(err, new(*middleware.OrderError)) {
			found = append(found, err.Error())
		}
	}

	return found
}

func runRouter(t *testing.T, add func(*message.Router)) {
	t.Helper()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	add(router)

	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-done)
	})

	await.Closed(t, router.Running(), "the router runs")
}

func TestWrongOrderOfMiddlewaresIsReported(t *testing.T) {
	t.Parallel()

	poison, err := routermiddleware.PoisonQueue(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		"poison")
	require.NoError(t, err)
	retry := routermiddleware.Retry{MaxRetries: 1}.Middleware

	type chain = []message.HandlerMiddleware
	for name, test := range map[string]struct {
		outside, inside chain
		reported        []string
	}{
		"right: Retry inside":  {nil, chain{retry}, nil},
		"right: others around": {chain{routermiddleware.CorrelationID}, chain{routermiddleware.Recoverer}, nil},
		"Retry outside":        {chain{retry}, nil, []string{"Watermill's Retry is added before"}},
		"PoisonQueue outside":  {chain{poison}, nil, []string{"Watermill's PoisonQueue is added before"}},
		"PoisonQueue inside":   {nil, chain{poison}, []string{"Watermill's PoisonQueue is added after"}},
		"all of it": {chain{poison, retry}, chain{poison},
			[]string{"PoisonQueue is added after", "Retry is added before", "PoisonQueue is added before"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			log := &errorLog{}
			retrier := retrierOf(t, durable(), amqpretry.Options{Logger: log})

			subscriber, answered := delivered{retrier.Config(), make(chan amqp091.Delivery)}, make(answers, 1)
			runRouter(t, func(r *message.Router) {
				r.AddMiddleware(slices.Concat(test.outside, chain{retrier.Middleware}, test.inside)...)
				r.AddConsumerHandler("handler", "orders", subscriber, func(*message.Message) error { return nil })
			})

			for range 2 { // a mistake is reported once, not for every message
				subscriber.deliveries <- amqp091.Delivery{Acknowledger: answered, Body: []byte("order")}
				require.Equal(t, "ack", answered.await(t))
			}

			found := log.orderErrors()
			require.Len(t, found, len(test.reported), "%q", found)
			for i, want := range test.reported {
				assert.Contains(t, found[i], want)
			}
		})
	}
}

// A message of another Pub/Sub in the same router: its handler's error stays Watermill's business.
func TestForeignMessagesPassUntouched(t *testing.T) {
	t.Parallel()

	log := &errorLog{}
	retrier := retrierOf(t, durable(), amqpretry.Options{Logger: log})

	for name, ours := range map[string]message.HandlerMiddleware{"retry": retrier.Middleware,
		"poison": retrier.Poison} {
		t.Run(name, func(t *testing.T) {
			pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
			failed := errors.New("gochannel's own")

			var (
				mu     sync.Mutex
				seen   []error
				known  bool
				passed []*message.Message
			)
			called := make(chan struct{}, 10)

			runRouter(t, func(r *message.Router) {
				r.AddMiddleware(
					func(h message.HandlerFunc) message.HandlerFunc {
						return func(msg *message.Message) ([]*message.Message, error) {
							produced, err := h(msg)
							mu.Lock()
							seen, passed = append(seen, err), produced
							mu.Unlock()
							called <- struct{}{}

							return nil, nil
						}
					},
					ours,
				)
				r.AddHandler("handler", "orders", pubSub, "outputs", pubSub,
					func(msg *message.Message) ([]*message.Message, error) {
						_, known = retry.AttemptFromContext(msg.Context())
						return message.Messages{message.NewMessage("output", nil)}, failed
					})
			})

			sent := message.NewMessage("1", []byte("order"))
			sent.Metadata.Set("key", "value")
			require.NoError(t, pubSub.Publish("orders", sent))
			await.Closed(t, called, "the handler is called")

			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, []error{failed}, seen, "the error is the very one")
			assert.Len(t, passed, 1, "and so are the outputs")
			assert.False(t, known)
			assert.Empty(t, log.errors)
		})
	}
}

// A ghost is what a stock subscriber makes of the broker's cancelling its consumer. It must reach
// no handler, and be nacked, which makes the subscriber reconnect.
func TestGhostReachesNoHandler(t *testing.T) {
	t.Parallel()

	retrier := retrierOf(t, durable(), amqpretry.Options{})

	subscriber, answered := delivered{retrier.Config(), make(chan amqp091.Delivery)}, make(answers, 1)
	handled := make(chan string, 10)
	runRouter(t, func(r *message.Router) {
		r.AddMiddleware(retrier.Middleware)
		r.AddConsumerHandler("handler", "orders", subscriber, func(msg *message.Message) error {
			handled <- string(msg.Payload)
			return nil
		})
	})

	subscriber.deliveries <- amqp091.Delivery{}
	// taken when the ghost was answered
	subscriber.deliveries <- amqp091.Delivery{Acknowledger: answered, Body: []byte("order")}
	require.Equal(t, "ack", answered.await(t))
	require.Len(t, handled, 1)
	assert.Equal(t, "order", <-handled)
}
