package delayscmd

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/dlqcmd"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// lab is a broker with a ladder of the test's own: units of 100 ms, three levels with three digits,
// up to 2.6 s.
type lab struct {
	*rabbit.Client
	t       *testing.T
	ladder  topology.Ladder
	queue   string // a main queue, which nobody has declared
	environ map[string]string
	heard   func(errs string) // gets what the next commands have written to standard error
}

func newLab(t *testing.T, uri string) *lab {
	t.Helper()
	return newLabOf(t, uri, config.Ladder{Levels: 3, Radix: 3})
}

func newLabOf(t *testing.T, uri string, c config.Ladder) *lab {
	t.Helper()
	c.Prefix = "delays-" + strings.ToLower(rand.Text())[:10]
	l := &lab{Client: rabbit.New(t, uri), t: t, queue: c.Prefix + "-orders"}
	var err error
	l.ladder, err = topology.NewLadder(c)
	require.NoError(t, err)
	t.Cleanup(func() { l.RemovePlan(l.ladder.Shared()) })
	l.Do(func(channel *amqp091.Channel) error { return l.ladder.Shared().Declare(channel) })

	c = l.ladder.Config
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	text := fmt.Sprintf("default: {delays: [100ms], strategy: ladder, ladder: {prefix: %q, unit: %s, levels: %d, "+
		"radix: %d}}\n", c.Prefix, config.FormatDelay(c.Unit), c.Levels, c.Radix)
	require.NoError(t, os.WriteFile(policies, []byte(text), 0o600))
	l.environ = map[string]string{cli.EnvURI: uri, cli.EnvPolicies: policies, cli.EnvNoLimitPolicy: "yes"}

	return l
}

// delay publishes messages that wait for a target.
func (l *lab) delay(target topology.Target, delay time.Duration, bodies ...string) {
	l.t.Helper()
	for _, body := range bodies {
		m := amqp091.Publishing{Body: []byte(body), DeliveryMode: amqp091.Persistent, MessageId: "id-" + body}
		exchange, key := l.ladder.Address(target, delay, &m)
		l.publish(exchange, key, m)
	}
}

func (l *lab) publish(exchange, key string, m amqp091.Publishing) {
	l.t.Helper()
	l.Do(func(channel *amqp091.Channel) error {
		if err := channel.Confirm(false); err != nil {
			return err
		}
		c, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		if err == nil && !c.Wait() {
			err = fmt.Errorf("refused")
		}
		return err
	})
}

// land declares the landing queue of the main queue.
func (l *lab) land(target topology.Target) string {
	l.t.Helper()
	own, err := l.ladder.Of(target, topology.Names{})
	require.NoError(l.t, err)
	l.Do(func(channel *amqp091.Channel) error { return own.Declare(channel) })
	l.t.Cleanup(func() { l.Remove("", own.Queues[0].Name) })

	return own.Queues[0].Name
}

type done struct {
	code      int
	out, errs string
}

func (l *lab) run(args ...string) done {
	l.t.Helper()
	command := Command
	if args[0] == "dlq" {
		command = dlqcmd.Command
	} else {
		args = append([]string{"delays"}, args...)
	}
	d := l.execute(command, args...)
	for _, unsafe := range []string{"\x1b", "guest:guest"} {
		assert.NotContains(l.t, d.out+d.errs, unsafe)
	}

	return d
}

// listener keeps what is written, and tells of it.
type listener struct {
	bytes.Buffer

	heard func(text string) // nil: nobody listens
}

func (l *listener) Write(p []byte) (int, error) {
	n, err := l.Buffer.Write(p)
	if l.heard != nil {
		l.heard(l.String())
	}

	return n, err
}

func (l *lab) execute(command func(*cli.Session) *cobra.Command, args ...string) done {
	var stdout bytes.Buffer
	stderr := listener{heard: l.heard}
	s := &cli.Session{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now,
		Getenv: func(key string) string { return l.environ[key] }}
	code := cli.Run(l.t.Context(), s, args, command)

	return done{code, stdout.String(), stderr.String()}
}

