package dlqcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// place is a main queue with its dead-letter queue, and another queue, on a real broker.
type place struct {
	*rabbit.Client
	t             testing.TB
	main, other   string
	management    string
	dir           string
	interruptible context.Context
}

func onBroker(t testing.TB, uri string) *place {
	t.Helper()
	return placeFor(t, uri, "dlqcmd-"+watermill.NewShortUUID())
}

func placeFor(t testing.TB, uri, main string) *place {
	t.Helper()
	p := &place{
		Client: rabbit.New(t, uri), t: t, main: main, other: main + ".other",
		dir: t.TempDir(), interruptible: t.Context(),
	}
	quorum := amqp091.Table{amqp091.QueueTypeArg: "quorum"}
	dead, arguments := deadletter.Queue(t, main)
	p.Declare(main, quorum)
	p.Declare(p.other, quorum)
	p.Declare(dead, arguments)

	return p
}

// fill puts dead letters of a queue into the dead-letter queue, numbered from n on. They died an
// hour ago.
func (p *place) fill(queue string, from, to int) {
	p.t.Helper()
	var deadLetters []amqp091.Publishing
	for n := from; n < to; n++ {
		state := deadletter.State(queue, n)
		state.Topic, state.FirstFailure = "orders", time.Now().Add(-time.Hour)
		state.LastFailure, state.History[0].At = state.FirstFailure, state.FirstFailure
		deadLetters = append(deadLetters, deadletter.Of(state, n))
	}
	p.Publish(p.main+suffix, deadLetters...)
}

// run runs a command line with the broker's address in the environment.
func (p *place) run(set func(*cli.Session), args ...string) (code int, out, errs string) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	s := &cli.Session{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now,
		Getenv: environment(map[string]string{
			cli.EnvURI: p.URI, cli.EnvManagement: p.management, cli.EnvNoLimitPolicy: "yes",
		})}
	if set != nil {
		set(s)
	}
	code = cli.Run(p.interruptible, s, append([]string{"dlq"}, args...), Command)
	for _, secret := range []string{p.URI, "guest:guest"} {
		assert.NotContains(p.t, stdout.String()+stderr.String(), secret)
	}

	return code, stdout.String(), stderr.String()
}

func (p *place) ok(args ...string) (out, errs string) {
	p.t.Helper()
	code, out, errs := p.run(nil, args...)
	require.Equal(p.t, cli.ExitOK, code, "%q: %s%s", args, out, errs)

	return out, errs
}

// bodies takes all messages out of a queue.
func (p *place) bodies(queue string, n int) []amqp091.Delivery {
	p.t.Helper()
	p.Has(queue, n)

	return drain.N(p.t, p.Client, queue, n)
}

func (p *place) file(name string) string { return filepath.Join(p.dir, name) }

func TestBrowseOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 30)

	out, errs := p.ok("list", p.main)
	assert.Contains(t, out, "1   uuid-0   1h00m  exhausted  4      0        charge/orders  card 0 declined\n")
	assert.Equal(t, 21, strings.Count(out, "\n"))
	assert.Contains(t, errs, "20 of 30 messages; --limit lists more")
	out, _ = p.ok("list", p.main, "--json-field", "n=17", "--header", "tenant=2", "--json")
	assert.Equal(t, 1, strings.Count(out, "\n"))
	assert.Contains(t, out, `"uuid":"uuid-17"`)

	out, _ = p.ok("stat", p.main)
	assert.Contains(t, out, "messages    30\n")
	assert.Contains(t, out, "30        100.0 %  exhausted\n")

	out, _ = p.ok("show", p.main, "uuid-17")
	assert.Regexp(t, `\n  error +card 17 declined\n`, out)
	assert.Regexp(t, `\n  tenant +int64 +2\n`, out)
	assert.True(t, strings.HasSuffix(out, "Body (8 bytes)\n{\n  \"n\": 17\n}\n"), out)
	out, _ = p.ok("show", p.main, "30", "--body")
	assert.Equal(t, `{"n":29}`, out)

	for i, d := range p.bodies(p.main+suffix, 30) {
		assert.Equal(t, fmt.Sprintf(`{"n":%d}`, i), string(d.Body), "looking leaves all in their order")
	}

	code, _, errs := p.run(nil, "stat", p.main+suffix)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "so pass "+strconv.Quote(p.main))
	code, _, errs = p.run(nil, "list", "no-such-queue")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, `dead-letter queue "no-such-queue.dlq": there is no such queue`)
}

func TestReplayOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 10)
	p.fill("foreign", 10, 12)

	out, _ := p.ok("replay", p.main)
	assert.Contains(t, out, "12 messages, of which 12 match; 10 can be replayed to "+p.main)
	assert.Contains(t, out, "2       failed by another queue")
	p.Has(p.main+suffix, 12)

	undo := p.file("undo.jsonl")
	code, out, errs := p.run(nil, "replay", p.main, "--yes", "--undo", undo, "--rate", "1000/s")
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Contains(t, out, "10 of 12 matching messages replayed to "+p.main)
	assert.Contains(t, errs, undo)
	replayed := errs
	for i, d := range p.bodies(p.main, 10) {
		assert.Equal(t, fmt.Sprintf(`{"n":%d}`, i), string(d.Body))
		assert.Equal(t, int64(i%3), d.Headers["tenant"])
	}
	p.Has(p.main+suffix, 2)

	// Where they were sent they were taken: it is no undo any more, and says so.
	news := undo + " contains messages that were replayed to " + p.main + ", from "
	code, _, errs = p.run(nil, "import", p.main, undo)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, news)
	assert.Contains(t, errs, "If they were handled there, another replay handles them twice. Import 10 messages into "+
		p.main+suffix+"? There is no terminal to ask: add --yes")
	code, out, errs = p.run(func(s *cli.Session) { s.InIsTerminal, s.In = true, strings.NewReader("n\n") }, "import",
		p.main, undo)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "Import 10 messages into ")
	assert.Empty(t, out, "it has read one message, to ask about it")
	p.Has(p.main+suffix, 2)
	_, errs = p.ok("import", p.main, undo, "--dry-run")
	assert.Contains(t, errs, news)
	printed := regexp.MustCompile(`amqpretry dlq (import .*)`).FindStringSubmatch(replayed)
	require.NotNil(t, printed, replayed)
	_, errs = p.ok(strings.Fields(printed[1])...) // in a script as well
	assert.Contains(t, errs, news)
	p.Has(p.main+suffix, 12)
	out, _ = p.ok("list", p.main, "--uuid", "uuid-7", "--json")
	assert.Contains(t, out, `"reason":"exhausted"`, "it is a dead letter as before")
}

func TestEditOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	body := p.file("body.json")
	require.NoError(t, os.WriteFile(body, []byte(`{"n":11}`), 0o600))
	p.ok("replay", p.main, "--uuid", "uuid-1", "--body", body, "--set-header", "who=me", "--remove-header", "tenant",
		"--to", p.other, "--yes", "--no-undo")
	d := p.bodies(p.other, 1)[0]
	assert.Equal(t, `{"n":11}`, string(d.Body))
	assert.Equal(t, "me", d.Headers["who"])
	assert.NotContains(t, d.Headers, "tenant")
	assert.NotEmpty(t, d.Headers[header.Edits], "what was changed goes with it")
	p.Has(p.main+suffix, 2)

	code, _, errs := p.run(nil, "replay", p.main, "--set-header", "a=b", "--yes")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "several match")
}

