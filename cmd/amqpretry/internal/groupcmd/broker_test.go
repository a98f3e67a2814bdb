package groupcmd

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func newServer(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	return server.URL
}

var settings = map[string]setting{
	"killed":  {policies: "testdata/tiers.yaml", queueType: amqp091.QueueTypeQuorum},
	"classic": {policies: "testdata/tiers.yaml", queueType: amqp091.QueueTypeClassic},
	"exact":   {policies: "testdata/exact.yaml", queueType: amqp091.QueueTypeQuorum},
	"shared":  {policies: "testdata/shared.yaml", queueType: amqp091.QueueTypeQuorum},
	"cycle":   {policies: "testdata/cycle.yaml", queueType: amqp091.QueueTypeQuorum, begins: true},
}

func TestGroup_OwnBroker(t *testing.T) {
	broker := newBroker(t)
	renames, removals := []string{"killed", "exact", "classic", "shared", "cycle"}, []string{"killed", "exact"}
	if testing.Short() {
		renames, removals = renames[:2], removals[:1]
	}
	for _, name := range renames {
		t.Run("rename "+name, func(t *testing.T) {
			t.Parallel()
			renamesUnderLoad(t, newLab(t, broker, settings[name]), name)
		})
	}
	for _, name := range removals {
		t.Run("remove "+name, func(t *testing.T) {
			t.Parallel()
			removes(t, newLab(t, broker, settings[name]))
		})
	}
}

// A group is renamed while messages are published, fail, wait and die. No message is lost, and
// those that were duplicated were published while both queues were bound.
func renamesUnderLoad(t *testing.T, l *lab, name string) {
	killed := name == "killed"
	stopOld := l.serve("billing")
	stopLoad := l.load()
	await.Until(t, func() bool { return l.Depth(l.queue("billing")+".dlq") > 10 }, "messages die")

	args := []string{"rename", "billing", "invoicing", "--topics", l.topic}
	dry := l.run(cli.ExitOK, args...)
	assert.Contains(t, dry.errs.String(), "nothing was changed")
	assert.Empty(t, l.names(l.queue("invoicing")))

	args = append(args, "--yes")
	if killed { // between the requests for each binding, and then while it waits
		for changes := range int64(2) {
			l.mortal(changes)
			l.run(cli.ExitFailed, args...)
		}
	}
	l.mortal(1000)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	r := l.startWith(ctx, args...)
	r.says(t, "Deploy the services with group invoicing now")
	stopLate := func() {}
	if name == "classic" { // an old instance that starts late
		stopLate = l.serve("billing")
		r.says(t, "an old instance has bound it to exchange")
	}
	if killed { // while it waits
		kill()
		r.ends(t, cli.ExitInterrupted)
	}
	l.serve("invoicing")
	stopOld()
	stopLate()
	for changes := int64(0); killed; changes++ { // each run comes further
		l.mortal(changes)
		r = l.start(args...)
		if code := await.Value(t, r.code, "the command ends"); code == cli.ExitOK {
			t.Logf("killed %d times", changes+3)
			assert.Greater(t, changes, int64(4))
			break
		}
		require.Less(t, changes, int64(60), "%s%s", &r.out, &r.errs)
	}
	if !killed {
		r.ends(t, cli.ExitOK)
	}
	stopLoad()

	assert.Contains(t, l.run(cli.ExitOK, args...).out.String(), "Nothing is left of group billing")
	assert.Empty(t, l.names(l.queue("billing")))
	l.settles("invoicing")
	l.balances("invoicing")
}

// settles waits until nothing is on its way to a group.
func (l *lab) settles(group string) {
	l.t.Helper()
	await.Until(l.t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for id := range l.published {
			if calls := l.calls[id]; fate.Of(id).Succeeds() && !slices.ContainsFunc(calls, func(c call) bool {
				return c.good
			}) {
				return false
			}
		}
		return true
	}, "every message is handled")
	await.Until(l.t, func() bool {
		dead := 0
		for id := range l.published {
			if fate.Of(id).Dies() {
				dead++
			}
		}
		return l.Depth(l.queue(group)+".dlq") >= dead
	}, "every other message dies")
}

