package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// window is how many messages a run may have on their way: those may be there twice after a kill.
const window = 256

// operation is a command that takes messages somewhere. Each message tells which call of it has
// sent it: what a killed one had sent may arrive after what the next one sends, so nothing else
// proves that no call has sent a message twice.
type operation struct {
	name string
	// most may be there twice for each kill.
	most int
	// to is the queue to which the messages of a call go.
	to func(q *queues, call int) string
	// args of the command.
	args func(q *queues, to, file string) []string
	// sender tells the calls apart whose messages are in one queue.
	sender string
}

var operations = []operation{
	{"replay", window, func(q *queues, _ int) string { return q.main }, func(q *queues, _, _ string) []string {
		return []string{"dlq", "replay", q.main, "--yes"}
	}, header.Replay},
	// What is moved has no trace of that: each call has a queue of its own.
	{"move", window, func(q *queues, call int) string { return q.park(call) }, func(q *queues, to, _ string) []string {
		return []string{"dlq", "move", q.main, "--to", to, "--yes"}
	}, ""},
	// How far it is, is written down now and then. The lines behind that may change: they name the
	// call.
	{"import", 2 * window, func(q *queues, _ int) string { return q.dead }, func(q *queues, _, file string) []string {
		return []string{"dlq", "import", q.main, file}
	}, headerCall},
}

const (
	lettersPerRound = 2000
	killsPerRound   = 5
)

// Whoever replays, moves or imports is killed at random moments, and called again until it is done.
// KILLS is how often for each command.
func TestKilled(t *testing.T) {
	t.Parallel()
	random, seed := env.Random(t)
	kills := env.Int(t, "KILLS", 6)

	table := report.Table{Head: []string{
		"command", "dead-letter queue", "kills", "messages", "of them matched", "lost", "twice",
		"most by one kill", "kills without any",
	}}
	var adds []func() // in the order of the table
	version := ""
	t.Run("side by side", func(t *testing.T) {
		version = rabbit.New(t, brokertest.URI(t)).Version()
		for _, e := range operations {
			for _, deadType := range []string{"quorum", "classic"} {
				total := &tally{}
				share := (kills + 1) / 2
				if deadType == "classic" {
					share = kills / 2
				}
				adds = append(adds, func() { table.Add(append([]any{e.name, deadType}, total.row()...)...) })
				own := rand.New(rand.NewPCG(random.Uint64(), 0))
				t.Run(e.name+"/"+deadType, func(t *testing.T) {
					t.Parallel()
					for n := 0; total.kills < share && !t.Failed(); n++ {
						k := &killing{operation: e, deadType: deadType, filter: n%2 == 1,
							random: rand.New(rand.NewPCG(own.Uint64(), 0)),
							kills:  min(killsPerRound, share-total.kills)}
						k.round(t, total)
					}
				})
			}
		}
	})
	for _, add := range adds {
		add()
	}
	table.Title = fmt.Sprintf("Tools killed at random moments: RabbitMQ %s, SEED=%d", version, seed)
	report.Write(t, table.String())
}

// tally counts over all rounds.
type tally struct {
	kills, messages, matched, lost, twice int
	most, none                            int // by one kill
}

func (t *tally) row() []any {
	return []any{t.kills, t.messages, t.matched, t.lost, t.twice, t.most, t.none}
}

// killing is one round: a number of messages, and a process that is killed several times until all
// are where they belong.
type killing struct {
	operation
	deadType string
	filter   bool // half of the messages stay
	random   *rand.Rand
	kills    int

	*queues
	dir     string
	file    string // of an import
	killed  int
	targets []string // of each call
	undo    bool
}