// A canary that is not known to be handled has not passed: nobody consumes, or somebody who says
// nothing of it.
func TestCanaryOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 12)
	code, out, errs := p.run(nil, "replay", p.main, "--canary", "2", "--watch", "3s", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Equal(t, p.main+suffix+": 0 replayed to "+p.main+"\nCanary: queue \""+p.main+"\" has no consumer to "+
		"handle the canary. The other messages were not sent\n", out)
	p.Has(p.main+suffix, 12)

	rabbit.Consume(t, p.Channel(), p.main)
	code, out, errs = p.run(nil, "replay", p.main, "--canary", "2", "--watch", "3s", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Contains(t, out, ": 2 replayed to")
	assert.Contains(t, out, "Canary: 0 of 2 handled, 2 without a result yet after 3s; check that a service consumes \""+
		p.main+"\" with this library")
	p.Has(p.main+suffix, 10)
}

func TestPurgeAndMoveOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 10)
	undo := p.file("undo.jsonl")
	out, _ := p.ok("purge", p.main, "--json-field", "n=3", "--json-field", "n=3", "--yes", "--undo", undo)
	p.ok("import", p.main, undo, "--to", p.other) // nothing is to be asked
	p.bodies(p.other, 1)
	assert.Contains(t, out, "1 of 1 matching message purged")
	assert.Equal(t, 1, strings.Count(read(t, undo), "\n"))
	p.Has(p.main+suffix, 9)

	out, _ = p.ok("move", p.main, "--to", p.other, "--older-than", "30m", "--limit", "4", "--yes", "--no-undo")
	assert.Contains(t, out, "4 moved to "+p.other+" (--limit)")
	p.Has(p.main+suffix, 5)
	for _, d := range p.bodies(p.other, 4) {
		assert.Equal(t, "-1", d.Headers[header.Count], "a dead letter stays one")
	}

	code, _, errs := p.run(nil, "move", p.main, "--to", p.main+".nowhere", "--yes", "--undo", p.file("none"))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "there is no such queue")
	assert.NoFileExists(t, p.file("none"))
	p.ok("purge", p.main, "--all", "--yes", "--no-undo")
	p.Has(p.main+suffix, 0)
}

func TestExportAndImportOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 300)
	file := p.file("x.jsonl")
	_, errs := p.ok("export", p.main, "-o", file)
	assert.Contains(t, errs, "300 of 300 messages exported")
	out, _ := p.ok("export", p.main)
	assert.Equal(t, read(t, file), out)

	_, errs = p.ok("export", p.main, "--limit", "5")
	assert.Contains(t, errs, "5 of 300 messages exported")

	p.ok("import", p.main, file, "--to", p.other)
	for i, d := range p.bodies(p.other, 300) {
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, i), string(d.Body))
	}
	code, _, errs := p.run(nil, "import", p.main, file, "--to", p.other)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "--restart imports")
	var c checkpoint
	require.NoError(t, json.Unmarshal([]byte(read(t, checkpointPath(file))), &c))
	assert.Equal(t, 300, c.Lines)
	assert.Contains(t, c.Broker, "@", "the name of the cluster, not the address")
	assert.Contains(t, c.Broker, `virtual host "/"`)

	p.Has(p.main+suffix, 300)
	p.ok("purge", p.main, "--all", "--yes", "--no-undo")
	code, _, errs = p.run(func(s *cli.Session) {
		s.In = strings.NewReader(read(t, file) + "nonsense\n")
	}, "import", p.main, "-")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "-: line 301: ")
	p.Has(p.main+suffix, 300)
}

// ^C comes in the middle: the run tells what it has done, and all messages are in one of the two
// queues.
func TestInterruptOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 500)
	ctx, cancel := context.WithCancel(t.Context())
	p.interruptible = ctx
	go func() { // as soon as some have come
		defer cancel()
		for ctx.Err() == nil {
			if p.Depth(p.main) >= 20 {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	}()
	code, out, errs := p.run(func(s *cli.Session) { s.JSON = true }, "replay", p.main, "--yes", "--rate", "200/s",
		"--undo", p.file("undo"), "--json")
	assert.Equal(t, cli.ExitInterrupted, code)
	assert.Contains(t, errs, "interrupted")
	var r report
	require.NoError(t, json.Unmarshal([]byte(out), &r), out)
	assert.Positive(t, r.Done)
	assert.Less(t, r.Done, 500)
	assert.Nil(t, r.Matched, "the queue was not seen to its end")
	p.Has(p.main, r.Done)
	p.Has(p.main+suffix, 500-r.Done)
	assert.GreaterOrEqual(t, strings.Count(read(t, p.file("undo")), "\n"), r.Done)
}

func TestBusyQueue(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	arrives := rabbit.Consume(t, p.Channel(), p.main)
	first, done := *p, make(chan struct{})
	var cancel context.CancelFunc
	first.interruptible, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(done)
		// much longer than the other one waits
		_, _, _ = first.run(nil, "replay", p.main, "--canary", "1", "--watch", "10m", "--yes", "--no-undo")
	}()
	await.Closed(t, arrives, "the canary has gone, and is watched")

	code, _, errs := p.run(nil, "purge", p.main, "--all", "--yes", "--undo", p.file("undo"))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "another replay, move, purge or browse is at work")
	assert.NoFileExists(t, p.file("undo"))
	cancel()
	await.Closed(t, done, "the replay is interrupted")
}