// balances checks the ledger.
func (l *lab) balances(group string) {
	l.t.Helper()
	dead := map[string]int{}
	for _, d := range l.Drain(l.queue(group) + ".dlq") {
		dead[rabbit.UUID(d)]++
		assert.Equal(l.t, l.queue(group), rabbit.Text(d, "amqpretry-queue"))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	duplicates, overlap := 0, 0
	for id, at := range l.published {
		good, attempts := 0, []int{}
		for _, c := range l.calls[id] {
			attempts = append(attempts, c.attempt)
			if c.good {
				good++
			}
		}
		during := at.meets(l.both)
		if during {
			overlap++
		}
		if fate.Of(id).Dies() {
			good = dead[id]
		}
		assert.Positive(l.t, good, "lost: %s %v", id, attempts)
		if good > 1 {
			duplicates += good - 1
			assert.True(l.t, during, "duplicated: %s", id)
			continue
		}
		for i, attempt := range attempts { // by whichever group
			if !l.setting.begins {
				assert.Equal(l.t, i+1, attempt, "%s: %v", id, l.calls[id])
			}
		}
	}
	l.t.Logf("%d messages, %d dead, %d duplicates, of %d that were published in the %s in which both queues were bound",
		len(l.published), len(dead), duplicates, overlap, l.both.to.Sub(l.both.from))
}

// A group is removed when its messages are handled, and its dead letters are taken care of.
func removes(t *testing.T, l *lab) {
	stop, stopLoad := l.serve("billing"), l.load()
	await.Until(t, func() bool { return l.Depth(l.queue("billing")+".dlq") > 10 }, "messages die")
	args := []string{"remove", "billing", "--topics", l.topic, "--yes"}
	l.serve("shipping") // else messages would be unroutable
	r := l.start(args...)
	r.says(t, "Waiting until the instances of group billing have handled its messages")
	stopLoad()
	r.says(t, "Stop the instances of group billing now")
	stop()
	r.ends(t, cli.ExitIncomplete)
	assert.Contains(t, r.out.String(), " --all '"+l.queue("billing")+"'`")
	assert.Contains(t, l.names(l.queue("billing")), l.queue("billing"))

	require.NotEmpty(t, l.Drain(l.queue("billing")+".dlq"))
	l.run(cli.ExitOK, args...)
	assert.Empty(t, l.names(l.queue("billing")))
	assert.Contains(t, l.run(cli.ExitOK, args...).out.String(), "Nothing is left of group billing")
	assert.NotEmpty(t, l.names(l.queue("shipping")))
}

// A run that is killed while it moves messages may have duplicated those that were on their way. It
// has the permissions of docs/how-to/permissions.md.
func TestKilledWhileMoving_OwnBroker(t *testing.T) {
	broker := newBroker(t)
	l := newLab(t, broker, settings["killed"])
	l.serve("billing")() // declares
	l.permit("regroup", "policymaker", "^"+l.topic+`_(billing|invoicing)(\..*)?$`,
		"^("+l.topic+`_(billing|invoicing)(\..*)?|amq\.default)$`,
		"^("+l.topic+`(_(billing|invoicing)(\..*)?)?|amq\.headers)$`)
	const n, kills = 3000, 3
	ids := rabbit.Numbered("ok", n)
	l.PublishTo(l.topic, "", rabbit.Messages(ids...)...)
	for kill := range kills {
		ctx, end := context.WithCancel(t.Context())
		r := l.startWith(ctx, "rename", "billing", "invoicing", "--topics", l.topic, "--yes")
		await.Until(t, func() bool {
			return len(l.names(l.queue("invoicing"))) > 0 && l.Depth(l.queue("invoicing")) > 400*(kill+1)
		}, "messages are moved")
		end()
		r.ends(t, cli.ExitInterrupted)
	}
	l.run(cli.ExitOK, "rename", "billing", "invoicing", "--topics", l.topic, "--yes")

	found := map[string]int{}
	all := l.Drain(l.queue("invoicing"))
	for _, d := range all {
		found[rabbit.UUID(d)]++
	}
	assert.Len(t, found, n)
	assert.LessOrEqual(t, len(all), n+kills*window)
	t.Logf("%d duplicates", len(all)-n)
}

// A main queue stays while a message waits that an old instance has failed late.
func TestFailedLate_OwnBroker(t *testing.T) {
	l := newLab(t, newBroker(t), settings["killed"])
	l.serve("billing")() // declares
	queue, channel, late := l.queue("billing"), l.Channel(), sync.Once{}
	l.proxied(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/q/"+queue) { // to be proven empty
				late.Do(func() {
					_, err := channel.QueueDeclare(queue+".retry.10m", true, false, false, false, amqp091.Table{
						amqp091.QueueMessageTTLArg: int64(600_000), "x-dead-letter-exchange": "",
						"x-dead-letter-routing-key": queue})
					assert.NoError(t, err)
					assert.NoError(t, channel.Publish("", queue+".retry.10m", true, false, rabbit.Message("a", "a")))
				})
			}
			next.ServeHTTP(w, r)
		})
	})
	r := l.run(cli.ExitIncomplete, "rename", "billing", "invoicing", "--topics", l.topic, "--yes")
	assert.Contains(t, r.out.String(), `queue "`+queue+`.retry.10m" has 1 message for it`)
	assert.Contains(t, l.names(queue), queue)
}

