package doctor

import (
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// wrong is something that is made wrong, what is found then, and whether the commands that are told
// fix it.
type wrong struct {
	queue string
	// check and a part of what it finds, about which object.
	check, object, found string
	severity             Severity
	make                 func(*lab)
	fixes                bool
	// amqp tells that it is found without the management API as well.
	amqp bool
	// on is the versions on which it is wrong; nil is all.
	on func(version string) bool
}

func since(major, minor int) func(string) bool {
	return func(version string) bool { return rabbitmq.AtLeast(version, major, minor) }
}

var wrongs = []wrong{
	{"ttl", "policies", `"ttl.retry.1m"`, `message-ttl: 5000, from the operator policy "short"`, Problem, func(l *lab) {
		l.protected("ttl")
		l.policy("operator-policies", "short", "^ttl\\.retry\\.", `{"message-ttl":5000,"max-length-bytes":1000000000000000}`, 7)
	}, true, false, nil},
	{"overflow", "policies", `"overflow.retry.2m"`, "overflow: drop-head", Problem, func(l *lab) {
		l.protected("overflow")
		l.policy("policies", "head", "^overflow\\.retry", `{"overflow":"drop-head"}`, 0)
	}, true, false, nil},
	{"limit", "policies", `"limit.dlq"`, "delivery-limit: 5", Problem, func(l *lab) {
		l.protected("limit")
		l.policy("operator-policies", "five", "^limit\\.dlq$", `{"delivery-limit":5}`, 0)
	}, true, false, nil},
	{"expires", "policies", `"expires.retry.1m"`, "expires: 3600000", Problem, func(l *lab) {
		l.protected("expires")
		l.policy("policies", "idle", "^expires\\.retry\\.1m", `{"expires":3600000}`, 0)
	}, true, false, nil},
	{"le'ng $(th)", "policies", `"le'ng $(th).retry.1m"`, "max-length: 10", Warning, func(l *lab) {
		l.protected("le'ng $(th)")
		l.policy("policies", "ten", "^le'ng.*\\.retry\\.1m", `{"max-length":10}`, 0)
	}, true, false, nil},
	{"stuck", "stuck", `"stuck.retry.200ms"`,
		`1 message due, and the main queue "stuck" does not exist`,
		Problem, func(l *lab) {
			l.protected("stuck")
			l.deleteQueue("stuck")
			l.publish("stuck.retry.200ms")
		}, false, false, nil},
	{"gone", "exists", `main queue "gone"`, "no such queue", Problem, func(l *lab) {
		l.protected("gone")
		l.deleteQueue("gone")
	}, false, true, nil},
	{"nowhere", "dead-letter-target", `"nowhere"`, `exchange "not.there" does not exist`, Problem, func(l *lab) {
		l.topic("nowhere", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "not.there",
			"x-delivery-limit": 20})
	}, true, false, nil},
	{"nowhere-policy", "dead-letter-target", `"nowhere-policy"`, `exchange "not.there.either" does not exist`, Problem,
		func(l *lab) {
			l.topic("nowhere-policy", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 20})
			l.policy("policies", "dlx", "^nowhere-policy$", `{"dead-letter-exchange":"not.there.either"}`, 200)
		}, true, false, nil},
	{"unled", "dead-letter-target", `"unled"`, `leads to no queue`, Problem, func(l *lab) {
		l.do(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare("unled.dlx", "direct", true, false, false, false, nil)
		})
		l.topic("unled", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "unled.dlx",
			"x-dead-letter-routing-key": "dead", "x-delivery-limit": 20})
	}, true, false, nil},
	{"cycle", "dead-letter-target", `"cycle"`, "has a TTL and dead-letters back", Problem, func(l *lab) {
		l.topic("cycle", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "cycle.retry.1m"})
	}, false, false, nil},
	{"byhand", "arguments", `"byhand.retry.1m"`, "x-message-ttl, wanted 60000, found 61000", Problem, func(l *lab) {
		l.declare("byhand.retry.1m", amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 61000,
			"x-dead-letter-exchange":    "",
			"x-dead-letter-routing-key": "byhand", "x-dead-letter-strategy": "at-least-once",
			"x-overflow":             "reject-publish",
			"x-queue-leader-locator": "balanced", "x-delivery-limit": 2147483647})
		l.declare("byhand", topology.ProtectArguments("byhand.dlq"))
	}, true, true, nil},
	{"un'bo $(und)", "bindings", `"un'bo $(und).retry"`, `not bound to queue "un'bo $(und).dlq"`, Problem,
		func(l *lab) {
			plan := l.protected("un'bo $(und)")
			b := plan.Bindings[len(plan.Bindings)-1]
			l.do(func(ch *amqp.Channel) error { return ch.QueueUnbind(b.Queue, b.Key, b.Exchange, b.Arguments) })
		}, true, false, nil},
	{"shared-a", "bindings", `"retry.return"`, `not bound to queue "shared-a"`, Problem, func(l *lab) {
		l.protected("shared-a")
		l.do(func(ch *amqp.Channel) error { return ch.QueueUnbind("shared-a", "shared-a", "retry.return", nil) })
	}, true, false, nil},
	{"dlq-less", "exists", `"dlq-less.dlq"`, "no such queue", Problem, func(l *lab) {
		l.protected("dlq-less")
		l.deleteQueue("dlq-less.dlq")
	}, true, true, nil},
	{"unexchanged", "exists", `exchange "unexchanged.retry"`, "no such exchange", Problem, func(l *lab) {
		l.protected("unexchanged")
		l.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete("unexchanged.retry", false, false) })
	}, true, true, nil},
	{"default-limit", "delivery-limit", `"default-limit"`, "delivery limit 20", Problem, func(l *lab) {
		l.topic("default-limit", amqp.Table{"x-queue-type": "quorum"})
	}, true, false, since(4, 0)},
	{"low-limit", "delivery-limit", `"low-limit"`, "delivery limit 3", Problem, func(l *lab) {
		l.topic("low-limit", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 12})
		l.policy("policies", "three", "^low-limit$",
			`{"delivery-limit":3,"max-length":100000,"overflow":"reject-publish"}`, 150)
	}, true, false, nil},
	{"classic", "types", `"classic"`, "classic queue", Note, func(l *lab) {
		l.topic("classic", amqp.Table{"x-queue-type": "classic"})
	}, false, false, nil},
	{"classic-retry", "types", `"classic-retry.retry.1m.classic"`, "in front of a quorum main queue", Warning,
		func(l *lab) {
			l.protected("classic-retry")
		}, false, false, nil},
	{"single", "single-active-consumer", `"single"`, "single active consumer", Note, func(l *lab) {
		arguments := topology.ProtectArguments("single.dlq")
		arguments["x-single-active-consumer"] = true
		l.topic("single", arguments)
	}, false, false, nil},
	{"dead-letters", "dead-letters", `"dead-letters.dlq"`, "1 message", Warning, func(l *lab) {
		l.protected("dead-letters")
		l.publish("dead-letters.dlq")
	}, false, true, nil},
	{"thief", "retry-consumers", `"thief.retry.1m"`, "1 consumer", Problem, func(l *lab) {
		l.protected("thief")
		ch, err := l.connection.Channel()
		require.NoError(l.t, err)
		_, err = ch.Consume("thief.retry.1m", "", false, false, false, false, nil)
		require.NoError(l.t, err)
	}, false, true, nil},
	{"obsolete", "obsolete", `"obsolete.retry.3m"`, "no policy uses it", Note, func(l *lab) {
		l.protected("obsolete")
		plan, err := topology.New("obsolete", config.Policy{Delays: []time.Duration{3 * time.Minute}}, topology.Names{})
		require.NoError(l.t, err)
		l.do(func(ch *amqp.Channel) error { return plan.Declare(ch) })
	}, false, false, nil},
	{"wrong-type", "arguments", `exchange "wrong-type.retry"`, "type, wanted headers, found direct", Problem,
		func(l *lab) {
			l.do(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("wrong-type.retry", "direct", true, false, false, false, nil)
			})
			l.declare("wrong-type", topology.ProtectArguments("wrong-type.dlq"))
			for _, q := range l.plan("wrong-type").Queues {
				l.declare(q.Name, q.Arguments)
			}
		}, true, true, nil},
	{"retry-less", "exists", `"retry-less.retry.1m"`, "no such queue", Problem, func(l *lab) {
		l.protected("retry-less")
		l.deleteQueue("retry-less.retry.1m")
	}, true, true, nil},
	{"unbound-retry", "bindings", `"unbound-retry.retry"`, `not bound to queue "unbound-retry.retry.2m"`, Problem,
		func(l *lab) {
			b := l.protected("unbound-retry").Bindings[1]
			l.do(func(ch *amqp.Channel) error { return ch.QueueUnbind(b.Queue, b.Key, b.Exchange, b.Arguments) })
		}, true, false, nil},
	{"at-most-once", "arguments", `"at-most-once.retry.1m"`, "x-dead-letter-strategy", Problem, func(l *lab) {
		arguments := l.plan("at-most-once").Queues[0].Arguments
		delete(arguments, "x-dead-letter-strategy")
		l.declare("at-most-once.retry.1m", arguments)
		l.declare("at-most-once", topology.ProtectArguments("at-most-once.dlq"))
	}, true, true, nil},
	{"own-limit", "overflow", `"own-limit"`, "x-max-length: 5, and overflow: drop-head", Warning, func(l *lab) {
		arguments := topology.ProtectArguments("own-limit.dlq")
		arguments["x-max-length"] = 5
		delete(arguments, "x-overflow")
		l.topic("own-limit", arguments)
	}, true, false, nil},
	{"dlq-own-limit", "arguments", `"dlq-own-limit.dlq"`, "x-max-length", Problem, func(l *lab) {
		queues := l.plan("dlq-own-limit").Queues
		arguments := queues[len(queues)-1].Arguments
		arguments["x-max-length"] = 5
		l.declare("dlq-own-limit.dlq", arguments)
		l.publish("dlq-own-limit.dlq")
		l.declare("dlq-own-limit", topology.ProtectArguments("dlq-own-limit.dlq"))
	}, true, true, nil},
	{"dlq-bytes", "policies", `"dlq-bytes.dlq"`, "max-length-bytes: 9000", Problem, func(l *lab) {
		l.protected("dlq-bytes")
		l.policy("policies", "bytes", "^dlq-bytes[.]dlq$", `{"max-length-bytes":9000}`, 0)
	}, true, false, nil},
	{"dlq-ttl", "policies", `"dlq-ttl.dlq"`, "message-ttl: 3600000", Problem, func(l *lab) {
		l.protected("dlq-ttl")
		l.policy("operator-policies", "dlq-ttl", "^dlq-ttl[.]dlq$", `{"message-ttl":3600000}`, 0)
	}, true, false, nil},
	{"main-idle", "policies", `"main-idle"`, "expires: 3600000", Problem, func(l *lab) {
		l.protected("main-idle")
		l.policy("policies", "main-idle", "^main-idle$", `{"expires":3600000}`, 0)
	}, true, false, nil},
	{"main-ttl", "policies", `"main-ttl"`, "message-ttl: 3600000", Warning, func(l *lab) {
		l.protected("main-ttl")
		l.policy("policies", "main-ttl", "^main-ttl$", `{"message-ttl":3600000}`, 0)
	}, true, false, nil},
	// The last one: it counts the queues of all others. Its fix is printed first, as others need
	// room.
	{"limits", "limits", "broker", "the virtual host is limited to", Problem, func(l *lab) {
		l.protected("limits")
		l.put("vhost-limits", "max-queues", map[string]int{"value": 10})
		l.put("vhost-limits", "max-connections", map[string]int{"value": 100})
	}, true, false, nil},
}

