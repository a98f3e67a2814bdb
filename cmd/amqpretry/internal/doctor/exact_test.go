package doctor

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// exactly is a healthy main queue "orders" with exact delays, on the default ladder.
func exactly(t *testing.T) (Facts, topology.Ladder) {
	t.Helper()
	ladder, err := topology.NewLadder(config.RetryLadder())
	require.NoError(t, err)
	return healthyUnder(t, config.Policy{Strategy: config.StrategyLadder}), ladder
}

const theLadder = `ladder "amqpretry.delay.v1.100ms.10x6"`

func TestChecksOfExactDelays(t *testing.T) {
	const landing = "orders.landing"
	holds := func(f *Facts, queue string, n int64) {
		f.change(queue, func(_ *inspect.Queue, q *httpapi.Queue) { q.Messages, q.Undeliverable = &n, &n })
	}
	for name, test := range map[string]struct {
		check    string
		severity Severity
		object   string
		found    string // a part
		fix      string // a part
		make     func(*Facts, topology.Ladder)
	}{
		"due, main queue is gone": {"landing", Problem, `landing queue "orders.landing"`,
			`7 messages due, and the main queue "orders" does not exist`, "start the service",
			func(f *Facts, _ topology.Ladder) {
				f.Queues["orders"] = inspect.Queue{Exists: inspect.Known(false)}
				holds(f, landing, 7)
			}},
		"due, main queue is down": {"landing", Problem, `landing queue "orders.landing"`, "is down", "start its nodes",
			func(f *Facts, _ topology.Ladder) {
				holds(f, landing, 1)
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Members = []string{"a", "b", "c"} })
			}},
		"due, main queue is full": {"landing", Warning, `landing queue "orders.landing"`, "is full", "consume from it",
			func(f *Facts, _ topology.Ladder) {
				holds(f, landing, 1)
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Messages, q.Effective = ptr[int64](5), httpapi.Arguments{"max-length": int64(5),
						"overflow": "reject-publish"}
				})
			}},
		"due": {"landing", Warning, `landing queue "orders.landing"`, "may be temporary", "list_queues",
			func(f *Facts, _ topology.Ladder) { holds(f, landing, 1) }},
		"unroutable": {"unroutable", Warning, theLadder, `3 messages that no target takes: 2 for "gone", 1 for no known`,
			"amqpretry delays unroutable list --ladder 'amqpretry.delay.v1.100ms.10x6'",
			func(f *Facts, l topology.Ladder) {
				f.change(l.Unroutable(), func(_ *inspect.Queue, q *httpapi.Queue) { q.Messages = ptr[int64](3) })
				f.Unroutable = map[string]inspect.Seen[map[string]int]{
					l.Unroutable(): inspect.Known(map[string]int{`"gone"`: 2, "no known target": 1})}
			}},
		"unroutable, and nobody has looked": {"unroutable", Warning, theLadder, "3 messages that no target takes", "",
			func(f *Facts, l topology.Ladder) {
				f.change(l.Unroutable(), func(q *inspect.Queue, _ *httpapi.Queue) { q.Ready = 3 })
				f.Unroutable = map[string]inspect.Seen[map[string]int]{
					l.Unroutable(): inspect.Unseen[map[string]int]("unsafe"),
				}
			}},
		"half of the ladder is gone": {"exists", Problem, theLadder, "27 objects (delay queue", "topology apply",
			func(f *Facts, l topology.Ladder) {
				for level := range 3 {
					for digit := 1; digit < 10; digit++ {
						f.Queues[l.WaitQueue(level, digit)] = inspect.Queue{Exists: inspect.Known(false)}
					}
				}
			}},
		"a level is gone": {"exists", Problem, theLadder, `exchange "amqpretry.delay.v1.100ms.10x6.level-2": there is no`,
			"topology apply", func(f *Facts, l topology.Ladder) {
				f.Exchanges[l.Level(2)] = inspect.Exchange{Exists: inspect.Known(false)}
			}},
		"landing queue is gone": {"exists", Problem, `landing queue "orders.landing"`, "no such queue", "topology apply",
			func(f *Facts, _ topology.Ladder) { f.Queues[landing] = inspect.Queue{Exists: inspect.Known(false)} }},
		"another TTL": {"arguments", Problem, theLadder, `delay queue "amqpretry.delay.v1.100ms.10x6.30s": not declared as ` +
			"planned: x-message-ttl", "amqpretry delays stat --policies 'retry.yaml' 'orders'\n# If it has 0 messages",
			func(f *Facts, l topology.Ladder) {
				f.change(l.WaitQueue(2, 3), func(q *inspect.Queue, _ *httpapi.Queue) {
					q.Conflict.Value = &topology.ConflictError{Argument: "x-message-ttl", Wanted: "30000", Found: "1"}
				})
			}},
		"levels are unbound": {"bindings", Problem, theLadder, "9 objects (the binding of", "topology apply",
			func(f *Facts, l topology.Ladder) {
				x := f.Exchanges[l.Level(1)]
				x.Bindings.Value = x.Bindings.Value[:1] // that to the level below
				f.Exchanges[l.Level(1)] = x
			}},
		"a level is unbound": {"bindings", Problem, theLadder,
			`the binding of "amqpretry.delay.v1.100ms.10x6.level-0" to "amqpretry.delay.v1.100ms.10x6.level-1": it is missing`,
			"topology apply", func(f *Facts, l topology.Ladder) {
				x := f.Exchanges[l.Level(1)]
				x.Bindings.Value = slices.DeleteFunc(slices.Clone(x.Bindings.Value),
					func(b httpapi.Binding) bool { return b.ToExchange != "" })
				f.Exchanges[l.Level(1)] = x
			}},
		"landing queue is unbound": {"bindings", Problem, `exchange "amqpretry.delay.v1.100ms.10x6.delivery"`,
			`not bound to queue "orders.landing"`, "topology apply", func(f *Facts, l topology.Ladder) {
				x := f.Exchanges[l.Delivery()]
				x.Bindings.Value = nil
				f.Exchanges[l.Delivery()] = x
			}},
		"a policy of all": {"policies", Problem, theLadder, "55 objects (queue for unroutable",
			`'amqpretry.amqpretry.delay.v1.100ms.10x6' '^amqpretry\.delay\.v1\.100ms\.10x6\.' '{`,
			func(f *Facts, l topology.Ladder) {
				f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p", Definition: httpapi.Arguments{
					"expires": int64(7)}}})
				for _, q := range l.Shared().Queues {
					f.change(q.Name, func(_ *inspect.Queue, d *httpapi.Queue) {
						d.Policy, d.Effective = ptr("p"), httpapi.Arguments{"expires": int64(7)}
					})
				}
			}},
		"a bounded landing queue": {"policies", Problem, `landing queue "orders.landing"`, "max-length: 9", "list_policies",
			func(f *Facts, _ topology.Ladder) {
				f.change(landing, func(_ *inspect.Queue, d *httpapi.Queue) {
					d.Effective = httpapi.Arguments{"max-length": int64(9)}
				})
			}},
		"a bounded queue for unroutable messages": {"policies", Problem, theLadder, "max-length: 9", "list_policies",
			func(f *Facts, l topology.Ladder) {
				f.change(l.Unroutable(), func(_ *inspect.Queue, d *httpapi.Queue) {
					d.Effective = httpapi.Arguments{"max-length": int64(9), "overflow": "reject-publish"}
				})
			}},
		"a bounded delay queue": {"policies", Problem, theLadder, "max-length-bytes: 9", "list_policies",
			func(f *Facts, l topology.Ladder) {
				f.change(l.WaitQueue(0, 1), func(_ *inspect.Queue, d *httpapi.Queue) {
					d.Effective = httpapi.Arguments{"max-length-bytes": int64(9)}
				})
			}},
		"a level is stuck": {"stuck", Problem, theLadder, "32 dead-lettered messages", "",
			func(f *Facts, l topology.Ladder) { holds(f, l.WaitQueue(0, 1), 32) }},
		"a thief": {"retry-consumers", Problem, theLadder, "1 consumer", "list_consumers",
			func(f *Facts, l topology.Ladder) {
				f.change(l.WaitQueue(0, 1), func(q *inspect.Queue, _ *httpapi.Queue) { q.Consumers = 1 })
			}},
		"no permissions": {"permissions", Problem, `user "service"`,
			`6 objects (exchange "amqpretry.delay.v1.100ms.10x6.level-0", exchange`,
			`|amqpretry\.delay\.v1\.100ms\.10x6\..*|`, func(f *Facts, _ topology.Ladder) {
				f.Granted = inspect.Unseen[httpapi.Permissions]("x")
				f.Refused = inspect.Known(inspect.Needs(f.Topics))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			f, ladder := exactly(t)
			test.make(&f, ladder)
			found, ok := find(diagnose(f), test.check, test.object, test.found)
			require.True(t, ok, "%+v", diagnose(f))
			assert.Equal(t, test.severity, found.Severity)
			assert.Equal(t, test.object, found.Object)
			assert.Contains(t, found.Fix, test.fix)
			assert.NotEmpty(t, found.Means)
		})
	}
}

