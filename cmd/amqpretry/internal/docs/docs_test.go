// Package docs runs the command lines of docs/reference/command-line, of
// docs/reference/package-dlq.md and of pages of docs/how-to and docs/concepts.
package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/docs/shop"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

const docs = "../../../../docs"

// pages are those with command lines, in the order in which they are run: each finds what the one
// before has left.
var pages = []string{"reference/command-line/README.md", "reference/command-line/dlq.md",
	"reference/command-line/topology.md", "reference/command-line/doctor.md", "reference/command-line/group.md",
	"concepts/sizing.md", "how-to/operate-exact-delays.md", "how-to/topology-as-code.md", "reference/package-dlq.md",
	"how-to/work-with-dead-letters.md", "how-to/messages-that-wait.md",
	"reference/command-line/dlq-origin.md", "reference/command-line/dlq-watch.md"}

// update writes what the commands have printed into the page, and draws the pictures anew.
var update = os.Getenv("UPDATE") != ""

// Every command line of these pages is run as it is there, in the order of the pages, and prints
// what is there.
func TestCommandLine_OwnBroker(t *testing.T) {
	w := newWorld(t)
	for _, name := range pages {
		path := filepath.Join(docs, name)
		page := read(t, path)
		outputs := map[*command]string{}
		for _, s := range page.steps {
			switch c := s.command; {
			case c != nil:
				output, ran := w.run(c.line)
				if !ran {
					t.Logf("not run, as jq is not installed: %s", c.line)
					continue
				}
				wanted := strings.Join(page.lines[c.from:c.to], "\n")
				if update && normal(output) != normal(wanted) {
					outputs[c] = output
					continue
				}
				assert.Equal(t, normal(wanted), normal(output), "%s:%d: $ %s\nUPDATE=yes writes what it prints now "+
					"into the page", path, c.from, c.line)
			case s.file != "":
				w.write(s.file, s.content)
			case s.fixture != "":
				w.fixture(s.fixture)
			}
		}
		if update {
			write(t, path, page.with(outputs))
			for picture, drawn := range pictures(read(t, path)) {
				write(t, filepath.Join(docs, picture), drawn)
			}
		}
	}
}

func read(t *testing.T, path string) page {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	page, err := parse(string(text))
	require.NoError(t, err)

	return page
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// world is where the command lines are run: a broker, a folder, a shop.
type world struct {
	t      *testing.T
	broker *brokertest.Broker
	dir    string
	env    []string
	hasJQ  bool
	shop   *shop.Shop
}

func newWorld(t *testing.T) *world {
	t.Helper()
	bin := t.TempDir()
	commandtest.Build(t, bin)

	w := &world{t: t, broker: brokertest.StartWithManagement(t), dir: t.TempDir()}
	interval := statisticsInterval.Milliseconds()
	w.broker.Ctl("eval", fmt.Sprintf("application:set_env(rabbit, quorum_tick_interval, %d), application:set_env("+
		"rabbit, collect_statistics_interval, %d).", interval, interval))
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "AMQP") {
			w.env = append(w.env, entry)
		}
	}
	w.env = append(w.env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "LC_ALL=C",
		"AMQP_URI="+w.broker.URI, "AMQP_MANAGEMENT_URL="+w.broker.ManagementURL)
	_, err := exec.LookPath("jq")
	w.hasJQ = err == nil

	return w
}

// run gives what a person would see, with the exit code where it is not 0. What needs a jq that is
// not there is not run.
func (w *world) run(line string) (output string, ran bool) {
	if strings.Contains(line, "jq ") && !w.hasJQ {
		return "", false
	}
	out, exit := w.shell(line)
	output = presentable(out)
	if exit != 0 {
		output = strings.TrimPrefix(output+fmt.Sprintf("\n# exit %d", exit), "\n")
	}

	return output, true
}

