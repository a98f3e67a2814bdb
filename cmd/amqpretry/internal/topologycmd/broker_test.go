package topologycmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// lab is a broker, with queues of a test.
type lab struct {
	*rabbit.Client
	t       *testing.T
	environ map[string]string
	channel *amqp091.Channel // open until the test ends, with what is exclusive to it
	file    string
}

func newLab(t *testing.T, uri string) *lab {
	t.Helper()
	client := rabbit.New(t, uri)
	const policies = "testdata/policies.yaml"

	return &lab{client, t, map[string]string{cli.EnvURI: uri, cli.EnvPolicies: policies}, client.Channel(), policies}
}

// queue is a name of its own, of which nothing is left at the end.
func (l *lab) queue() string {
	name := "cli-" + strings.ToLower(rand.Text())[:10]
	l.t.Cleanup(func() { l.Remove(name+".retry", name, name+".dlq", name+".retry.1s", name+".retry.90s") })

	return name
}

func (l *lab) run(args ...string) done {
	l.t.Helper()
	return execute(l.t.Context(), l.t, l.environ, args...)
}

func TestPlanApplyVerify(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	queue := l.queue()

	d := l.run("plan", queue)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	golden(t, "plan-missing", strings.ReplaceAll(d.out, queue, "cli-0123456789"))
	assert.Equal(t, cli.ExitFound, l.run("plan", queue).code, "it has made nothing")
	assert.Equal(t, cli.ExitFound, unread(t, l.environ, "verify", queue), "also for who reads the exit code only")

	d = l.run("apply", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	golden(t, "apply", strings.ReplaceAll(d.out, queue, "cli-0123456789"))
	assert.Contains(t, d.errs, fmt.Sprintf("missing main queues, which their services declare: main queue %q",
		queue))

	d = l.run("plan", queue)
	assert.Equal(t, cli.ExitOK, d.code, "a main queue is not for apply to make")
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitFound, d.code, "but it is missing")

	l.Declare(queue, nil)
	d = l.run("apply", queue, "--json")
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Empty(t, d.errs)
	r := d.report(t)
	assert.Equal(t, map[inspect.State]int{inspect.Present: 8}, r.Summary, "all was there already")

	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.out, "5 present, 3 unseen. Bindings and obsolete retry queues need the management API")
}

// The messages of a queue that is compared, or declared again, stay.
func TestApplyKeepsMessages(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	queue := l.queue()
	l.Declare(queue, nil)
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	l.Publish(queue+".dlq", amqp091.Publishing{Body: []byte("x")})

	for _, command := range []string{"plan", "apply", "verify"} {
		assert.Equal(t, cli.ExitOK, l.run(command, queue).code)
	}
	assert.Equal(t, []string{"x"}, rabbit.Bodies(l.Drain(queue+".dlq")))
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	queue, other := l.queue(), l.queue()
	l.Declare(queue, nil)
	l.Declare(other, nil)
	l.Declare(queue+".dlq", nil)
	l.Declare(queue+".retry.1s", amqp091.Table{amqp091.QueueTypeArg: "quorum", amqp091.QueueMessageTTLArg: int64(5)})
	require.NoError(t, l.channel.ExchangeDeclare(queue+".retry", "fanout", true, false, false, false, nil))

	d := l.run("plan", other, queue, "--json")
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	found := map[string]object{}
	for _, o := range d.report(t).Queues[1].Objects {
		found[strings.TrimPrefix(o.Name, queue)] = o
	}
	assert.Equal(t, inspect.Conflict, found[".dlq"].State)
	assert.Equal(t, []string{"x-queue-type", "quorum"}, []string{found[".dlq"].Argument, found[".dlq"].Wanted})
	assert.Equal(t, inspect.Conflict, found[".retry.1s"].State)
	assert.Equal(t, inspect.Conflict, found[".retry"].State)
	assert.Equal(t, []string{"type", "headers", "fanout"}, []string{found[".retry"].Argument, found[".retry"].Wanted,
		found[".retry"].Found})
	assert.Equal(t, inspect.Missing, found[".retry.90s"].State)

	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitFound, d.code)
	assert.Contains(t, d.out, "ways out:")

	d = l.run("apply", other, queue)
	assert.Equal(t, cli.ExitFound, d.code)
	assert.Empty(t, d.out)
	assert.Contains(t, d.errs, "nothing was declared")
	assert.Equal(t, 3, strings.Count(d.errs, "ways out:"), "all at once")
	d = l.run("apply", other, queue, "--json")
	assert.Equal(t, cli.ExitFound, d.code)
	assert.Equal(t, 3, d.report(t).Summary[inspect.Conflict])
	assert.Zero(t, d.report(t).Summary[inspect.Created])
	assert.Equal(t, cli.ExitFound, l.run("plan", other).code, "nothing was declared of the others either")
}