// readers are the queues whose fix has commands that a person runs after having read what is above
// them.
var readers = map[string]bool{"own-limit": true, "dlq-own-limit": true}

// block is a fix as it stands in what is printed for people.
type block struct{ object, fix string }

// blocks are all fixes of an output, in order.
func blocks(out string) (all []block) {
	object, inside := "", false
	for line := range strings.Lines(out) {
		switch indented, is := strings.CutPrefix(line, "      "); {
		case is && inside:
			all[len(all)-1].fix += indented
		case line == "    fix:\n":
			all, inside = append(all, block{object, ""}), true
		default:
			inside = false
			if !strings.HasPrefix(line, " ") && line != "\n" {
				object = strings.TrimSuffix(line, "\n")
			}
		}
	}
	return all
}

// paste runs each fix that doctor prints as it stands there, one after the other. No message of the
// queues is lost.
func (l *lab) paste(queues []string, fixed []wrong) {
	var all []string
	for _, w := range fixed {
		all = append(all, w.queue, w.queue+".retry.1m", w.queue+".retry.2m", w.queue+".dlq")
	}
	messages := func() (n int) {
		for _, q := range all {
			ready, _ := l.ready(q)
			n += ready
		}
		return n
	}
	for _, q := range all {
		if _, there := l.ready(q); there && !strings.HasSuffix(q, ".1m") &&
			q != "limit.dlq" { // whose statistics keep "dlq stat" from it until they are fresh
			l.publish(q)
		}
	}
	before := messages()
	v := l.doctor(map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api}, append([]string{"--policies",
		l.policies}, queues...)...)
	pasted := blocks(v.out)
	require.Greater(l.t, len(pasted), len(fixed)/2, v.out)
	seen := map[string]bool{}
	for _, b := range pasted {
		assert.False(l.t, seen[b.fix], "printed twice: %s", b.fix)
		seen[b.fix] = true
		for queue := range readers {
			if strings.Contains(b.object, `"`+queue+`"`) || strings.Contains(b.object, `"`+queue+`.dlq"`) {
				b.fix = uncommented(b.fix)
			}
		}
		l.run(b.fix)
	}
	await.Until(l.t, func() bool { return messages() == before }, "nothing is lost")
}

// ready is how many messages of a queue are ready, and whether there is such a queue.
func (l *lab) ready(queue string) (n int, there bool) {
	ch, err := l.connection.Channel()
	require.NoError(l.t, err)
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err == nil
}