// A full queue of a ladder concerns all services, whether a policy or an argument limits it.
func TestLimitsOfALadder(t *testing.T) {
	const drop, reject = "drop-head", "reject-publish"
	f, ladder := exactly(t)
	wait := ladder.WaitQueue(2, 3)
	for _, test := range []struct {
		queue, overflow string
		means           string // a part
	}{
		{ladder.Unroutable(), reject, "no target takes, a queue of the ladder stops for all services"},
		{ladder.Unroutable(), drop, "messages that no target takes are lost"},
		{wait, reject, "After 32 such messages a queue there stops for all services"},
		{wait, drop, "before their delay is over"},
		{"orders.landing", reject, "a level of the ladder stops for all its targets"},
		{"orders.landing", drop, "messages are lost"},
	} {
		f, _ := exactly(t)
		f.change(test.queue, func(_ *inspect.Queue, d *httpapi.Queue) {
			d.Effective = httpapi.Arguments{"max-length": int64(9), "overflow": test.overflow}
		})
		found, _ := find(diagnose(f), "policies", "", "max-length: 9")
		assert.Equal(t, Problem, found.Severity, "%+v", test)
		assert.Contains(t, found.Means, test.means)

		f, _ = exactly(t)
		f.change(test.queue, func(q *inspect.Queue, d *httpapi.Queue) {
			d.Arguments["x-max-length"], d.Arguments["x-overflow"] = int64(9), test.overflow
			q.Conflict.Value = &topology.ConflictError{Argument: "x-max-length", Wanted: "none", Found: "9"}
		})
		found, _ = find(diagnose(f), "arguments", "", "x-max-length")
		assert.Equal(t, Problem, found.Severity)
		assert.Contains(t, found.Means, test.means)

		f.change(test.queue, func(q *inspect.Queue,
			_ *httpapi.Queue) {
			q.Details = inspect.Unseen[httpapi.Queue](inspect.NoAPI)
		})
		found, _ = find(diagnose(f), "arguments", "", "x-max-length")
		assert.Contains(t, found.Means, test.means, "nobody tells what a full queue does")
	}

	// One policy for all: each kind of queue has its meaning, and one command removes all keys.
	f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p", Definition: httpapi.Arguments{
		"max-length": int64(9), "overflow": drop}}})
	for _, q := range ladder.Shared().Queues {
		f.change(q.Name, func(_ *inspect.Queue, d *httpapi.Queue) {
			d.Policy, d.Effective = ptr("p"), f.Policies.Value[0].Definition
		})
	}
	unroutable, _ := find(diagnose(f), "policies", theLadder, `queue for unroutable messages "`+ladder.Unroutable()+
		`": max-length: 9`)
	waiting, _ := find(diagnose(f), "policies", theLadder, "54 objects (delay queue")
	assert.Contains(t, unroutable.Means, "are lost")
	assert.Equal(t, Problem, waiting.Severity)
	assert.Equal(t, unroutable.Fix, waiting.Fix)
	assert.NotContains(t, unroutable.Fix, drop)
}