// A queue that another connection has for itself.
func TestExclusiveQueue(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	queue := l.queue()
	_, err := l.channel.QueueDeclare(queue+".dlq", false, false, true, false, nil)
	require.NoError(t, err)
	d := l.run("plan", queue)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Contains(t, d.out, "conflict")
	assert.Equal(t, cli.ExitFound, l.run("apply", queue).code)
}

func TestSharedNeedsTheMainQueue(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	queue, name := l.queue(), l.queue()
	t.Cleanup(func() {
		l.Remove(name, name+".10s")
		l.Remove(name + ".return")
	})
	args := []string{"shared=" + queue, "--shared-name", name}
	d := l.run(append([]string{"apply"}, args...)...)
	assert.Equal(t, cli.ExitFound, d.code)
	assert.Contains(t, d.errs, "shared retry queues need it")

	l.Declare(queue, nil)
	d = l.run(append([]string{"apply"}, args...)...)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.out, fmt.Sprintf("%s.return -> %s", name, queue))
	assert.Equal(t, cli.ExitOK, l.run(append([]string{"verify"}, args...)...).code)
}

func TestOddNamesOnABroker(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	for _, odd := range []string{` a "b" 'c' \ é日 \x1b`, "\x1b[2J\u009b\u202e", "$(x)=%2F/?#"} {
		queue := l.queue()
		name := queue + odd
		t.Cleanup(func() { l.Remove(name+".retry", name, name+".dlq", name+".retry.1s", name+".retry.90s") })
		l.Declare(name, nil)
		arg := "t=" + name
		assert.Equal(t, cli.ExitFound, l.run("plan", arg).code)
		d := l.run("apply", arg)
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.NotContains(t, d.out+d.errs, "\x1b")
		assert.NotContains(t, d.out+d.errs, "\u202e")
		assert.Equal(t, cli.ExitOK, l.run("verify", arg).code)
	}
}

func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	uri, err := url.Parse(brokertest.URI(t))
	require.NoError(t, err)
	uri.User = url.UserPassword("nobody", "s3cret")
	d := execute(t.Context(), t, map[string]string{cli.EnvURI: uri.String()}, "plan", "orders")
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, "username or password not allowed")
	assert.NotContains(t, d.errs, "s3cret")
}