func (k *killing) round(t *testing.T, tally *tally) {
	t.Helper()
	k.queues, k.dir = newQueues(t, k.deadType), t.TempDir()
	k.undo = k.name != "import" && k.random.IntN(2) == 0
	defer k.remove()
	k.fill(lettersPerRound)
	if k.name == "import" {
		k.export()
	}
	matched := lettersPerRound
	if k.filter {
		matched /= len(tenants)
	}

	for done := false; !done; {
		if k.killed < k.kills {
			done = k.untilKilled(matched)
		} else {
			done = k.untilDone()
		}
		require.False(t, t.Failed())
	}
	k.settled()
	tally.kills += k.killed
	tally.messages += lettersPerRound
	tally.matched += matched
	k.judge(tally)
	if k.undo {
		k.judgeUndo()
	}
}

// export makes the file of an import, and empties the queue.
func (k *killing) export() {
	k.t.Helper()
	k.file = filepath.Join(k.dir, "letters.jsonl")
	file, err := os.Create(k.file)
	require.NoError(k.t, err)
	exported, err := k.queue.Export(k.t.Context(), file, dlq.ExportOptions{})
	require.NoError(k.t, err)
	require.NoError(k.t, file.Close())
	require.Equal(k.t, lettersPerRound, exported.Done)
	_, err = k.channel.QueuePurge(k.dead, false)
	require.NoError(k.t, err)
	k.await(k.dead, 0)
}

// target is the queue of the last call.
func (k *killing) target() string { return k.targets[len(k.targets)-1] }

// call starts the command once more.
func (k *killing) call() *command {
	k.t.Helper()
	k.targets = append(k.targets, k.to(k.queues, len(k.targets)+1))
	if k.name == "import" {
		k.sign()
	}
	args := k.args(k.queues, k.target(), k.file)
	if k.filter {
		args = append(args, "--header", "tenant="+tenants[1])
	}
	if k.name != "import" && !k.undo {
		args = append(args, "--no-undo")
	}
	if k.random.IntN(3) == 0 { // the others as fast as they can
		args = append(args, "--rate", strconv.Itoa(1000+k.random.IntN(2000))+"/s")
	}

	return start(k.t, k.dir, args...)
}

// sign writes the number of the next call into the lines that are not imported yet.
func (k *killing) sign() {
	k.t.Helper()
	text, err := os.ReadFile(k.file)
	require.NoError(k.t, err)
	var kept struct{ Lines int }
	done, err := os.ReadFile(k.file + ".imported")
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(k.t, err)
		require.NoError(k.t, json.Unmarshal(done, &kept))
	}

	lines := bytes.SplitAfter(text, []byte("\n"))
	for i := range lines {
		if i >= kept.Lines {
			lines[i] = signature.ReplaceAll(lines[i], []byte(callName(len(k.targets))))
		}
	}
	require.NoError(k.t, os.WriteFile(k.file, bytes.Join(lines, nil), 0o600))
}

var signature = regexp.MustCompile(`call-[0-9]{3}`)

// untilKilled calls the command, and kills it: when a random number of messages has arrived, or,
// one time in five, at a random moment at its beginning. True if it was done before.
func (k *killing) untilKilled(matched int) (done bool) {
	k.t.Helper()
	goal := 1 + k.random.IntN(2*matched/(k.kills+1))
	early := k.random.IntN(5) == 0

	c := k.call()
	arrived := k.state(k.target()).Messages
	if early {
		c.after(time.Duration(k.random.IntN(150)) * time.Millisecond)
	} else {
		for c.after(time.Millisecond) && k.state(k.target()).Messages < arrived+goal {
			continue
		}
		c.after(time.Duration(k.random.IntN(5000)) * time.Microsecond)
	}
	select {
	case <-c.ended:
		return k.isDone(c)
	default:
	}
	c.kill()
	k.killed++
	k.settled()

	return false
}

func (k *killing) untilDone() bool {
	k.t.Helper()
	c := k.call()
	await.Within(k.t, 5*time.Minute, func() bool {
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	}, "call %d ends", len(k.targets))

	return k.isDone(c)
}

// isDone judges a command that has ended by itself.
func (k *killing) isDone(c *command) bool {
	k.t.Helper()
	if k.name == "import" && k.killed > 0 && strings.Contains(c.out.String(), " was already imported at ") {
		return true // the one that was killed had just noted that it was done
	}
	require.Equal(k.t, 0, c.ProcessState.ExitCode(), c.out.String())

	return true
}