func (l *lab) ok(args ...string) done {
	l.t.Helper()
	d := l.run(args...)
	require.Equal(l.t, cli.ExitOK, d.code, "%q: %s%s", args, d.out, d.errs)

	return d
}

// stat is what stat --json tells of the only ladder.
func (l *lab) stat(args ...string) (report, *ladderReport) {
	l.t.Helper()
	var r report
	d := l.ok(append([]string{"stat", "--json", "--ladder", l.ladder.Name()}, args...)...)
	require.NoError(l.t, json.Unmarshal([]byte(d.out), &r), d.out)
	require.Len(l.t, r.Ladders, 1)

	return r, r.Ladders[0]
}

// Messages are counted by level, and none waits longer than what is told.
func TestStat(t *testing.T) {
	t.Parallel()
	l := newLabOf(t, brokertest.URI(t), config.Ladder{Unit: time.Minute, Levels: 3, Radix: 3})
	nobody := topology.Target{Key: l.queue}
	l.delay(nobody, time.Minute, "a")                      // 0.0.1
	l.delay(nobody, 5*time.Minute, "b", "c")               // 0.1.2
	l.delay(nobody, 26*time.Minute, "d", "e", "f", "long") // 2.2.2
	l.Has(l.ladder.WaitQueue(2, 2), 4)
	l.Has(l.ladder.WaitQueue(1, 1), 2)

	_, ladder := l.stat()
	assert.True(t, ladder.Exists)
	assert.EqualValues(t, 7, ladder.Messages)
	assert.EqualValues(t, 0, ladder.Unroutable.Messages)
	assert.Empty(t, ladder.Missing)
	require.Len(t, ladder.Levels, 3)
	for level, want := range []struct {
		messages int64
		wait     time.Duration // the longest that can be left, with all lower levels
	}{{1, time.Minute}, {2, 5 * time.Minute}, {4, 26 * time.Minute}} {
		got := ladder.Levels[level]
		assert.Equal(t, want.messages, got.Messages, "level %d", level)
		assert.Nil(t, got.Undelivered, "which AMQP does not tell")
		assert.EqualValues(t, want.wait.Milliseconds(), got.MaxWait)
	}
	assert.Equal(t, ladder.Levels[2].MaxWait, ladder.MaxWait)

	d := l.ok("stat", l.queue)
	assert.Contains(t, d.out, "ladder "+l.ladder.Name()+": 7 messages, for at most 26m from now\n")
	assert.Regexp(t, `(?m)^1 +3m to 6m +2 +5m$`, d.out)
	assert.NotRegexp(t, `\d\d:\d\d`, d.out, "no time that would be another one at the next look")
	assert.Regexp(t, `(?m)^\S+landing +`+l.queue+` +does not exist$`, d.out)

	// Somebody has deleted a part.
	l.Remove(l.ladder.Level(0), l.ladder.WaitQueue(1, 2), l.ladder.Unroutable())
	_, ladder = l.stat()
	assert.Equal(t, []string{l.ladder.Unroutable(), l.ladder.WaitQueue(1, 2)}, ladder.Missing)
	assert.EqualValues(t, 7, ladder.Messages)
	d = l.ok("stat")
	assert.Contains(t, d.errs, "2 queues missing, such as "+l.ladder.Unroutable())
	d = l.run("unroutable", "list", "--ladder", l.ladder.Name())
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, l.ladder.Unroutable())
}

func TestStatOfNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	l.RemovePlan(l.ladder.Shared())
	d := l.ok("stat")
	assert.Contains(t, d.out, "ladder "+l.ladder.Name()+": it does not exist")
	_, ladder := l.stat()
	assert.False(t, ladder.Exists)
}

const odd = "x\x1b[2J\u202e.é"