// A ladder that the user names and the broker does not have is one problem, with and without
// queues.
func TestNamedLadderThatIsAbsent(t *testing.T) {
	f, ladder := exactly(t)
	own := topology.Ladder{Config: config.Ladder{Prefix: "own"}.WithDefaults()}
	f.Named, f.Absent = &own, true
	for range 2 {
		var told []Finding
		for _, finding := range diagnose(f) {
			if strings.Contains(finding.Object, own.Name()) {
				told = append(told, finding)
			}
		}
		require.Len(t, told, 1)
		assert.Equal(t, "exists", told[0].Check)
		assert.Equal(t, Problem, told[0].Severity)
		assert.Contains(t, told[0].Means, "--vhost")
		assert.Contains(t, told[0].Fix, "publish a message with a delay")
		f.Topics = nil
	}
	assert.Contains(t, text(f, diagnose(f), plain), "No queue was named, so only the broker was checked.")
	f.Absent, f.Named, f.Others = false, &ladder, []topology.Ladder{ladder}
	found := diagnose(f)
	assert.Contains(t, text(f, found, plain), "so only the broker and the "+theLadder+" were checked.")
	for _, finding := range found {
		assert.Contains(t, []Severity{OK, Note}, finding.Severity, "%+v", finding)
	}
}