// Messages of a topic that nobody consumes end the command, also if those of another are consumed.
func TestRemoveWithoutAConsumer_OwnBroker(t *testing.T) {
	l := newLab(t, newBroker(t), settings["killed"])
	l.serve("billing")
	channel := l.Channel()
	_, err := channel.QueueDeclare("other_billing", true, false, false, false, nil)
	require.NoError(t, err)
	l.PublishTo("", "other_billing", rabbit.Messages("a")...)
	r := l.run(cli.ExitIncomplete, "remove", "billing", "--topics", l.topic+",other", "--yes")
	assert.Contains(t, r.errs.String(), `queue "other_billing" no consumer`)
}

func TestList_OwnBroker(t *testing.T) {
	broker := newBroker(t)
	l := newLab(t, broker, settings["killed"])
	stop := l.serve("billing")
	l.serve("shipping")
	l.PublishTo(l.topic, "", rabbit.Messages("permanent-1", "ok-1")...)
	l.Has(l.queue("billing")+".dlq", 1)
	stop()

	var found struct{ Queues []listed }
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		r := l.run(cli.ExitOK, "list", "billing", "--json")
		found.Queues = nil
		assert.NoError(t, json.Unmarshal([]byte(r.out.String()), &found))
		if assert.Len(t, found.Queues, 1) {
			assert.Equal(t, "1", number(found.Queues[0].DeadLetters))
			assert.Equal(t, "0", number(found.Queues[0].Consumers))
		}
	}, await.Bound, time.Second)
	q := found.Queues[0]
	assert.Equal(t, []string{"billing", l.topic, l.queue("billing"), l.queue("billing") + ".dlq"},
		[]string{q.Group, q.Topic, q.Queue, q.DeadLetterQueue})
	assert.Equal(t, []binding{{Exchange: l.topic}}, q.Bindings)
	assert.Len(t, q.Waiting, 2)

	text := l.run(cli.ExitOK, "list").out.String()
	assert.Equal(t, 3, strings.Count(text, "\n"), text)
	assert.Contains(t, text, "shipping")
	assert.Contains(t, l.run(cli.ExitOK, "list", "nobody").out.String(), "No queues of consumer groups")
	l.run(cli.ExitUsage, "rename", "nobody", "somebody", "--topics", l.topic, "--yes")
	l.run(cli.ExitUsage, "list", "--group-queue", "{topic}")
}
