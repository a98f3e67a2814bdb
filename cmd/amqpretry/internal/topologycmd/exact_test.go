package topologycmd

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
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
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// exactLab is a lab with exact delays: main queues of the test's own, on a ladder of its own.
type exactLab struct {
	*lab
	queues []string
	ladder topology.Ladder
}

// newExactLab has a ladder of 8 queues, 5 exchanges and 10 bindings.
func newExactLab(t *testing.T, uri string) *exactLab {
	t.Helper()
	l := &exactLab{lab: newLab(t, uri)}
	prefix := "cli-" + strings.ToLower(rand.Text())[:10]
	var err error
	l.ladder, err = topology.NewLadder(config.Ladder{Prefix: prefix, Levels: 3, Radix: 3})
	require.NoError(t, err)
	l.exact()
	for i := range 3 {
		queue := fmt.Sprintf("%s-orders%d", prefix, i)
		l.queues = append(l.queues, queue)
		plan, err := topology.New(queue, config.Policy{Strategy: config.StrategyLadder, Ladder: l.ladder.Config,
			Delays: []time.Duration{time.Second}}, topology.Names{})
		require.NoError(t, err)
		t.Cleanup(func() { l.RemovePlan(plan); l.Remove("", queue+".retry.1s") })
	}

	return l
}

// exact makes the delays exact, and tiers makes them retry queues.
func (l *exactLab) exact() { l.policies("ladder") }
func (l *exactLab) tiers() { l.policies("queues") }

func (l *exactLab) policies(strategy string) {
	l.t.Helper()
	text := fmt.Sprintf("default: {delays: [1s], strategy: %s, ladder: {prefix: %q, levels: 3, radix: 3}}\n", strategy,
		l.ladder.Config.Prefix)
	l.environ[cli.EnvPolicies] = policyFile(l.t, text)
}

// summary is the line of the ladder.
func (l *exactLab) summary(state string) string {
	return fmt.Sprintf("\nladder %s: 7 queues, 5 exchanges, 10 bindings: %s\n", l.ladder.Name(), state)
}

// names replaces what is random.
func (l *exactLab) anonymous(text string) string {
	return strings.ReplaceAll(text, l.ladder.Config.Prefix, "cli-0123456789")
}

func TestExactPlanApplyVerify(t *testing.T) {
	t.Parallel()
	l := newExactLab(t, brokertest.URI(t))

	d := l.run(append([]string{"plan"}, l.queues...)...)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Equal(t, 1, strings.Count(d.out, l.summary("missing")), "once, for all queues: %s", d.out)
	assert.NotContains(t, d.out, l.ladder.Level(1), "none of its objects, as all are missing")

	for _, queue := range l.queues {
		l.Declare(queue, nil)
	}
	d = l.run(append([]string{"apply"}, l.queues...)...)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	golden(t, "exact-apply", l.anonymous(d.out))
	d = l.run(append([]string{"verify", "--json"}, l.queues...)...)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	r := d.report(t)
	require.Len(t, r.Ladders, 1)
	assert.Len(t, r.Ladders[0].Objects, 22, "all of them")
	assert.Equal(t, l.ladder.Name(), r.Ladders[0].Name)
	assert.Equal(t, map[inspect.State]int{inspect.Present: 12 + 3*4, inspect.Untold: 10 + 3*2}, r.Summary)
	for _, q := range r.Queues {
		i := slices.IndexFunc(q.Objects, func(o object) bool { return o.Name == q.Queue+".landing" })
		assert.Equal(t, "quorum, messages that are due, for "+q.Queue, q.Objects[i].Detail, "no dead letters")
	}
}