// What no target takes is shown by target, and goes where a person says, and nowhere else.
func TestUnroutable(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	oddTarget, exchange := topology.Target{Key: odd}, topology.Target{Exchange: "events.x", Key: "paid.*"}
	l.delay(topology.Target{Key: l.queue}, 100*time.Millisecond, "a", "b")
	l.Has(l.ladder.Unroutable(), 2)
	l.delay(oddTarget, 200*time.Millisecond, "odd")
	l.Has(l.ladder.Unroutable(), 3)
	l.delay(exchange, 100*time.Millisecond, "exchange")
	l.Has(l.ladder.Unroutable(), 4)
	// Whoever may write to the exchange can forge anything: a garbage key, and headers that say
	// where it belongs.
	forged := amqp091.Table{"amqpretry-queue": l.queue, "amqpretry-v": "1", "amqpretry-count": "1",
		"CC": []any{l.queue}}
	l.publish(l.ladder.Unroutable(), "garbage\x1b[31m", amqp091.Publishing{Body: []byte("foreign"), Headers: forged})
	l.Has(l.ladder.Unroutable(), 5)

	_, ladder := l.stat()
	assert.EqualValues(t, 5, ladder.Unroutable.Messages)
	d := l.ok("unroutable", "list")
	assert.Contains(t, d.out, "MESSAGES  TARGET\n2         "+l.queue+"\n")
	assert.Regexp(t, `(?m)^1 +x\\x1b\[2J\\u202e\.é$`, d.out)
	assert.Regexp(t, `(?m)^1 +events\.x with key paid\.\*$`, d.out)
	assert.Regexp(t, `(?m)^5 +- +- +- +- +- +7$`, d.out)
	assert.Regexp(t, `(?m)^3 +\S+ +200ms +\S+ +id-odd +- +3$`, d.out)
	assert.Contains(t, d.errs, l.ladder.Unroutable()+": 5 messages")
	assert.Contains(t, l.ok("unroutable", "list", "--target", odd).errs, "1 message of 5")
	assert.Contains(t, l.ok("unroutable", "list", "--limit", "1").errs, "1 of 5 messages; --limit lists more")
	d = l.ok("unroutable", "list", "--position", "5", "--ladder", l.ladder.Name())
	assert.Contains(t, d.out, `routing key "garbage\x1b[31m"`)
	assert.Contains(t, d.out, "Body (7 bytes)\nforeign\n")

	var shown delayedJSON
	d = l.ok("unroutable", "list", "--json", "--target-exchange", "events.x", "--target-key", "paid.*")
	require.NoError(t, json.Unmarshal([]byte(d.out), &shown), d.out)
	assert.Equal(t, topology.Target{Exchange: "events.x", Key: "paid.*"}, shown.Target)
	assert.EqualValues(t, 100, shown.DelayMS)
	assert.WithinDuration(t, time.Now(), shown.Due, time.Minute)

	for _, args := range [][]string{
		{"send"}, {"discard"}, {"send", "--foreign"}, {"send", "--target-exchange", "events.x"},
		{"send", "--target", l.queue, "--foreign"}, {"discard", "--all", "--foreign"}, {"list", "--target-key", "x"},
		{"send", "--target", l.queue, "--to", l.ladder.Unroutable()}, {"list", "--position", "1", "--foreign"},
		{"send", "--target", "amqp://me:secret@host"},
	} {
		args = append([]string{"unroutable"}, args...)
		d = l.run(append(args, "--ladder", l.ladder.Name())...)
		assert.Equal(t, cli.ExitUsage, d.code, "%q: %s", args, d.errs)
		assert.NotContains(t, d.errs, "secret")
	}
	for _, queue := range []string{"amqp://me:secret@host", ""} {
		d = l.run("stat", queue)
		assert.Equal(t, cli.ExitUsage, d.code, queue)
		assert.NotContains(t, d.errs, "secret")
	}

	undo := filepath.Join(t.TempDir(), "undo.jsonl")
	d = l.run("unroutable", "send", "--target", l.queue, "--yes", "--ladder", l.ladder.Name())
	assert.Equal(t, cli.ExitFailed, d.code, "there is no such queue")
	l.Has(l.ladder.Unroutable(), 5)
	l.Declare(l.queue, nil)
	d = l.ok("unroutable", "send", "--target", l.queue, "--ladder", l.ladder.Name())
	assert.Contains(t, d.out, "5 messages, of which 2 match; 2 can be sent to "+l.queue)
	assert.Contains(t, d.errs, "This was a dry run: nothing was sent. --yes does it.")
	l.Has(l.ladder.Unroutable(), 5)
	d = l.ok("unroutable", "send", "--target", l.queue, "--yes", "--undo", undo, "--ladder", l.ladder.Name())
	assert.Contains(t, d.out, "2 of 2 matching messages sent to "+l.queue)
	assert.Equal(t, []string{"a", "b"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 2)))
	l.Has(l.ladder.Unroutable(), 3)

	other := l.queue + "-other"
	l.Declare(other, nil)
	l.ok("unroutable", "send", "--foreign", "--to", other, "--yes", "--no-undo", "--ladder", l.ladder.Name())
	assert.Equal(t, []string{"foreign"}, rabbit.Bodies(drain.N(t, l.Client, other, 1)))
	l.Has(l.queue, 0) // no header has sent it there
	l.ok("unroutable", "send", "--target-exchange", "events.x", "--target-key", "paid.*", "--to", other, "--yes",
		"--no-undo", "--ladder", l.ladder.Name())
	assert.Equal(t, []string{"exchange"}, rabbit.Bodies(drain.N(t, l.Client, other, 1)))
	l.Has(l.ladder.Unroutable(), 1)

	l.undone(undo)
}

