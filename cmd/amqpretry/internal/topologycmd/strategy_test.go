package topologycmd

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/dlqcmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// under is a lab whose default policy is this one.
func (l *lab) under(policy string) *lab {
	other := *l
	other.environ = map[string]string{}
	for key, value := range l.environ {
		other.environ[key] = value
	}
	other.file = policyFile(l.t, "default: "+policy)
	other.environ[cli.EnvPolicies] = other.file

	return &other
}

const (
	cyclePolicy      = "{strategy: cycle, delays: [1s], retries: 3}"
	redeliveryPolicy = "{strategy: redelivery, delays: [1s]}"
)

func strategyPlan(t *testing.T, queue string, policy config.Policy) topology.Plan {
	t.Helper()
	policy.Delays = []time.Duration{time.Second}
	plan, err := topology.New(queue, policy, topology.Names{})
	require.NoError(t, err)

	return plan
}

// strategyQueue is a queue of which nothing is left at the end, nor of its rejected exchanges.
func (l *lab) strategyQueue() string {
	queue := l.queue()
	l.t.Cleanup(func() { l.Remove(queue+".rejected.1s", queue+".rejected.2s"); l.Remove(queue + ".retry.2s") })

	return queue
}

// Without the management API, a declaration tells what a main queue lacks.
func TestMainQueuesUnderStrategies(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t)).under(cyclePolicy)
	queue := l.strategyQueue()
	plan := strategyPlan(t, queue, config.Policy{Strategy: config.StrategyCycle, Retries: 3})

	l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	d := l.run("plan", queue, "--json")
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	main := d.report(t).Queues[0].Objects[0]
	assert.Equal(t, inspect.Conflict, main.State)
	assert.Contains(t, plan.MainArguments, main.Argument)
	assert.Equal(t, "none", main.Found)
	assert.Equal(t, queue+".rejected.1s", main.Arguments["x-dead-letter-exchange"])
	assert.Contains(t, main.Fix, "amqpretry dlq purge --dead-letter-queue '"+queue+"' --all --yes")
	assert.NotContains(t, main.Fix, "set_policy", "nobody could see it")

	d = l.run("apply", queue)
	assert.Equal(t, cli.ExitIncomplete, d.code, "the first step of a change: %s", d.errs)
	assert.Contains(t, d.errs, `is in conflict: main queue "`+queue+`"`)
	assert.Equal(t, cli.ExitIncomplete, unread(t, l.environ, "apply", queue), "also for who reads the exit code only")
	assert.Regexp(t, `created +exchange +`+queue+`\.rejected\.1s +type headers`, d.out)
	assert.Regexp(t, `created +binding +`+queue+`\.rejected\.1s -> `+queue+`\.dlq +headers x-first-death-reason: `+
		`maxlen`, d.out)
	assert.Contains(t, d.out, `is not as its strategy needs it`)
	assert.Equal(t, cli.ExitFound, l.run("verify", queue).code)

	l.Remove("", queue)
	l.Declare(queue, plan.MainArguments)
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Regexp(t, `present +main queue +`+queue, d.out)

	l.Remove("", queue)
	l.Declare(queue, plan.WithMainArguments(amqp091.Table{"x-max-length": int64(100000)}))
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitOK, d.code, "its own arguments are its owner's: %s", d.out+d.errs)
	assert.Regexp(t, `unseen +main queue +`+queue+` +exists, but was not compared: it has x-max-length`, d.out)

	l.Remove("", queue)
	l.Declare(queue, plan.WithMainArguments(amqp091.Table{amqp091.QueueMessageTTLArg: int64(100000)}))
	d = l.run("verify", queue)
	assert.Equal(t, cli.ExitFound, d.code, d.out+d.errs)
	assert.Contains(t, d.out, "x-message-ttl: wanted none, found 100000")

	redelivery := l.under(redeliveryPolicy)
	other := redelivery.strategyQueue()
	l.Declare(other, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	d = redelivery.run("verify", other)
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Contains(t, d.out, "To recreate it", d.out)

	policy := l.under("{strategy: redelivery, delays: [1s], protect: policy}")
	require.Equal(t, cli.ExitOK, policy.run("apply", other).code)
	d = policy.run("verify", other)
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Contains(t, d.out, "only the management API shows the policy that its strategy needs")
}

// With the management API, policies of the broker count as well, and the lines that are printed
// help.
func TestStrategies_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Shared(t)
	l := newLab(t, b.URI)
	l.environ[cli.EnvManagement] = b.ManagementURL
	b.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")

	t.Run("a policy of the broker", func(t *testing.T) {
		const queue = "by-policy"
		l := l.under("{strategy: redelivery, delays: [1s], protect: policy}")
		l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: "quorum", "x-max-length": int64(100000)})
		require.Equal(t, cli.ExitOK, l.run("apply", queue).code)
		var d done
		await.Until(t, func() bool {
			d = l.run("verify", queue)
			return d.code == cli.ExitFound
		}, "the API knows its policies some seconds later")
		assert.Contains(t, d.out, `x-dead-letter-exchange: wanted "", found none`)
		plan := strategyPlan(t, queue, config.Policy{Strategy: config.StrategyRedelivery})
		policy, _ := plan.MainPolicy("/")
		assert.Contains(t, d.out, policy.SetCommand())
		assert.NotContains(t, d.out, "delete_queue")

		b.Ctl("set_policy", policy.Name, policy.Pattern, policy.Definition, "--priority", "100", "--apply-to", "queues")
		await.Until(t, func() bool { d = l.run("verify", queue); return d.code == cli.ExitOK }, "%s", d.out)
		assert.Contains(t, d.out, "present")
		arguments := l.under(redeliveryPolicy)
		d = arguments.run("verify", queue)
		assert.Equal(t, cli.ExitFound, d.code, "its service would declare arguments")
		assert.Contains(t, d.out, "Either set protect: policy")

		b.Ctl("set_operator_policy", "twenty", "^by-policy$", `{"delivery-limit":5}`)
		await.Until(t, func() bool { d = l.run("verify", queue); return d.code == cli.ExitFound })
		assert.Contains(t, d.out, "x-delivery-limit: wanted 1000, found 5, from a policy of the broker")
		assert.Contains(t, d.out, "amqpretry doctor --policies '"+l.file+"' 'by-policy'")
	})

	t.Run("another strategy", func(t *testing.T) { l.changeStrategy(t) })
}