func (w *world) shell(line string) (output string, exit int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), await.Bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = w.dir, w.env
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		require.NoError(w.t, err, line)
	}

	return string(out), cmd.ProcessState.ExitCode()
}

func (w *world) write(name, content string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600))
}

// fixture makes what a page needs and does not show.
func (w *world) fixture(name string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), await.Bound)
	defer cancel()
	switch name {
	case "five orders die":
		if w.shop == nil {
			policies, err := policyfile.Load(filepath.Join(w.dir, "retry.yaml"))
			require.NoError(w.t, err)
			w.shop, err = shop.Open(context.WithoutCancel(ctx), w.broker.URI, policies)
			require.NoError(w.t, err)
			w.t.Cleanup(func() { assert.NoError(w.t, w.shop.Close()) })
		}
		w.shop.Break()
		require.NoError(w.t, w.shop.Place())
		require.NoError(w.t, w.shop.Dead(ctx, shop.Placed))
	case "eighteen orders are cut off":
		var messages []amqp091.Publishing
		for n := range 18 {
			messages = append(messages, rabbit.Message(fmt.Sprintf("order-%d", 101+n),
				fmt.Sprintf(`{"customer":"eve","total":%d`, n+1)))
		}
		rabbit.New(w.t, w.broker.URI).Publish(shop.Topic, messages...)
		require.NoError(w.t, w.shop.Dead(ctx, len(messages)))
	case "several services share an error queue":
		client := rabbit.New(w.t, w.broker.URI)
		for _, queue := range []string{"error", "billing", "shipping"} {
			client.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic})
		}
		for i, queue := range []string{"billing", "shipping", "billing", "legacy", "billing", "shipping", ""} {
			m := rabbit.Message(fmt.Sprintf("order-%d", i+1), "{}")
			m.Headers["NServiceBus.FailedQ"], m.Headers["NServiceBus.ExceptionInfo.Message"] = queue, "Timed out"
			client.Publish("error", m)
		}
	case "the payment provider answers":
		w.shop.Repair()
	case "the dead-letter queue is empty":
		out, exit := w.shell("amqpretry dlq purge orders --all --no-undo --yes")
		require.Zero(w.t, exit, out)
	case "a queue audit without arguments":
		rabbit.New(w.t, w.broker.URI).Declare("audit", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	case "there is a queue small":
		rabbit.New(w.t, w.broker.URI).Declare("small", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum,
			amqp091.QueueMaxLenArg: 1})
	case "there is a queue parked":
		rabbit.New(w.t, w.broker.URI).Declare("parked", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	case "invoices wait":
		w.delay(topology.Target{Key: "invoices"}, 5*time.Minute, "invoice-1", "invoice-2")
		w.delay(topology.Target{Key: "reports"}, time.Second, "invoice-3")
		rabbit.New(w.t, w.broker.URI).Has(topology.Ladder{}.Unroutable(), 1)
		require.EventuallyWithT(w.t, func(t *assert.CollectT) {
			var stat struct{ Landing []struct{ Messages *int } }
			w.json(t, "amqpretry delays stat --policies exact.yaml --json invoices", &stat)
			assert.Len(t, stat.Landing, 1)
			assert.True(t, len(stat.Landing) == 1 && stat.Landing[0].Messages != nil)
		}, await.Bound, 500*time.Millisecond)
	case "the group billing has refunds":
		w.group("refunds", "refunds_billing")
	case "bills wait":
		w.bills()
	case "there is a queue reports":
		rabbit.New(w.t, w.broker.URI).Declare("reports", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	case "statistics are up to date":
		// The last command may have taken messages. Its statistics must be over before the new ones
		// are read.
		<-time.After(3 * statisticsInterval)
		require.EventuallyWithT(w.t, w.statistics, await.Bound, statisticsInterval)
	case "the obsolete queue is empty": // also by the statistics
		require.EventuallyWithT(w.t, func(t *assert.CollectT) {
			var report struct{ Queues []struct{ Messages *int } }
			w.json(t, "amqpretry topology prune --policies new.yaml --json orders", &report)
			assert.Len(t, report.Queues, 1)
			for _, q := range report.Queues {
				assert.True(t, q.Messages != nil && *q.Messages == 0)
			}
		}, await.Bound, statisticsInterval)
	default:
		require.FailNow(w.t, "no such fixture", name)
	}
}