func TestAllDeadLetterQueuesOfABroker_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	p := onBroker(t, broker.URI)
	p.management = broker.ManagementURL
	p.fill(p.main, 0, 3)
	p.Declare("gone.dlq", nil)

	var out string
	await.Until(t, func() bool { // its numbers are some seconds old
		out, _ = p.ok("list")
		return strings.Contains(out, p.main+suffix+"  3         3      0\n")
	})
	assert.Contains(t, out, "MAIN QUEUE")
	assert.Contains(t, out, "gone (does not exist)")
	out, _ = p.ok("list", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	var l line
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &l))
	assert.Equal(t, p.main, l.MainQueue)
	assert.True(t, l.MainQueueExists)
}

// when calls a function before the first write.
type when struct {
	bytes.Buffer
	first func()
}

func (w *when) Write(p []byte) (int, error) {
	if w.Len() == 0 {
		w.first()
	}

	return w.Buffer.Write(p)
}

// Giving back in order can take long, and whoever does not wait for it ends the process: the result
// is told before.
func TestResultIsPrintedBeforeTheOrderIsRestored(t *testing.T) {
	t.Parallel()
	const deadLetters, limit = 500, 40
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, deadLetters)
	left := deadLetters
	for _, args := range [][]string{{"replay", p.main}, {"move", p.main, "--to", p.other}, {"purge", p.main, "--all"},
		{"replay", p.main, "--json"}} {
		left -= limit
		out := &when{first: func() {
			assert.Less(t, p.Depth(p.main+suffix), left, "%q: the rest is back already", args)
		}}
		args = append(args, "--yes", "--limit", "40", "--undo", p.file(args[0])+strconv.Itoa(left))
		code, _, errs := p.run(func(s *cli.Session) { s.Out = out }, args...)
		require.Equal(t, cli.ExitOK, code, errs)
		assert.Equal(t, 1, strings.Count(out.String(), "40 ")+strings.Count(out.String(), `"done": 40,`), out.String())
		p.Has(p.main+suffix, left)
	}
}

// Another consumer holds messages that no browse sees: every command that reads says so.
func TestAnotherConsumerIsTold(t *testing.T) {
	t.Parallel()
	const deadLetters, held = 60, 20
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, deadLetters)
	for _, args := range readers(p) {
		_, errs := p.ok(args...)
		assert.NotContains(t, errs, "other consumer", "%q", args)
	}
	channel := p.Channel()
	require.NoError(t, channel.Qos(held, 0, false))
	deliveries, err := channel.Consume(p.main+suffix, "", false, false, false, false, nil)
	require.NoError(t, err)
	for range held {
		await.Closed(t, deliveries, "the other consumer gets messages")
	}

	note := p.main + suffix + ": it has 1 other consumer; the messages that are delivered and not acknowledged are " +
		"not visible"
	for _, args := range readers(p) {
		_, errs := p.ok(args...)
		assert.Equal(t, 1, strings.Count(errs, note), "%q: %s", args, errs)
	}
	_, _, errs := p.run(nil, "show", p.main, "uuid-0")
	assert.Contains(t, errs, note)
	for args, key := range map[string]string{"stat": "consumers", "replay": "consumers"} {
		out, _ := p.ok(args, p.main, "--json")
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		assert.EqualValues(t, 1, r[key], args)
	}
	out, _ := p.ok("replay", p.main, "--yes", "--no-undo", "--limit", "3")
	assert.Contains(t, out, "3 replayed")
}

func readers(p *place) [][]string {
	return [][]string{{"list", p.main}, {"list", p.main, "--limit", "1"}, {"stat", p.main}, {"export", p.main},
		{"replay", p.main, "--dry-run"}, {"move", p.main, "--to", p.other, "--dry-run"}, {"purge", p.main, "--all",
			"--dry-run"}}
}