// A ladder stands for its objects that could not be seen, once for each check and reason. A few
// objects are named.
func TestLadderThatCouldNotBeSeen(t *testing.T) {
	f, ladder := exactly(t)
	for name, q := range f.Queues {
		q.Conflict, q.Details = inspect.Unseen[*topology.ConflictError](inspect.NoAPI),
			inspect.Unseen[httpapi.Queue](inspect.NoAPI)
		f.Queues[name] = q
	}
	for name, x := range f.Exchanges {
		x.Bindings = inspect.Unseen[[]httpapi.Binding](inspect.NoAPI)
		f.Exchanges[name] = x
	}
	found := map[string]string{}
	for _, finding := range diagnose(f) {
		if finding.Severity == Unseen {
			found[finding.Check] += finding.Found
		}
	}
	assert.Equal(t, "not seen: policies of the broker (orders, orders.landing, orders.dlq, 55 objects of "+
		theLadder+")", found["policies"])
	assert.Equal(t, "not seen: bindings (8 objects of "+theLadder+", orders.retry)", found["bindings"])
	for _, check := range []string{"arguments", "available", "types", "stuck"} {
		assert.Equal(t, 1, strings.Count(found[check], ladder.Name()), found[check])
	}
	assert.Less(t, len(text(f, diagnose(f), plain)), 2500)

	f, ladder = exactly(t)
	for digit := 1; digit <= mostParts; digit++ {
		f.change(ladder.WaitQueue(0, digit), func(_ *inspect.Queue, q *httpapi.Queue) { q.Effective = nil })
	}
	unknown, _ := find(diagnose(f), "policies", broker, "")
	assert.Equal(t, "not seen: policies of the broker ("+ladder.WaitQueue(0, 1)+", "+ladder.WaitQueue(0, 2)+", "+
		ladder.WaitQueue(0, 3)+")", unknown.Found)
}

// The timeout of the broker matters wherever it dead-letters at least once, and nowhere else.
func TestConfirmTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		policy config.Policy
		told   bool
	}{
		"tiers":      {config.Policy{}, true},
		"exact":      {config.Policy{Strategy: config.StrategyLadder}, true},
		"classic":    {config.Policy{ClassicQueues: true}, false},
		"no retries": {config.Policy{Mode: config.ModeDeadLetter}, false},
		"off":        {config.Policy{Mode: config.ModeOff}, false},
	} {
		found, told := find(diagnose(healthyUnder(t, test.policy)), "confirm-timeout", broker, "confirm_timeout")
		assert.Equal(t, test.told, told, name)
		if told {
			assert.Equal(t, Note, found.Severity)
			assert.Contains(t, found.Means, "5 to 10 seconds")
			assert.Contains(t, found.Fix, "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].")
		}
	}
}

// exact makes the delays of all topics exact, on a small ladder.
func (l *lab) exact() topology.Ladder {
	l.t.Helper()
	const text = "default: {delays: [200ms], strategy: ladder, ladder: {prefix: lad, levels: 2, radix: 3}}\n"
	require.NoError(l.t, os.WriteFile(l.policies, []byte(text), 0o600))
	ladder, err := topology.NewLadder(config.Ladder{Prefix: "lad", Levels: 2, Radix: 3})
	require.NoError(l.t, err)
	return ladder
}