// What takes the management API, and what disturbs: a broker of its own.
func TestWithManagement_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.StartWithManagement(t)
	l := newLab(t, b.URI)
	l.environ[cli.EnvManagement] = b.ManagementURL
	queue := "orders"
	l.Declare(queue, nil)
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)

	t.Run("who has an exclusive queue is told", func(t *testing.T) {
		other := l.queue()
		_, err := l.channel.QueueDeclare(other+".dlq", false, false, true, false, nil)
		require.NoError(t, err)
		await.Until(t, func() bool { // the API knows connections some seconds later
			d := l.run("plan", other)
			return strings.Contains(d.out, "it is the exclusive queue of another connection (127.0.0.1:") &&
				d.code == cli.ExitFound
		})
	})

	t.Run("bindings are seen", func(t *testing.T) {
		d := l.run("verify", queue)
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.Contains(t, d.out, "\n8 present.\n")

		require.NoError(t, l.channel.QueueUnbind(queue+".retry.1s", "", queue+".retry",
			amqp091.Table{"x-match": "all", "amqpretry-delay": "1s"}))
		d = l.run("verify", queue)
		assert.Equal(t, cli.ExitFound, d.code, d.errs)
		assert.Contains(t, d.out, "\n7 present, 1 missing.\n")
		d = l.run("apply", queue)
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.Contains(t, d.out, "\n7 present, 1 created.\n")
		assert.Equal(t, cli.ExitOK, l.run("verify", queue).code)
	})

	t.Run("permissions", func(t *testing.T) {
		b.Ctl("add_user", "guard", "s3cret")
		b.Ctl("set_permissions", "guard", "^$", "^$", "^orders.*$")
		guard := *l
		guard.environ = map[string]string{cli.EnvURI: as(b.URI, "guard"), cli.EnvPolicies: l.file}
		d := guard.run("verify", queue)
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.Contains(t, d.out, "exists, but was not compared")
		d = guard.run("apply", queue)
		assert.Equal(t, cli.ExitFailed, d.code)
		assert.Contains(t, d.errs, `for user "guard"`)
		assert.NotContains(t, d.out+d.errs, "s3cret")
	})

	b.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")
	t.Run("recreate", l.recreate)
	t.Run("dead-letter targets", l.deadLetterTargets)

	l.environ[cli.EnvPolicies] = policyFile(t, "default: {delays: [90s]}")
	t.Run("prune", func(t *testing.T) {
		d := l.run("prune", queue+"-none")
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.Equal(t, "No obsolete retry queues.\n", d.out)

		d = l.run("plan", queue)
		assert.Equal(t, cli.ExitOK, d.code, "obsolete is no difference")
		assert.Regexp(t, `obsolete +queue +orders\.retry\.1s +no policy has its delay of 1s`, d.out)

		d = l.run("prune", queue)
		assert.Equal(t, cli.ExitOK, d.code, d.errs)
		assert.Contains(t, d.out, "orders.retry.1s")
		assert.Contains(t, d.out, "Nothing was deleted")
		assert.True(t, l.has("orders.retry.1s"))

		// One that somebody consumes is kept.
		plan, err := topology.New(queue, config.Policy{Delays: []time.Duration{2 * time.Second}}, topology.Names{})
		require.NoError(t, err)
		require.NoError(t, plan.Declare(l.channel))
		_, err = l.channel.Consume("orders.retry.2s", "", false, false, false, false, nil)
		require.NoError(t, err)

		d = l.run("prune", queue, "--yes")
		assert.Equal(t, cli.ExitIncomplete, d.code, d.out+d.errs)
		assert.Regexp(t, `deleted +orders\.retry\.1s`, d.out)
		assert.Regexp(t, `kept +orders\.retry\.2s .*consumers on it`, d.out)
		assert.Contains(t, d.errs, "orders.retry.1s: waiting until it is proven empty")
		assert.Contains(t, d.errs, "orders.retry.1s: deleted")
		assert.False(t, l.has("orders.retry.1s"))
		assert.True(t, l.has("orders.retry.2s"))

		d = l.run("prune", queue, "--json")
		assert.Equal(t, cli.ExitOK, d.code)
		assert.Contains(t, d.out, `"delay": "2s"`)
	})

	t.Run("interrupted", func(t *testing.T) {
		plan, err := topology.New(queue, config.Policy{Delays: []time.Duration{3 * time.Second}}, topology.Names{})
		require.NoError(t, err)
		require.NoError(t, plan.Declare(l.channel))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l.whenUnbound(queue, "3s", cancel)
		d := execute(ctx, t, l.environ, "prune", queue, "--yes")
		assert.Equal(t, cli.ExitInterrupted, d.code, d.errs)
		assert.Contains(t, d.errs, "run the command again to delete the rest")
		assert.Regexp(t, `kept +orders\.retry\.3s .* interrupted: the queue is unbound`, d.out)
		assert.True(t, l.has("orders.retry.3s"))
	})

	t.Run("frozen", func(t *testing.T) {
		b.Pause()
		defer b.Resume()
		d := l.run("plan", queue, "--timeout", "1s")
		assert.Equal(t, cli.ExitFailed, d.code)
		assert.Contains(t, d.errs, "no connection within 1s")
	})

	t.Run("frozen in the middle", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &cli.Session{Getenv: func(key string) string { return l.environ[key] }}
		broker, err := inspect.Connect(ctx, s.Dial, patience)
		require.NoError(t, err)
		defer broker.Close()
		found, _, _ := broker.Queue(queue)
		assert.True(t, found.Value)

		b.Pause()
		defer b.Resume()
		time.AfterFunc(300*time.Millisecond, cancel)
		began := time.Now()
		for found.Known && time.Since(began) < 20*time.Second { // one more answer may be on its way
			found, _, _ = broker.Queue(queue)
		}
		assert.ErrorIs(t, found.Err, context.Canceled)
		assert.Less(t, time.Since(began), 20*time.Second)
	})
}