// settled waits until the broker has noticed that the process is gone, and has all that this one
// had not taken out.
func (k *killing) settled() {
	k.t.Helper()
	await.Until(k.t, func() bool {
		return k.state(k.dead).Consumers == 0 && !k.locked()
	}, "the process is gone")
}

// locked tells whether the broker still has the lock of the process.
func (k *killing) locked() bool {
	k.t.Helper()
	channel, err := k.connection.Channel()
	require.NoError(k.t, err)
	defer channel.Close()
	_, err = channel.QueueDeclarePassive(k.dead+".lock", false, true, true, false, nil)
	var refused *amqp091.Error

	return errors.As(err, &refused) && refused.Code == amqp091.ResourceLocked
}

// sent are the messages of one call, in their order.
type sent []string

// arrived finds what each call has sent: the calls in their order.
func (k *killing) arrived() []sent {
	k.t.Helper()
	var all []sent
	if k.sender == "" {
		for _, target := range k.targets {
			all = append(all, rabbit.Bodies(k.drained(target)))
		}
		return all
	}

	at := map[string]int{}
	for _, d := range k.drained(k.target()) {
		call, ok := d.Headers[k.sender].(string)
		require.True(k.t, ok, "%s names no call: %v", d.Body, d.Headers)
		if _, known := at[call]; !known {
			at[call], all = len(all), append(all, nil)
		}
		all[at[call]] = append(all[at[call]], string(d.Body))
	}

	return all
}

// judge finds every message, and those that are there twice.
func (k *killing) judge(tally *tally) {
	k.t.Helper()
	calls, stayed := k.arrived(), map[string]int{}
	if k.name != "import" {
		for _, text := range rabbit.Bodies(k.drained(k.dead)) {
			stayed[text]++
		}
	}

	last := map[string]int{} // call that has sent a message
	for n, all := range calls {
		for _, text := range all {
			if before, again := last[text]; again {
				assert.NotEqual(k.t, before, n, "%s was sent twice by one call", text)
			}
			last[text] = n
		}
	}
	none := k.killed
	for n, all := range calls {
		twice := 0
		for i, text := range all {
			if last[text] == n {
				continue
			}
			twice++
			assert.Less(k.t, len(all)-1-i, k.most, "%s was not on its way when call %d of %d was killed", text, n+1,
				len(calls))
		}
		assert.LessOrEqual(k.t, twice, k.most, "twice after one kill")
		tally.twice += twice
		tally.most = max(tally.most, twice)
		if twice > 0 {
			none--
		}
	}
	tally.none += none
	assert.GreaterOrEqual(k.t, none, 0, "more calls have sent what came again than were killed")

	for n := range lettersPerRound {
		text := deadletter.Body(n)
		_, there := last[text]
		matches := !k.filter || n%len(tenants) == 1
		switch {
		case !there && stayed[text] == 0 && (matches || k.name != "import"):
			tally.lost++
			assert.Fail(k.t, "lost", text)
		case matches:
			assert.Zero(k.t, stayed[text], "%s is still there", text)
		default:
			assert.False(k.t, there, "%s does not match, and has gone", text)
			assert.LessOrEqual(k.t, stayed[text], 1, text)
		}
	}
}

var uuids = regexp.MustCompile(`uuid-[0-9]+-`)

// judgeUndo finds every message that has gone in an undo file.
func (k *killing) judgeUndo() {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.dir, "*.jsonl"))
	require.NoError(k.t, err)
	written := map[string]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(k.t, err)
		for line := range strings.Lines(string(text)) {
			if strings.HasSuffix(line, "\n") { // else it was being written
				written[uuids.FindString(line)] = true
			}
		}
	}
	for n := range lettersPerRound {
		if !k.filter || n%len(tenants) == 1 {
			assert.True(k.t, written[uuid(n)], "%s has gone, and is in no undo file", uuid(n))
		}
	}
}