// What is wrong with a ladder on a broker is found, told as one, and fixed by the commands that are
// told.
func testExactDelays(l *lab) {
	t := l.t
	ladder := l.exact()
	send := func(exchange, key string, m amqp.Publishing) {
		l.do(func(ch *amqp.Channel) error { return ch.PublishWithContext(t.Context(), exchange, key, true, false, m) })
	}
	delay := func(queue string) {
		m := amqp.Publishing{DeliveryMode: amqp.Persistent}
		exchange, key := ladder.Address(topology.Target{Key: queue}, 100*time.Millisecond, &m)
		send(exchange, key, m)
	}
	full := topology.ProtectArguments("full.dlq")
	full["x-max-length"], full["x-overflow"] = 1, "reject-publish"
	for queue, arguments := range map[string]amqp.Table{"orders": topology.ProtectArguments("orders.dlq"),
		"gone": topology.ProtectArguments("gone.dlq"), "full": full} {
		plan, err := topology.New(queue, config.Policy{Strategy: config.StrategyLadder, Ladder: ladder.Config,
			Delays: []time.Duration{200 * time.Millisecond}}, topology.Names{})
		require.NoError(t, err)
		l.declare(queue, arguments)
		l.do(func(ch *amqp.Channel) error { return plan.Declare(ch) })
	}
	l.await("healthy", func() bool {
		v := l.full("orders", "gone", "full")
		return v.code == cli.ExitOK && len(unseenOf(v.findings)) == 0
	})

	l.deleteQueue("gone")
	delay("gone")
	for range 60 { // it takes up to 32 more than its length, as many as can be on their way
		delay("full")
	}
	delay("nobody\x1b[2J")
	send(ladder.Unroutable(), "garbage", amqp.Publishing{DeliveryMode: amqp.Persistent})
	send(ladder.Unroutable(), "0.1.q.", amqp.Publishing{DeliveryMode: amqp.Persistent}) // a queue has a name
	var v verdict
	has := func(check, object, part string) bool {
		_, found := find(v.findings, check, object, part)
		return found
	}
	l.await("messages", func() bool {
		v = l.full("orders", "gone", "full")
		return has("landing", "gone.landing", `1 message due, and the main queue "gone" does not exist`) &&
			has("landing", "full.landing", `and the main queue "full" is full`) &&
			has("unroutable", `ladder "lad.v1.100ms.3x2"`, "3 messages that no target takes: 2 for no known target, 1 for ")
	})
	assert.NotContains(t, v.out, "\x1b")
	text := l.doctor(map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api}, "--policies", l.policies, "orders")
	assert.NotContains(t, text.out, "\x1b")
	v = l.amqpOnly("orders")
	assert.True(t, has("unroutable", `ladder "lad.v1.100ms.3x2"`, "3 messages that no target takes"), v.out)

	l.break_(ladder)
	l.await("broken", func() bool {
		v = l.full("orders")
		return has("exists", "ladder", "delay queue \"lad.v1.100ms.3x2.300ms\": there is no such queue") &&
			has("exists", "ladder", "exchange \"lad.v1.100ms.3x2.level-0\": there is no such exchange") &&
			has("policies", "ladder", "4 objects (queue for unroutable") && has("arguments", "ladder", "x-message-ttl")
	})
	conflict, _ := find(v.findings, "arguments", "ladder", "x-message-ttl")
	policy, _ := find(v.findings, "policies", "ladder", "4 objects")
	for _, fix := range []string{uncommented(conflict.Fix), policy.Fix} {
		l.run(fix)
	}
	l.broker.API(http.MethodDelete, nil, "policies", l.vhost, "idle")
	l.await("fixed", func() bool {
		v = l.full("orders")
		return !slices.ContainsFunc(v.findings, func(f Finding) bool {
			return f.Severity == Problem && strings.Contains(f.Object, "ladder")
		})
	})
}