// delayedJSON is a line of list --json.
type delayedJSON struct {
	Position int
	Target   topology.Target
	DelayMS  int64 `json:"delay_ms"`
	Due      time.Time
}

// undone discards what is left, and shows that undo files bring back everything with its target.
func (l *lab) undone(sent string) {
	t := l.t
	discarded := filepath.Join(t.TempDir(), "discarded.jsonl")
	d := l.ok("unroutable", "discard", "--target", odd, "--ladder", l.ladder.Name(), "--json")
	assert.Contains(t, d.out, `"dry_run": true`)
	l.Has(l.ladder.Unroutable(), 1)
	d = l.ok("unroutable", "discard", "--target", odd, "--yes", "--undo", discarded, "--ladder", l.ladder.Name())
	assert.Contains(t, d.out, "1 of 1 matching message discarded")
	assert.Contains(t, d.errs, "amqpretry dlq import --dead-letter-queue "+l.ladder.Unroutable())
	l.Has(l.ladder.Unroutable(), 0)

	l.undo(d)
	l.ok("dlq", "import", "--dead-letter-queue", l.ladder.Unroutable(), l.queue, sent, "--yes")
	l.Has(l.ladder.Unroutable(), 3)
	assert.Contains(t, l.ok("unroutable", "list", "--target", odd).errs, "1 message of 3")
	assert.Contains(t, l.ok("unroutable", "list", "--target", l.queue).errs, "2 messages of 3")
	l.ok("unroutable", "discard", "--all", "--yes", "--no-undo", "--ladder", l.ladder.Name())
	l.Has(l.ladder.Unroutable(), 0)
}

// While another run works on the unroutable queue, a command says that it waits, and calls the
// queue by its name.
func TestUnroutableIsBusy(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	l := newLab(t, uri)
	name := "--ladder=" + l.ladder.Name()
	d := l.run("unroutable", "list", "--position", "1", name)
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, `unroutable queue "`+l.ladder.Unroutable()+`" has no message at position 1`)
	assert.NotContains(t, d.errs, "dead-letter")

	l.publish(l.ladder.Unroutable(), "0.0.1.q.", amqp091.Publishing{Body: []byte("empty")})
	l.Has(l.ladder.Unroutable(), 1)
	assert.Regexp(t, `(?m)^1 +- +100ms `, l.ok("unroutable", "list", name).out)
	assert.Contains(t, l.ok("unroutable", "list", "--foreign", name).errs, "1 message of 1")

	other, err := amqp091.Dial(uri)
	require.NoError(t, err)
	defer other.Close()
	channel, err := other.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare(l.ladder.Unroutable()+".lock", false, true, true, false, nil)
	require.NoError(t, err)
	const waiting = ": waiting to begin: another command may be working on this queue"
	d = l.run("unroutable", "discard", "--foreign", "--yes", "--no-undo", name)
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, l.ladder.Unroutable()+waiting)
	assert.Contains(t, d.errs, "another send, discard or list is at work")
	assert.NotContains(t, d.errs, "dead-letter")

	l.heard = func(errs string) { // as soon as it waits
		if strings.Contains(errs, waiting) {
			_ = other.Close()
		}
	}
	d = l.ok("unroutable", "discard", "--foreign", "--yes", "--no-undo", name)
	assert.Contains(t, d.errs, waiting)
	assert.Contains(t, d.out, "1 of 1 matching message discarded")
}