// whenUnbound calls do as soon as no retry queue gets the messages with that delay any more.
func (l *lab) whenUnbound(queue, delay string, do func()) {
	go func() {
		defer do()
		for end := time.Now().Add(await.Bound); time.Now().Before(end); <-time.After(await.Tick) {
			err := l.TryPublish(queue+".retry", queue, amqp091.Publishing{Headers: amqp091.Table{header.Delay: delay}})
			if errors.Is(err, rabbit.ErrUnroutable) {
				return
			}
		}
	}()
}

// has asks over a channel of its own: an answer of no closes it.
func (l *lab) has(queue string) bool {
	l.t.Helper()
	found, _, _ := l.broker().Queue(queue)
	require.True(l.t, found.Known, found.Why)

	return found.Value
}

// broker is asked over a connection of its own.
func (l *lab) broker() *inspect.Broker {
	l.t.Helper()
	s := &cli.Session{Getenv: func(key string) string { return l.environ[key] }}
	broker, err := inspect.Connect(l.t.Context(), s.Dial, patience)
	require.NoError(l.t, err)
	l.t.Cleanup(broker.Close)

	return broker
}

// as is the URI for another user.
func as(uri, user string) string {
	u, _ := url.Parse(uri)
	u.User = url.UserPassword(user, "s3cret")

	return u.String()
}