// The ladder of delayed publishing is in no policy: doctor finds it on the broker, whatever queues
// are named, and its commands bring back the messages of all targets.
func testDelayedPublishing(l *lab) {
	t := l.t
	ladder := topology.Ladder{Config: config.ScheduleLadder()}
	name := ladder.Name()
	l.do(func(ch *amqp.Channel) error { return ladder.Shared().Declare(ch) })
	l.declare("orders", topology.ProtectArguments("orders.dlq"))
	for _, target := range []topology.Target{{Key: "gone"}, {Exchange: "events", Key: "paid"}} {
		plan, err := ladder.Of(target, topology.Names{})
		require.NoError(t, err)
		l.do(func(ch *amqp.Channel) error { return plan.Declare(ch) })
	}
	var keys []string
	delay := func(target topology.Target, headers amqp.Table) {
		m := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: headers}
		exchange, key := ladder.Address(target, time.Second, &m)
		l.do(func(ch *amqp.Channel) error { return ch.PublishWithContext(t.Context(), exchange, key, true, false, m) })
		keys = append(keys, key)
	}
	delay(topology.Target{Key: "gone"}, nil)
	delay(topology.Target{Exchange: "events", Key: "paid"}, nil)
	keys = nil
	delay(topology.Target{Key: "one"}, nil)
	delay(topology.Target{Key: "two"}, amqp.Table{"amqpretry-queue": "two", "amqpretry-v": "1", "amqpretry-uuid": "u1"})
	delay(topology.Target{Exchange: "nobody", Key: "paid"}, nil)

	// A part is gone, one is another, and a policy of the broker applies.
	l.policy("policies", "idle", "^amqpretry[.]delay.*[.]1s$", `{"expires":3600000}`, 0)
	l.deleteQueue(ladder.WaitQueue(7, 9))
	var v verdict
	has := func(check, object, part string) bool {
		_, found := find(v.findings, check, object, part)
		return found
	}
	broken := func() bool {
		return has("landing", "gone.landing", `1 message due, and the main queue "gone" does not exist`) &&
			has("landing", "events.exchange.paid.landing", `behind the exchange "events"`) &&
			has("unroutable", name, "3 messages that no target takes: 1 for ") &&
			has("exists", name, ladder.WaitQueue(7, 9)) && has("policies", name, "expires: 3600000")
	}
	l.await("without queues", func() bool { v = l.full(); return broken() })
	v = l.full("orders") // of a policy with tiers
	assert.True(t, broken(), v.out)
	assert.False(t, has("permissions", "", ""), "nobody named its publishers")
	v = l.amqpOnly()
	assert.True(t, has("unroutable", name, "3 messages that no target takes"), v.out)

	l.sameUnroutable(ladder, keys)
	l.named()
}

// named is about a ladder that is neither a default one nor in a policy: doctor finds what is wrong
// with it if it is named.
func (l *lab) named() {
	ladder := topology.Ladder{Config: config.Ladder{Prefix: "own", Levels: 2, Radix: 3}.WithDefaults()}
	name := ladder.Name()
	absent, found := find(l.full("--ladder", name).findings, "exists", name, "nothing of this ladder")
	require.True(l.t, found)
	assert.Equal(l.t, Problem, absent.Severity)

	l.do(func(ch *amqp.Channel) error { return ladder.Shared().Declare(ch) })
	l.await("no problem", func() bool {
		v := l.full("--ladder", name) // and none of the default ladder, whose landing queues hold messages
		return v.code == cli.ExitOK && len(unseenOf(v.findings)) == 0
	})
	l.deleteQueue(ladder.WaitQueue(1, 2))
	l.do(func(ch *amqp.Channel) error {
		return ch.PublishWithContext(l.t.Context(), ladder.Unroutable(), "x", true, false, amqp.Publishing{})
	})
	for _, args := range [][]string{{}, {"orders"}} {
		assert.NotContains(l.t, l.amqpOnly(args...).out, name, "nobody named it")
		v := l.amqpOnly(append(args, "--ladder", name)...)
		_, found = find(v.findings, "exists", name, ladder.WaitQueue(1, 2))
		assert.True(l.t, found, v.out)
		_, found = find(v.findings, "unroutable", name, "1 message that no target takes")
		assert.True(l.t, found, v.out)
	}
	assert.Equal(l.t, cli.ExitUsage, l.doctor(map[string]string{cli.EnvURI: l.uri}, "--ladder", "orders").code)
	assert.Equal(l.t, cli.ExitUsage, l.doctor(map[string]string{cli.EnvURI: l.uri}, "--ladder", "").code)
}