// A ladder of which somebody has deleted a part, and one of which a queue was declared otherwise.
func TestExactHalfDeletedAndConflict(t *testing.T) {
	t.Parallel()
	l := newExactLab(t, brokertest.URI(t))
	queue, wait, level := l.queues[0], l.ladder.WaitQueue(1, 2), l.ladder.Level(0)
	l.Declare(queue, nil)
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	l.Remove(level, wait)

	d := l.run("verify", queue)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Contains(t, d.out, l.summary("10 present, 7 missing, 5 unseen"))
	assert.Regexp(t, "missing +queue +"+wait+" ", d.out)
	assert.Regexp(t, "missing +exchange +"+level+" ", d.out)
	assert.NotContains(t, d.out, l.ladder.WaitQueue(1, 1)+" ", "what is there is not listed")
	d = l.run("apply", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.out, l.summary("15 present, 7 created"))

	l.Remove("", wait)
	l.Declare(wait, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	l.Publish(wait, amqp091.Publishing{Body: []byte("stays")})
	l.Remove(queue + ".retry")
	for _, args := range [][]string{{"apply", queue}, {"plan", queue}} {
		d = l.run(args...)
		assert.NotEqual(t, cli.ExitOK, d.code)
		assert.Contains(t, d.out+d.errs, wait, "the conflict is named")
	}
	assert.Equal(t, inspect.Known(false), l.broker().Exchange(queue+".retry"), "nothing was declared")
	assert.Equal(t, 1, l.Depth(wait))
}

// A change to exact delays makes retry queues obsolete, and never what other services may use.
func TestExactObsolete_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Shared(t)
	b.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")
	l := newExactLab(t, b.URI)
	l.environ[cli.EnvManagement] = b.ManagementURL
	queue := l.queues[0]
	l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	l.tiers()
	d := l.run("apply", queue)
	require.Equal(t, cli.ExitOK, d.code, d.errs)

	l.exact()
	d = l.run("apply", queue)
	require.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Regexp(t, `obsolete +queue +`+queue+`\.retry\.1s`, d.out)
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.out, l.summary("present"), "the bindings to exchanges as well")

	require.NoError(t, l.Channel().ExchangeUnbind(l.ladder.Level(0), "*.0.#", l.ladder.Level(1), false, nil))
	require.NoError(t, l.Channel().QueueUnbind(queue+".landing", "*.*.*.q."+queue, l.ladder.Delivery(), nil))
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Contains(t, d.out, l.summary("21 present, 1 missing"))
	assert.Regexp(t, `missing +binding +\S+level-1 -> \S+level-0 +key \*\.0\.#`, d.out)
	assert.Regexp(t, `missing +binding +\S+delivery -> `+queue+`\.landing`, d.out)
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	require.Equal(t, cli.ExitOK, l.run("verify", queue).code)

	l.recreateNothing(queue)

	d = l.run("prune", queue, "--yes", "--old-policies", l.environ[cli.EnvPolicies])
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Regexp(t, `deleted +`+queue+`\.retry\.1s`, d.out)
	assert.Equal(t, 2, strings.Count(d.out, "\n"), "and nothing else: %s", d.out)

	// And back: landing queue and ladder stay.
	exact := l.environ[cli.EnvPolicies]
	l.tiers()
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	d = l.run("prune", queue, "--yes", "--old-policies", exact)
	assert.Equal(t, "No obsolete retry queues.\n", d.out, d.errs)
	assert.True(t, l.has(queue+".landing"))
	assert.True(t, l.has(l.ladder.WaitQueue(0, 1)))
}

// recreateNothing shows that --recreate deletes nothing of a ladder, nor a landing queue, nor
// anything else then.
func (l *exactLab) recreateNothing(queue string) {
	t := l.t
	for _, other := range []string{l.ladder.WaitQueue(0, 1), queue + ".landing"} {
		l.Remove("", other)
		l.Declare(other, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-message-ttl": 7,
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
		d := l.run("apply", queue, "--recreate")
		assert.Equal(t, cli.ExitFound, d.code, d.out)
		assert.Contains(t, d.errs, "nothing was declared")
		assert.Contains(t, d.errs, other)
		assert.True(t, l.has(other))
		l.Remove("", other)
		require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	}
	d := l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.out)
}

func TestExactPermissions_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Shared(t)
	l := newExactLab(t, b.URI)
	queue := l.queues[0]
	l.Declare(queue, nil)
	require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
	b.Ctl("add_user", "guard", "s3cret")
	b.Ctl("set_permissions", "guard", "^$", "^$", ".*")
	u, err := url.Parse(b.URI)
	require.NoError(t, err)
	u.User = url.UserPassword("guard", "s3cret")
	l.environ[cli.EnvURI] = u.String()
	d := l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Contains(t, d.out, l.summary("unseen"))
	assert.Equal(t, 4, strings.Count(d.out, "exists, but was not compared"), "of the ladder once: %s", d.out)
}