// recreate is for retry queues that somebody has declared otherwise: with what waits in them, and
// without losing it.
func (l *lab) recreate(t *testing.T) {
	channel := l.Channel()
	queue := l.queue()
	l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	l.Declare(queue+".retry.1s", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-message-ttl": 3000,
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": queue, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	l.Declare(queue+".dlq", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic})

	d := l.run("apply", queue, "--recreate")
	assert.Equal(t, cli.ExitFound, d.code, d.out)
	assert.Contains(t, d.errs, queue+".dlq", "a dead-letter queue is not deleted")
	assert.True(t, l.has(queue+".dlq"))
	assert.True(t, l.has(queue+".retry.1s"), "nor anything else then")
	assert.False(t, l.has(queue+".retry"), "nothing was declared")
	_, err := channel.QueueDelete(queue+".dlq", false, false, false)
	require.NoError(t, err)

	l.Declare(queue+".retry.90s", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	d = l.run("apply", queue, "--recreate")
	assert.Equal(t, cli.ExitFailed, d.code, d.out)
	assert.Contains(t, d.errs, "it has no x-message-ttl, so it is no retry queue")
	assert.True(t, l.has(queue+".retry.90s"))
	assert.True(t, l.has(queue+".retry.1s"))
	_, err = channel.QueueDelete(queue+".retry.90s", false, false, false)
	require.NoError(t, err)

	l.Declare(queue+".retry.90s", amqp091.Table{ // of the type that the virtual host gives it
		"x-message-ttl": 3000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
	})
	require.NoError(t, channel.Publish("", queue+".retry.1s", true, false, amqp091.Publishing{Body: []byte("waits")}))
	d = l.run("apply", queue)
	assert.Equal(t, cli.ExitFound, d.code, "not without the flag")
	assert.True(t, l.has(queue+".retry.1s"))
	d = l.run("apply", queue, "--recreate")
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.errs, queue+".retry.1s: waiting until it is proven empty")
	assert.Regexp(t, `created +queue +`+queue+`\.retry\.1s`, d.out)
	assert.Regexp(t, `created +queue +`+queue+`\.retry\.90s`, d.out)
	assert.Equal(t, cli.ExitOK, l.run("verify", queue).code)
	m, ok, err := channel.Get(queue, true)
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, "waits", string(m.Body))

	// What leads elsewhere is not waited for: its messages would be gone.
	again := func(arguments amqp091.Table) {
		_, err := channel.QueueDelete(queue+".retry.1s", false, false, false)
		require.NoError(t, err)
		l.Declare(queue+".retry.1s", arguments)
		require.NoError(t, channel.QueueBind(queue+".retry.1s", queue, queue+".retry", false,
			amqp091.Table{"x-match": "all", header.Delay: "1s"}))
	}
	leads := func() error {
		return l.TryPublish(queue+".retry", queue, amqp091.Publishing{Headers: amqp091.Table{header.Delay: "1s"}})
	}
	again(amqp091.Table{"x-message-ttl": 60_000, "x-dead-letter-exchange": "elsewhere"})
	api, err := httpapi.New(l.environ[cli.EnvManagement], "/", nil)
	require.NoError(t, err)
	await.Until(t, func() bool {
		q, err := api.Queue(t.Context(), queue+".retry.1s")
		return err == nil && q.Messages != nil && *q.Messages == 0
	})
	require.NoError(t, leads())
	d = l.run("apply", queue, "--recreate") // at once: the API still counts none
	assert.Equal(t, cli.ExitFailed, d.code, d.out)
	assert.Contains(t, d.errs, "move them first")
	assert.NoError(t, leads(), "it is still bound")

	// An interrupt leaves a queue that is in use as it was.
	again(amqp091.Table{"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.NoError(t, leads())
	l.whenUnbound(queue, "1s", cancel)
	d = execute(ctx, t, l.environ, "apply", queue, "--recreate")
	assert.NotEqual(t, cli.ExitOK, d.code)
	assert.Contains(t, d.errs, "it still exists, and is bound as before")
	assert.NoError(t, leads(), "it is bound again")
}

// deadLetterTargets are those of queues that lead nowhere, by arguments of their own.
func (l *lab) deadLetterTargets(t *testing.T) {
	channel := l.Channel()
	arrives := func(queue, target string) {
		t.Helper()
		require.NoError(t, channel.Publish("", queue, true, false, amqp091.Publishing{Body: []byte(target)}))
		await.Until(t, func() bool {
			m, ok, err := channel.Get(queue, false)
			return err == nil && ok && m.Reject(false) == nil
		})
		await.Until(t, func() bool {
			m, ok, err := channel.Get(target, true)
			return err == nil && ok && string(m.Body) == target
		}, "%s to %s", queue, target)
	}
	for name, test := range map[string]struct {
		exchange, kind string // kind of one that is there
		key, target    string
	}{
		"no exchange":     {exchange: "x.none", target: ".dlq"},
		"fanout":          {exchange: "x.fanout", kind: "fanout", target: ".dlq"},
		"direct":          {exchange: "x.direct", kind: "direct", target: ".dlq"},
		"direct by a key": {exchange: "x.key", kind: "direct", key: "dead", target: ".dlq"},
		"topic":           {exchange: "x.topic", kind: "topic", target: ".dlq"},
		"no queue":        {key: ".parked", target: ".parked"},
	} {
		queue := l.queue()
		arguments := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum,
			"x-dead-letter-exchange": test.exchange}
		if test.key != "" {
			arguments["x-dead-letter-routing-key"] = test.key
		}
		if test.key == test.target {
			arguments["x-dead-letter-routing-key"] = queue + test.key
		}
		l.Declare(queue, arguments)
		if test.kind != "" {
			require.NoError(t, channel.ExchangeDeclare(test.exchange, test.kind, true, false, false, false, nil))
		}
		d := l.run("apply", queue, "--dead-letter-targets")
		require.Equal(t, cli.ExitOK, d.code, "%s: %s", name, d.errs)
		require.Contains(t, d.out, string(inspect.Created), name)
		d = l.run("apply", queue, "--dead-letter-targets")
		require.Equal(t, cli.ExitOK, d.code, "%s: %s", name, d.errs)
		assert.NotContains(t, d.out, string(inspect.Created), name)
		arrives(queue, queue+test.target)
	}

	l.environ[cli.EnvPolicies] = policyFile(t, "default: {mode: off}")
	queue := l.queue()
	l.Declare(queue, topology.ProtectArguments(queue+".dlq"))
	d := l.run("apply", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.False(t, l.has(queue+".dlq"))
	d = l.run("apply", queue, "--dead-letter-targets")
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Regexp(t, `created +queue +`+queue+`\.dlq`, d.out)
	arrives(queue, queue+".dlq")
	l.environ[cli.EnvPolicies] = l.file

	api := l.environ[cli.EnvManagement]
	defer func() { l.environ[cli.EnvManagement] = api }()
	delete(l.environ, cli.EnvManagement)
	for _, flag := range []string{"--recreate", "--dead-letter-targets"} {
		d = l.run("apply", queue, flag)
		assert.Equal(t, cli.ExitUsage, d.code)
		assert.Contains(t, d.errs, flag+" needs the management API")
	}
}