// sameUnroutable makes the queue for unroutable messages another one, and runs the commands that
// doctor prints.
func (l *lab) sameUnroutable(ladder topology.Ladder, keys []string) {
	t, queue := l.t, ladder.Unroutable()
	take := func() (all []amqp.Delivery) {
		l.do(func(ch *amqp.Channel) error {
			for {
				d, ok, err := ch.Get(queue, true)
				if err != nil || !ok {
					return err
				}
				all = append(all, d)
			}
		})
		return all
	}
	messages := take()
	require.Len(t, messages, len(keys))
	l.deleteQueue(queue)
	// RabbitMQ 4.0 and later have a default delivery limit, with which the command refuses to
	// browse the queue.
	l.declare(queue, amqp.Table{"x-queue-type": "quorum", "x-max-length": 1000, "x-delivery-limit": int64(2147483647)})
	l.do(func(ch *amqp.Channel) error { return ch.QueueBind(queue, "", queue, false, nil) })
	for _, d := range messages {
		m := amqp.Publishing{Headers: d.Headers, DeliveryMode: amqp.Persistent}
		delete(m.Headers, "x-death")
		l.do(func(ch *amqp.Channel) error {
			return ch.PublishWithContext(t.Context(), queue, d.RoutingKey, true, false, m)
		})
	}
	var conflict Finding
	l.await("conflict", func() (found bool) {
		conflict, found = find(l.full().findings, "arguments", ladder.Name(), queue)
		return found
	})
	assert.NotContains(t, conflict.Fix, "dlq purge")
	taking, restoring, _ := strings.Cut(conflict.Fix, "\n# If it has 0 messages")
	l.run(taking)
	fix := strings.Split(uncommented(restoring), "\n")
	l.run(fix[1])                                                             // delete it
	l.do(func(ch *amqp.Channel) error { return ladder.Shared().Declare(ch) }) // as the publisher does
	l.run(fix[len(fix)-1])                                                    // the import
	var got []string
	for _, d := range take() {
		got = append(got, d.RoutingKey)
		if strings.HasSuffix(d.RoutingKey, ".q.two") {
			assert.Equal(t, "two", d.Headers["amqpretry-queue"])
			assert.Equal(t, "u1", d.Headers["amqpretry-uuid"])
		}
	}
	assert.ElementsMatch(t, keys, got)
	_, found := find(l.full().findings, "arguments", ladder.Name(), "")
	assert.False(t, found)
}

// break_ breaks a ladder: a level and a queue are gone, a queue is another, and a policy applies to
// all.
func (l *lab) break_(ladder topology.Ladder) {
	l.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(ladder.Level(0), false, false) })
	l.deleteQueue(ladder.WaitQueue(1, 1))
	l.deleteQueue(ladder.WaitQueue(1, 2))
	l.declare(ladder.WaitQueue(1, 2), amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 7,
		"x-dead-letter-exchange": ladder.Level(0), "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish", "x-queue-leader-locator": "balanced",
		"x-delivery-limit": 2147483647})
	l.policy("policies", "idle", "^lad[.]", `{"expires":3600000}`, 0)
}

// uncommented are the commands of a fix that a person runs after having read it.
func uncommented(fix string) string { return strings.ReplaceAll(fix, "\n#   ", "\n") }

func (l *lab) await(what string, is func() bool) {
	l.t.Helper()
	await.Within(l.t, 2*time.Minute, is, what) // statistics are up to 10 s old
}

// A user who lacks permissions on a ladder is told in a few lines, and gets them by the command
// that is told.
func testPermissionsOnALadder(l *lab) {
	t := l.t
	l.exact()
	l.declare("orders", topology.ProtectArguments("orders.dlq"))
	l.run(fmt.Sprintf("amqpretry topology apply --policies \"%s\" orders", l.policies))
	l.user("guard", "", "^orders", "^(orders|amq[.]default)", "^orders")
	guard := *l
	guard.uri = l.as("guard")
	v := guard.full("orders")
	write, found := find(v.findings, "permissions", `user "guard"`, "no write permission")
	require.True(t, found, v.out)
	assert.Equal(t, Problem, write.Severity, "not even a service that declares nothing works")
	var told int
	for _, f := range v.findings {
		if f.Check == "permissions" {
			told++
		}
	}
	assert.Less(t, told, 8, "not one for each object: %s", v.out)
	env := map[string]string{cli.EnvURI: guard.uri} // RabbitMQ 4.3 and later do not even tell whether a queue exists
	assert.LessOrEqual(t, strings.Count(guard.doctor(env, "--policies", l.policies, "orders").out, "because: "), 2,
		"nor a reason for each object")
	l.run(write.Fix)
	v = guard.full("orders")
	_, found = find(v.findings, "permissions", `user "guard"`, "")
	assert.False(t, found, v.out)
	// And they are enough: the user declares all of it.
	l.deleteQueue("lad.v1.100ms.3x2.100ms")
	guard.run(fmt.Sprintf("amqpretry topology apply --policies \"%s\" orders", l.policies))
}