// undo does what a command has said of its undo file.
func (l *lab) undo(d done) {
	l.t.Helper()
	command := regexp.MustCompile(`amqpretry (dlq import .*)`).FindStringSubmatch(d.errs)
	require.NotNil(l.t, command, d.errs)
	l.ok(strings.Fields(command[1])...)
}

// Messages that come back from an undo file have the targets, delays, headers and bodies that they
// had.
func TestUndoKeepsTargets(t *testing.T) {
	t.Parallel()
	l := newLab(t, brokertest.URI(t))
	other, events := l.queue+"-other", topology.Target{Exchange: "events", Key: "paid"}
	l.Remove("", l.ladder.Unroutable())
	l.Declare(l.ladder.Unroutable(), amqp091.Table{"x-queue-type": "quorum", "x-max-length": 1000,
		"x-delivery-limit": 2147483647})
	l.Do(func(channel *amqp091.Channel) error {
		return channel.QueueBind(l.ladder.Unroutable(), "", l.ladder.Unroutable(), false, nil)
	})
	own := amqp091.Table{"amqpretry-v": "1", "amqpretry-queue": other, "amqpretry-count": "1",
		"amqpretry-attempts": "1", "amqpretry-error": "boom", "amqpretry-uuid": "u1", "amqpretry-topic": "t",
		"amqpretry-history": "[]", "trace": "abc"}
	l.delay(topology.Target{Key: l.queue}, 100*time.Millisecond, "one", "two")
	l.Has(l.ladder.Unroutable(), 2)
	retried := amqp091.Publishing{Body: []byte("retried"), Headers: own, MessageId: "id-retried"}
	exchange, key := l.ladder.Address(topology.Target{Key: other}, 300*time.Millisecond, &retried)
	l.publish(exchange, key, retried)
	l.Has(l.ladder.Unroutable(), 3)
	l.delay(events, 200*time.Millisecond, "event")
	l.Has(l.ladder.Unroutable(), 4)
	l.publish(l.ladder.Unroutable(), "garbage", amqp091.Publishing{Body: []byte("foreign"), MessageId: "id-foreign",
		Headers: amqp091.Table{"amqpretry-queue": l.queue}})
	l.Has(l.ladder.Unroutable(), 5)

	name, file := "--ladder="+l.ladder.Name(), func() string { return "--undo=" + filepath.Join(t.TempDir(), "undo") }
	before := l.shown()
	for _, discard := range [][]string{{"--all"}, {"--target-exchange=events", "--target-key=paid"}, {"--foreign"},
		{"--target", other}} {
		discarded := l.ok(append([]string{"unroutable", "discard", "--yes", name, file()}, discard...)...)
		if discard[0] == "--all" { // as doctor says, for a queue that is not as planned
			l.Remove("", l.ladder.Unroutable())
			l.Do(func(channel *amqp091.Channel) error { return l.ladder.Shared().Declare(channel) })
		}
		l.undo(discarded)
		assert.ElementsMatch(t, before, l.shown(), "%q", discard)
	}

	// What is sent comes back as well, and what is sent after that are the messages of the target
	// alone.
	l.Declare(l.queue, nil)
	sent := l.ok("unroutable", "send", "--target", l.queue, "--yes", name, file())
	assert.Len(t, drain.N(t, l.Client, l.queue, 2), 2)
	command := regexp.MustCompile(`amqpretry (dlq import .*)`).FindStringSubmatch(sent.errs)
	l.ok(append(strings.Fields(command[1]), "--yes")...)
	assert.ElementsMatch(t, before, l.shown())
	l.ok("unroutable", "send", "--target", l.queue, "--yes", name, "--no-undo")
	assert.Equal(t, []string{"one", "two"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 2)))

	for _, d := range drain.N(t, l.Client, l.ladder.Unroutable(), 3) {
		maps.DeleteFunc(d.Headers, func(key string, _ any) bool { return strings.HasPrefix(key, "x-") })
		switch string(d.Body) {
		case "retried":
			assert.Equal(t, own, d.Headers)
			assert.Equal(t, key, d.RoutingKey)
		case "foreign":
			assert.Equal(t, amqp091.Table{"amqpretry-queue": l.queue}, d.Headers)
			assert.Equal(t, "garbage", d.RoutingKey)
		}
	}
}