// changeStrategy changes a main queue with messages from copies to a cycle, to another delay, and
// back, by the lines that verify prints, and prunes what is left.
func (l *lab) changeStrategy(t *testing.T) {
	const queue = "changing"
	l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	bodies := []string{"a", "b", "c"}
	var messages []amqp091.Publishing
	for _, body := range bodies {
		messages = append(messages, amqp091.Publishing{Body: []byte(body), Headers: amqp091.Table{"n": int32(7)}})
	}
	l.Publish(queue, messages...)
	for _, delay := range []string{"1s", "2s"} {
		policy := strings.Replace(cyclePolicy, "1s", delay, 1)
		l := l.under(policy)
		d := l.run("apply", queue)
		require.Equal(t, cli.ExitIncomplete, d.code, d.errs)
		d = l.run("verify", queue, "--json")
		require.Equal(t, cli.ExitFound, d.code, d.errs)
		fix := d.report(t).Queues[0].Objects[0].Fix
		folder := t.TempDir()
		purge := regexp.MustCompile(`(?m)^amqpretry dlq purge .*?( &&)$`).FindString(fix)
		limited := delay == "1s" && l.AtLeast(4, 0) && !l.AtLeast(4, 3) // a shovel has to do it
		if limited {
			require.Len(t, l.Drain(queue), len(bodies))
		} else {
			l.shell(t, folder, strings.TrimSuffix(purge, " &&"))
		}
		_, err := l.Channel().QueueDelete(queue, false, false, false)
		require.NoError(t, err)
		every, err := time.ParseDuration(delay)
		require.NoError(t, err)
		plan, err := topology.New(queue, config.Policy{Strategy: config.StrategyCycle, Retries: 3,
			Delays: []time.Duration{every}}, topology.Names{})
		require.NoError(t, err)
		l.Declare(queue, plan.MainArguments) // as its service does
		restore := regexp.MustCompile(`(?m)^#   (amqpretry dlq import .*)$`).FindStringSubmatch(fix)
		require.NotNil(t, restore, fix)
		if limited {
			l.Publish(queue, messages...)
		} else {
			l.shell(t, folder, restore[1])
		}
		await.Until(t, func() bool {
			d = l.run("verify", queue)
			return d.code == cli.ExitOK && !strings.Contains(d.out, "unseen")
		}, "%s", d.out)
	}
	letters := l.Drain(queue)
	assert.Equal(t, bodies, rabbit.Bodies(letters))
	assert.Equal(t, int32(7), letters[0].Headers["n"])

	// The first of both delays is obsolete now, with its exchange; the other one is still named.
	copies := l.under("{delays: [5s]}")
	require.Equal(t, cli.ExitOK, copies.run("apply", queue).code)
	d := copies.run("prune", queue, "--json")
	require.Equal(t, cli.ExitOK, d.code, d.errs)
	assert.Equal(t, 1, strings.Count(d.out, queue+".rejected."), d.out)
	d = copies.run("plan", queue)
	assert.Regexp(t, `obsolete +exchange +changing\.rejected\.[12]s +nothing dead-letters to it`, d.out)
	d = copies.run("prune", queue, "--yes")
	assert.Equal(t, cli.ExitIncomplete, d.code, d.out+d.errs)
	assert.Regexp(t, `deleted +changing\.rejected\.[12]s +changing`, d.out)
	assert.Regexp(t, `deleted +changing\.retry\.[12]s`, d.out)
	assert.Regexp(t, `kept +changing\.retry\.[12]s .*the rejected exchange "changing\.rejected\.[12]s" leads to `+
		`it`, d.out)
	_, err := l.Channel().QueueDelete(queue, false, false, false)
	require.NoError(t, err)
	l.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	d = copies.run("prune", queue, "--yes")
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Equal(t, "No obsolete retry queues.\n", copies.run("prune", queue).out)
}

// shell runs a command of this program that was printed.
func (l *lab) shell(t *testing.T, folder, line string) {
	t.Helper()
	words, err := exec.Command("sh", "-c", `printf '%s\n' `+strings.TrimPrefix(line, "amqpretry ")).Output()
	require.NoError(t, err)
	args := strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")
	for i, word := range args {
		if strings.HasSuffix(word, ".jsonl") {
			args[i] = filepath.Join(folder, word)
		}
	}
	var out, errs bytes.Buffer
	s := &cli.Session{In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now,
		Getenv: func(key string) string { return l.environ[key] }}
	require.Equal(t, cli.ExitOK, cli.Run(t.Context(), s, args, dlqcmd.Command), "%s: %s", line, errs.String())
}