// group makes what a group has for a topic: two messages and a dead letter.
func (w *world) group(topic, queue string) {
	w.t.Helper()
	client := rabbit.New(w.t, w.broker.URI)
	client.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	client.Do(func(ch *amqp091.Channel) error {
		return errors.Join(ch.ExchangeDeclare(topic, amqp091.ExchangeFanout, true, false, false, false, nil),
			ch.QueueBind(queue, "", topic, false, nil))
	})
	out, exit := w.shell("amqpretry topology apply --policies retry.yaml " + topic + "=" + queue)
	require.Zero(w.t, exit, out)
	client.PublishTo(topic, "", rabbit.Messages("refund-1", "refund-2")...)
	client.Publish(queue+".dlq", deadletter.New(queue, 1))
	require.EventuallyWithT(w.t, func(t *assert.CollectT) {
		out, _ := w.shell("amqpretry group list billing")
		assert.Regexp(t, queue+` +2 +0 +1 +0 `, out)
	}, await.Bound, statisticsInterval)
}

// delay publishes messages that wait for a target.
// bills lets two retries of the queue bills wait.
func (w *world) bills() {
	w.t.Helper()
	client := rabbit.New(w.t, w.broker.URI)
	client.Declare("bills", amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	plan, err := topology.New("bills", config.Policy{Delays: []time.Duration{30 * time.Minute}}, topology.Names{})
	require.NoError(w.t, err)
	client.Do(func(channel *amqp091.Channel) error { return plan.Declare(channel) })
	now := time.Now()
	for i, text := range []string{"no answer from the bank", "account 7 is closed"} {
		s := wire.State{Count: 1, Attempts: 1, Queue: "bills", Topic: "bills", Handler: "pay", Delay: "30m",
			Error: text, FirstFailure: now, LastFailure: now, Since: now, Due: now.Add(30 * time.Minute)}
		m := deadletter.Message(s, fmt.Sprintf("bill-%d", i+1), "{}")
		exchange, key := plan.Route(1, 30*time.Minute, &m)
		require.NoError(w.t, client.TryPublish(exchange, key, m))
	}
}

func (w *world) delay(target topology.Target, delay time.Duration, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		m := amqp091.Publishing{MessageId: id, Body: []byte("{}"), DeliveryMode: amqp091.Persistent}
		exchange, key := topology.Ladder{}.Address(target, delay, &m)
		require.NoError(w.t, rabbit.New(w.t, w.broker.URI).TryPublish(exchange, key, m))
	}
}

// statisticsInterval is how often the broker of this test updates the statistics of its queues.
// With the broker's defaults they are up to 10 s old.
const statisticsInterval = 500 * time.Millisecond

// statistics checks that the management API shows the present state. It takes no messages, since
// the API would show them as unacknowledged.
func (w *world) statistics(t *assert.CollectT) {
	var report struct{ Counts map[string]int }
	var queue struct{ Messages, Ready int }
	w.json(t, "amqpretry doctor --policies retry.yaml --json orders", &report)
	w.json(t, `amqpretry dlq list --json | grep '"orders"'`, &queue)
	assert.Zero(t, report.Counts["unseen"])
	depth := rabbit.New(w.t, w.broker.URI).Depth("orders.dlq")
	assert.Equal(t, depth, queue.Messages)
	assert.Equal(t, depth, queue.Ready)
}

func (w *world) json(t *assert.CollectT, line string, into any) {
	out, _ := w.shell(line)
	assert.NoError(t, json.Unmarshal([]byte(out), into), out)
}