// shown is what list --json says of all messages, but for where they are, the exchange, the times
// and the headers of the broker.
func (l *lab) shown() []string {
	l.t.Helper()
	var all []string
	out := l.ok("unroutable", "list", "--json", "--limit=0", "--ladder", l.ladder.Name()).out
	for line := range strings.Lines(out) {
		var m map[string]any
		require.NoError(l.t, json.Unmarshal([]byte(line), &m))
		delete(m, "position")
		delete(m, "due")
		message := m["message"].(map[string]any)
		delete(message, "position")
		delete(message["came_by"].(map[string]any), "exchange")
		headers, _ := message["headers"].(map[string]any)
		maps.DeleteFunc(headers, func(key string, _ any) bool { return strings.HasPrefix(key, "x-") })
		if len(headers) == 0 {
			delete(message, "headers")
		}
		text, err := json.Marshal(m)
		require.NoError(l.t, err)
		all = append(all, string(text))
	}

	return all
}

// With several ladders, the one with such messages is taken. Only if several have some, a person is
// asked.
func TestSeveralLadders(t *testing.T) {
	t.Parallel()
	l, other := newLab(t, brokertest.URI(t)), newLab(t, brokertest.URI(t))
	text := fmt.Sprintf("default: {delays: [100ms], strategy: ladder, ladder: {prefix: %q, levels: 3, radix: 3}}\n"+
		"topics: {other: {ladder: {prefix: %q}}}\n", l.ladder.Config.Prefix, other.ladder.Config.Prefix)
	require.NoError(t, os.WriteFile(l.environ[cli.EnvPolicies], []byte(text), 0o600))
	d := l.ok("stat")
	assert.Contains(t, d.out, "ladder "+l.ladder.Name())
	assert.Contains(t, d.out, "ladder "+other.ladder.Name())
	d = l.ok("unroutable", "discard", "--all", "--yes", "--no-undo")
	assert.Contains(t, d.errs, "no such messages are ready in ")
	assert.Contains(t, d.errs, other.ladder.Unroutable())

	target := topology.Target{Key: l.queue}
	other.delay(target, 100*time.Millisecond, "one", "two")
	other.Has(other.ladder.Unroutable(), 2)
	assert.Contains(t, l.ok("unroutable", "list", "--position", "1").out, other.ladder.Unroutable())
	l.Declare(l.queue, nil)
	d = l.ok("unroutable", "send", "--target", l.queue, "--limit", "1", "--yes", "--no-undo")
	assert.Contains(t, d.out, other.ladder.Unroutable()+": 1 sent to "+l.queue)
	assert.Equal(t, []string{"one"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 1)))

	// Both have messages, and one has those for the target.
	l.delay(topology.Target{Key: odd}, 100*time.Millisecond, "odd")
	l.Has(l.ladder.Unroutable(), 1)
	d = l.ok("unroutable", "discard", "--target", l.queue, "--dry-run")
	assert.Contains(t, d.out, other.ladder.Unroutable()+": 1 message, of which 1 matches")
	d = l.ok("unroutable", "send", "--foreign", "--to", l.queue, "--yes", "--no-undo")
	assert.Contains(t, d.errs, "no such messages are ready in ")

	// Both have such messages: the error has the command line for each, which does it.
	l.delay(target, 100*time.Millisecond, "three")
	l.Has(l.ladder.Unroutable(), 2)
	d = l.run("unroutable", "send", "--target", l.queue, "--yes", "--no-undo", "--address", "localhost:1",
		"--address", "localhost:2")
	assert.Equal(t, cli.ExitUsage, d.code)
	assert.Contains(t, d.errs, "2 ladders have such messages; name one with --ladder:\n")
	for _, ladder := range []topology.Ladder{l.ladder, other.ladder} {
		assert.Contains(t, d.errs, "\n  amqpretry delays unroutable send --address='localhost:1' "+
			"--address='localhost:2' "+
			"--no-undo --target='"+l.queue+"' --yes --ladder="+ladder.Name()+"\n")
	}
	for _, command := range regexp.MustCompile(`(?m)^  amqpretry delays (.*)$`).FindAllStringSubmatch(d.errs, -1) {
		l.ok(strings.Fields(strings.ReplaceAll(command[1], "'", ""))...)
	}
	assert.ElementsMatch(t, []string{"two", "three"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 2)))
	l.Has(l.ladder.Unroutable(), 1)
	l.Has(other.ladder.Unroutable(), 0)

	other.delay(target, 100*time.Millisecond, "four")
	other.Has(other.ladder.Unroutable(), 1)
	d = l.run("unroutable", "discard", "--all", "--yes", "--uri", l.environ[cli.EnvURI], "--undo", "it's.jsonl")
	assert.Equal(t, cli.ExitUsage, d.code)
	assert.Contains(t, d.errs,
		`amqpretry delays unroutable discard --all --undo='it'\''s.jsonl' --uri=URI --yes --ladder=`)
	d = l.run("unroutable", "list", "--position", "1")
	assert.Equal(t, cli.ExitUsage, d.code)
	assert.Contains(t, d.errs, "amqpretry delays unroutable list --position='1' --ladder="+other.ladder.Name())

	for _, wrong := range []string{"x", "orders.v1.1s.10x99", "orders.v1.7.10x6", "orders.v2.100ms.10x6",
		"a.v1.1s.010x6", "amqp://me:secret@host"} {
		d = l.run("unroutable", "list", "--ladder", wrong)
		assert.Equal(t, cli.ExitUsage, d.code, wrong)
		assert.Contains(t, d.errs, "--ladder")
		assert.NotContains(t, d.errs, "secret")
	}
}

