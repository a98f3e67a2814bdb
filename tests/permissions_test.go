package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	amqpdelay "github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

const declares, assumes = false, true

type permissions [3]string

var permissionNames = [3]string{"configure", "write", "read"}

func documentedPermissions(t *testing.T) map[string]permissions {
	t.Helper()
	page := must(os.ReadFile("../docs/how-to/permissions.md"))(t)
	found := map[string]permissions{}
	for _, m := range regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p / ([a-z-]+) '(.*)' '(.*)' '(.*)'$`).
		FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, found, m[1])
		found[m[1]] = permissions{m[2], m[3], m[4]}
	}
	require.Len(t, found, strings.Count(string(page), "set_permissions -p"), "every line is read")

	return found
}

func (p permissions) narrowed(t *testing.T) map[string]permissions {
	t.Helper()
	all := map[string]permissions{}
	for i, pattern := range p {
		if pattern == "^$" {
			continue
		}
		require.Regexp(t, `^\^\(.*\)\$$`, pattern)
		names := strings.Split(pattern[2:len(pattern)-2], "|")
		for n, name := range names {
			less := p
			less[i] = "^$"
			if rest := append(append([]string{}, names[:n]...), names[n+1:]...); len(rest) > 0 {
				less[i] = "^(" + strings.Join(rest, "|") + ")$"
			}
			all[permissionNames[i]+" "+name] = less
		}
	}

	return all
}

type roleTest struct {
	t              *testing.T
	admin, uri     string // of the virtual host, for one who may do everything and for the role
	api            *httpapi.Client
	passiveIsAsked bool // the broker asks for a permission for a passive declaration
	strategy       config.Strategy
	watch          time.Duration // how long a replay watches its canary
}

// roles are the lives: each does all that its role is for and gives the first refusal.
var roles = map[string]func(*roleTest) error{
	"consumer":        consumesWith("", declares),
	"consumer-shared": consumesWith(config.StrategyShared, declares),
	"consumer-exact":  consumesWith(config.StrategyLadder, declares),
	"consumer-cycle":  consumesWith(config.StrategyCycle, declares),
	"consumer-fanout": func(r *roleTest) error { return r.consume(billing, "events", declares) },
	"worker":          consumesWith("", assumes),
	"worker-canary":   (*roleTest).canary,
	"worker-shared":   consumesWith(config.StrategyShared, assumes),
	"worker-exact":    consumesWith(config.StrategyLadder, assumes),
	"observer":        func(r *roleTest) error { return r.observe(2) },
	"observer-exact": func(r *roleTest) error {
		r.strategy = config.StrategyLadder
		return r.observe(56) // those of the ladder with its unroutable queue, and the dead-letter queue
	},
	"dead-letters":         func(r *roleTest) error { return r.deadLetters(declares) },
	"dead-letters-assumed": func(r *roleTest) error { return r.deadLetters(assumes) },
	"replay":               (*roleTest).replay,
	"browser": counts(func(r *roleTest, q *dlq.Queue) (int, error) {
		stat, err := q.Stat(r.t.Context(), dlq.Filter{})
		return stat.Matched, err
	}),
	"replayer": func(r *roleTest) error {
		return r.deadLetterQueue(func(q *dlq.Queue) error {
			report, err := q.Run(r.t.Context(), dlq.Plan{Kind: dlq.Replay, Foreign: true,
				Canary: dlq.Canary{Messages: 1}})
			if err != nil {
				return err
			}
			assert.Contains(r.t, report.Canary.Stopped, "has no consumer")
			report, err = q.Run(r.t.Context(), dlq.Plan{Kind: dlq.Replay, Foreign: true})
			if err == nil {
				assert.Equal(r.t, 1, report.Done)
			}
			return err
		})
	},
	"purger": counts(func(r *roleTest, q *dlq.Queue) (int, error) {
		report, err := q.Run(r.t.Context(), dlq.Plan{Kind: dlq.Purge})
		return report.Done, err
	}),
	"importer": counts(func(r *roleTest, q *dlq.Queue) (int, error) {
		report, err := q.Import(r.t.Context(), strings.NewReader(`{"v":1,"body":"1"}`+"\n"), dlq.ImportOptions{})
		return report.Done, err
	}),
	"publisher": func(r *roleTest) error { return r.publish(queueConfig, "orders", declares) },
	"publisher-fanout": func(r *roleTest) error {
		return r.publish(billing, "events", declares)
	},
	"delay-publisher":          func(r *roleTest) error { return r.publishLater(declares) },
	"delay-publisher-assumed":  func(r *roleTest) error { return r.publishLater(assumes) },
	"publisher-fanout-assumed": func(r *roleTest) error { return r.publish(billing, "events", assumes) },
	"retire":                   (*roleTest).retire,
}

func consumesWith(strategy config.Strategy, assume bool) func(*roleTest) error {
	return func(r *roleTest) error {
		r.strategy = cmp.Or(strategy, r.strategy)
		return r.consume(queueConfig, "orders", assume)
	}
}

// counts does something with a dead-letter queue that has one message, and finds it.
func counts(do func(*roleTest, *dlq.Queue) (int, error)) func(*roleTest) error {
	return func(r *roleTest) error {
		return r.deadLetterQueue(func(q *dlq.Queue) error {
			n, err := do(r, q)
			if err == nil {
				assert.Equal(r.t, 1, n)
			}

			return err
		})
	}
}

func queueConfig(uri string) amqp.Config {
	conf := plainConfig(uri, "quorum")

	return conf
}

func billing(uri string) amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
}

// The documented permissions are enough for the whole life of each role, and with any single name
// less something of it is refused.
func TestPermissions_OwnBroker(t *testing.T) {
	t.Parallel()

	documented := documentedPermissions(t)
	for role := range documented {
		require.Contains(t, roles, role)
	}
	broker := brokertest.Shared(t)
	// Else what the API says of a queue is 10 s old.
	broker.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")
	passiveIsAsked := newRabbit(t, broker.URI).AtLeast(4, 3)
	operator := &obsoleteBroker{broker: broker}

	var vhosts atomic.Int64
	enter := func(t *testing.T, role string, p permissions) *roleTest {
		t.Helper()
		n := vhosts.Add(1)
		vhost, user := fmt.Sprintf("v%d", n), fmt.Sprintf("%s-%d", role, n)
		operator.put(t, `{}`, "vhosts", vhost)
		operator.put(t, `{"password": "secret", "tags": "management"}`, "users", user)
		operator.permit(t, vhost, user, p[0], p[1], p[2])
		operator.permit(t, vhost, "guest", ".*", ".*", ".*")
		at := func(user *url.Userinfo) string {
			uri := must(url.Parse(broker.URI))(t)
			uri.User, uri.Path = user, "/"+vhost

			return uri.String()
		}
		api := operator.asIn(t, vhost, user, "secret")

		return &roleTest{t, at(url.UserPassword("guest", "guest")), at(url.UserPassword(user, "secret")), api,
			passiveIsAsked, config.StrategyQueues, 10 * time.Second}
	}

	for role, life := range roles {
		t.Run(role, func(t *testing.T) {
			t.Parallel() // above all retire, which takes its time
			all, isDocumented := documented[role]
			require.True(t, isDocumented, "a line in docs/how-to/permissions.md")
			enough := enter(t, role, all)
			enough.watch = await.Bound // it ends as soon as the canary is handled
			less := map[string]*roleTest{}
			for missing, p := range all.narrowed(t) {
				if testing.Short() && len(less) == 2 { // which two differs from run to run
					break
				}
				less[missing] = enter(t, role, p)
			}
			t.Run("enough", func(t *testing.T) {
				t.Parallel()
				enough.t = t
				require.NoError(t, life(enough))
			})
			for missing, r := range less {
				t.Run("without "+missing, func(t *testing.T) {
					t.Parallel()
					r.t = t
					err := life(r)
					if !r.passiveIsAsked && slices.Contains(passiveOnly[role], missing) {
						require.NoError(t, err, "older brokers ask for nothing")
						return
					}
					require.Error(t, err, "it is not needed")
					isRefusal(t, role, err)
				})
			}
		})
	}
}

// passiveOnly is what is only needed to declare passively, for which older brokers ask for nothing.
var passiveOnly = map[string][]string{
	"observer": {`write orders\.retry\..*`, `write orders\.dlq`},
	"observer-exact": {`write amqpretry\.delay\..*[smh]`, `write amqpretry\.delay\..*\.unroutable`,
		`write orders\.dlq`},
	"replayer": {`write orders`},
	"importer": {`write orders\.dlq`},
}

// isRefusal wants the typed error of each role, which says what is missing.
func isRefusal(t *testing.T, role string, err error) {
	t.Helper()
	var (
		access     *topology.AccessError
		held       *topology.HeldError
		broker     *amqp091.Error
		unsafe     *dlq.UnsafeError
		management *httpapi.Error
	)
	switch {
	case errors.As(err, &management):
		assert.Contains(t, []int{401, 403}, management.Status)
		assert.Equal(t, "retire", role)
	case errors.As(err, &access):
		assert.NotEmpty(t, access.Name)
		assert.Contains(t, access.User, role)
		if strings.Contains(role, "assumed") {
			assert.NotContains(t, err.Error(), "set AssumeTopology", "it is set already")
		}
	case errors.As(err, &unsafe):
		assert.Contains(t, unsafe.Error(), "grant configure")
	case errors.As(err, &held), role == "replay":
		require.ErrorAs(t, err, &broker)
		assert.Equal(t, amqp091.AccessRefused, broker.Code)
	default:
		require.Fail(t, "not typed", "%T: %v", err, err)
	}
}

func (r *roleTest) retrier(conf amqp.Config, assume bool,
	onEvent func(retry.Event)) *adapter.Retrier {
	return newRetrier(r.t, conf, amqpretry.Options{
		Policies:       config.Policies{Default: config.Policy{Delays: ms(50), Strategy: r.strategy}},
		AssumeTopology: assume, Logger: newLogs(r.t), HoldWarning: 300 * time.Millisecond, CloseTimeout: time.Second,
		OnEvent: onEvent,
	})
}

func (r *roleTest) provision(configure func(string) amqp.Config, topic string) topology.Plan {
	r.t.Helper()
	retrier := r.retrier(configure(r.admin), declares, nil)
	sub := must(retrier.NewSubscriber())(r.t)
	require.NoError(r.t, sub.SubscribeInitialize(topic))
	plan := must(retrier.Plan(topic))(r.t)

	return plan
}

// consume subscribes, fails a message, gets it back, fails it again, and dead-letters it; who
// declares looks at the depths as well.
func (r *roleTest) consume(configure func(string) amqp.Config, topic string,
	assume bool) error {
	if assume {
		r.provision(configure, topic)
	}
	outcome := make(chan retry.Event, 100)
	retrier := r.retrier(configure(r.uri), assume, func(e retry.Event) {
		var refused *amqp091.Error
		if e.Kind == retry.EventDeadLettered || e.Kind == retry.EventHeld && errors.As(e.Err, &refused) {
			outcome <- e // what is held without a reason waits for a busy broker
		}
	})
	sub := must(retrier.NewSubscriber())(r.t)
	messages, err := sub.Subscribe(r.t.Context(), topic)
	if err != nil {
		return err
	}
	attempts := make(chan int, 10)
	handle := retrier.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		attempts <- attempt.Number

		return nil, errFate
	})
	go answer(messages, handle)

	conf := configure(r.admin)
	exchange, key := conf.Exchange.GenerateName(topic), ""
	if exchange == "" {
		key = topic
	}
	newRabbit(r.t, r.admin).PublishTo(exchange, key, rabbit.Messages("1")...)

	if e := await.Value(r.t, outcome, "the end of the message"); e.Kind == retry.EventHeld {
		return e.Err
	}
	assert.Equal(r.t, 1, <-attempts)
	assert.Equal(r.t, 2, <-attempts, "it has come back")
	newRabbit(r.t, r.admin).Take(conf.Queue.GenerateName(topic)+".dlq", 1)

	if assume {
		return nil
	}
	_, err = retrier.QueueDepths(r.t.Context())

	return err
}

func (r *roleTest) canary() error {
	r.provision(queueConfig, "orders")
	newRabbit(r.t, r.admin).Publish("orders.dlq", rabbit.Messages("1", "2")...)
	logged := newLogs(r.t)
	ctx, isHeld := context.WithCancelCause(r.t.Context())
	defer isHeld(nil)
	retrier := newRetrier(r.t, queueConfig(r.uri), amqpretry.Options{
		Policies:       config.Policies{Default: config.Policy{Delays: ms(50)}},
		AssumeTopology: true, Logger: logged, HoldWarning: 300 * time.Millisecond, CloseTimeout: time.Second,
		OnEvent: func(e retry.Event) {
			if refused := (*amqp091.Error)(nil); e.Kind == retry.EventHeld && errors.As(e.Err, &refused) {
				isHeld(e.Err) // what is held without a reason waits for a busy broker
			}
		},
	})
	sub := must(retrier.NewSubscriber())(r.t)
	messages, err := sub.Subscribe(r.t.Context(), "orders")
	if err != nil {
		return err
	}
	handle := retrier.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Number == 1 {
			return nil, errFate
		}

		return nil, nil
	})
	go answer(messages, handle)

	client := must(dlq.Open(r.t.Context(), dlq.Config{URI: r.admin, NoDeliveryLimitPolicy: true}))(r.t)
	defer func() { assert.NoError(r.t, client.Close()) }()
	report, err := client.Queue("orders").Run(ctx,
		dlq.Plan{Kind: dlq.Replay, Foreign: true, Canary: dlq.Canary{Messages: 1, Watch: r.watch}})
	if err != nil {
		return err
	}
	if report.Canary.Stopped == "" {
		assert.Equal(r.t, dlq.CanaryReport{Sent: 1, Handled: 1, Watched: true}, report.Canary)
		return nil
	}
	assert.Contains(r.t, report.Canary.Stopped, "as a user with write permission on amq.default")
	refused := func() []logEntry { return logged.with("to the replay command") }
	await.Until(r.t, func() bool { return len(refused()) > 0 }, "it says what is refused")

	return refused()[0].Err
}

func (r *roleTest) observe(queues int) error {
	r.provision(queueConfig, "orders")
	retrier := r.retrier(queueConfig(r.uri), assumes, nil)
	sub := must(retrier.NewSubscriber())(r.t)
	require.NoError(r.t, sub.SubscribeInitialize("orders"))
	depths, err := retrier.QueueDepths(r.t.Context())
	if err == nil {
		assert.Len(r.t, depths, queues)
	}

	return err
}

func (r *roleTest) deadLetters(assume bool) error {
	if assume {
		r.provision(queueConfig, "orders")
	}
	sub := must(r.retrier(queueConfig(r.uri), assume, nil).NewDeadLetterSubscriber())(r.t)
	letters, err := sub.Subscribe(r.t.Context(), "orders")
	if err != nil {
		return err
	}
	newRabbit(r.t, r.admin).Publish("orders.dlq", rabbit.Messages("1")...)
	letter := await.Value(r.t, letters, "the dead letter")
	require.NotNil(r.t, letter, "the subscription ends")
	letter.Ack()
	require.NoError(r.t, sub.Close())
	assert.Equal(r.t, 0, newRabbit(r.t, r.admin).Depth("orders.dlq"))

	return nil
}

func (r *roleTest) deadLetterQueue(do func(*dlq.Queue) error) error {
	r.provision(queueConfig, "orders")
	newRabbit(r.t, r.admin).Publish("orders.dlq", rabbit.Messages("1")...)
	client := must(dlq.Open(r.t.Context(), dlq.Config{URI: r.uri, NoDeliveryLimitPolicy: true}))(r.t)
	defer func() { assert.NoError(r.t, client.Close()) }()

	return do(client.Queue("orders"))
}

// replay moves a dead letter to its queue, as the docs say.
func (r *roleTest) replay() error {
	r.provision(queueConfig, "orders")
	newRabbit(r.t, r.admin).Publish("orders.dlq", rabbit.Messages("1")...)
	err := newRabbit(r.t, r.uri).Try(func(ch *amqp091.Channel) error {
		ctx, cancel := context.WithTimeout(r.t.Context(), await.Bound)
		defer cancel()
		if err := ch.Confirm(false); err != nil {
			return err
		}
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		letters, err := ch.Consume("orders.dlq", "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		d := <-letters
		closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
		confirm, err := ch.PublishWithDeferredConfirm("", "orders", true, false, amqp091.Publishing{Headers: d.Headers,
			Body: d.Body})
		if err != nil {
			return err
		}
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return errors.Join(err, <-closed)
		}

		return d.Ack(false)
	})
	if err == nil {
		newRabbit(r.t, r.admin).Take("orders", 1)
	}

	return err
}

func (r *roleTest) publish(configure func(string) amqp.Config, topic string, assume bool) error {
	r.provision(configure, topic)
	conf := configure(r.uri)
	conf.Publish.ConfirmDelivery = true
	retrier := r.retrier(conf, assume, nil)
	stock, err := amqp.NewPublisher(retrier.Config(), newLogs(r.t))
	if err != nil {
		return err
	}
	defer func() { assert.NoError(r.t, stock.Close()) }()
	own := must(retrier.NewPublisher())(r.t)

	err = stock.Publish(topic, message.NewMessage("1", []byte("1")))
	if ownErr := own.Publish(topic, message.NewMessage("2", []byte("2"))); ownErr != nil {
		assert.Error(r.t, err, "both need the same")
		return ownErr
	}
	if err != nil {
		return err
	}
	newRabbit(r.t, r.admin).Take(conf.Queue.GenerateName(topic), 2)

	return nil
}

func (r *roleTest) publishLater(assume bool) error {
	r.provision(queueConfig, "orders")
	if assume {
		ladder := must(topology.NewLadder(config.ScheduleLadder()))(r.t)
		plan := must(ladder.Of(topology.Target{Key: "orders"}, topology.Names{}))(r.t)
		plan.Ladder = &ladder
		newRabbit(r.t, r.admin).Do(func(ch *amqp091.Channel) error { return plan.Declare(ch) })
	}
	conf := queueConfig(r.uri)
	retrier := r.retrier(conf, assume, nil)
	publisher := must(amqp.NewPublisher(retrier.Config(), newLogs(r.t)))(r.t)
	later := must(retrier.NewDelayPublisher(publisher, amqpdelay.Options{PublishTimeout: await.Bound}))(r.t)
	defer func() { assert.NoError(r.t, later.Close()) }()
	for id, wait := range map[string]time.Duration{"waits": time.Second, "due": -time.Second} {
		msg := message.NewMessage(id, []byte(id))
		delay.Message(msg, delay.For(wait))
		if err := later.Publish("orders", msg); err != nil {
			return err
		}
	}
	newRabbit(r.t, r.admin).Take("orders", 2)

	return nil
}

func (r *roleTest) retire() error {
	plan := r.provision(queueConfig, "orders")
	without := topology.Plan{Queue: plan.Queue} // as under the policy off
	obsolete := must(retire.Find(r.t.Context(), r.api, topology.Names{}, without))(r.t).Queues
	require.Len(r.t, obsolete, 1)
	ctx, cancel := context.WithTimeout(r.t.Context(), await.Bound)
	defer cancel()

	return retire.Delete(ctx, r.api, obsolete[0])
}