// What the broker is about to hand over to a main queue that is not there is counted with the
// management API only.
func TestLanding_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.StartWithManagement(t)
	b.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500), application:set_env(rabbit, "+
		"collect_statistics_interval, 500).")
	l := newLab(t, b.URI)
	target := topology.Target{Key: l.queue}
	landing := l.land(target)
	l.delay(target, 100*time.Millisecond, "a", "b", "c")

	d := l.ok("stat", l.queue)
	assert.Regexp(t, `(?m)^`+landing+` +`+l.queue+` +\?$`, d.out)
	assert.Contains(t, d.errs, "AMQP does not tell what landing queues hold")

	l.environ[cli.EnvManagement] = b.ManagementURL
	await.Until(t, func() bool {
		r, _ := l.stat()
		return len(r.Landing) == 1 && r.Landing[0].Messages != nil && *r.Landing[0].Messages == 3 &&
			r.Landing[0].Target.Key == l.queue
	}, "also without being asked")
	d = l.ok("stat")
	assert.Regexp(t, `(?m)^`+landing+` +`+l.queue+` +3$`, d.out)
	assert.Contains(t, d.errs, "deleting the landing queue discards them")
	_, ladder := l.stat()
	assert.EqualValues(t, 0, *ladder.Levels[0].Undelivered)

	exchange := topology.Target{Exchange: "events", Key: "paid"}
	l.land(exchange)
	l.delay(exchange, 100*time.Millisecond, "d")
	await.Until(t, func() bool {
		return regexp.MustCompile(`(?m)^events.exchange.paid.landing +events with key paid +1$`).
			MatchString(l.ok("stat").out)
	})

	// Overdue messages of a level whose way on is gone.
	l.Remove(l.ladder.Delivery())
	l.delay(target, 200*time.Millisecond, "stuck", "stuck too")
	await.Until(t, func() bool {
		_, ladder := l.stat()
		return *ladder.Levels[0].Undelivered == 2 && ladder.Levels[0].Messages == 2
	})
}
