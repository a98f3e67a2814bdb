package tools

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// window is how many messages a run may have on their way: those may be there twice after a kill.
const window = 256

// errand is a command that takes messages somewhere.
type errand struct {
	name string
	// most may be there twice for each kill.
	most int
	// to is the queue to which the messages go.
	to func(*queues) string
	// args of the command for these queues, with the file that is imported.
	args func(q *queues, file string) []string
}

var errands = []errand{
	{"replay", window, func(q *queues) string { return q.main }, func(q *queues, _ string) []string {
		return []string{"dlq", "replay", q.main, "--yes"}
	}},
	{"move", window, func(q *queues) string { return q.parked }, func(q *queues, _ string) []string {
		return []string{"dlq", "move", q.main, "--to", q.parked, "--yes"}
	}},
	// How far it is, is written down now and then.
	{"import", 2 * window, func(q *queues) string { return q.dead }, func(q *queues, file string) []string {
		return []string{"dlq", "import", q.main, file}
	}},
}

const (
	lettersPerRound = 2000
	killsPerRound   = 5
)

// Whoever replays, moves or imports is killed at random moments, and called again until it is done. KILLS is how often for each command.
func TestKilled(t *testing.T) {
	t.Parallel()
	random, seed := seeded(t)
	kills := number(t, "KILLS", 6)

	var rows [][]string
	version := ""
	for _, e := range errands {
		for _, deadType := range []string{"quorum", "classic"} {
			total := &tally{}
			share := (kills + 1) / 2
			if deadType == "classic" {
				share = kills / 2
			}
			t.Run(e.name+"/"+deadType, func(t *testing.T) {
				for n := 0; total.kills < share && !t.Failed(); n++ {
					k := &killing{errand: e, deadType: deadType, filter: n%2 == 1, random: rand.New(rand.NewPCG(random.Uint64(), 0)), kills: min(killsPerRound, share-total.kills)}
					version = k.round(t, total)
				}
			})
			rows = append(rows, append([]string{e.name, deadType}, total.row()...))
		}
	}
	report(t, fmt.Sprintf("Tools killed at random moments: RabbitMQ %s, SEED=%d", version, seed), []string{
		"command", "dead-letter queue", "kills", "messages", "of them matched", "lost", "twice", "most by one kill", "kills without any",
	}, rows)
}

// tally counts over all rounds.
type tally struct {
	kills, messages, matched, lost, twice int
	most, none                            int // by one kill
}

func (t *tally) row() []string {
	var cells []string
	for _, n := range []int{t.kills, t.messages, t.matched, t.lost, t.twice, t.most, t.none} {
		cells = append(cells, strconv.Itoa(n))
	}

	return cells
}

// killing is one round: a number of messages, and a process that is killed several times until all are where they belong.
type killing struct {
	errand
	deadType string
	filter   bool // half of the messages stay
	random   *rand.Rand
	kills    int

	*queues
	dir  string
	file string // of an import
	cuts []int  // how many messages the target had after each kill
	undo bool
}

func (k *killing) round(t *testing.T, tally *tally) (version string) {
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
		if len(k.cuts) < k.kills {
			done = k.untilKilled(matched)
		} else {
			done = k.untilDone()
		}
		require.False(t, t.Failed())
	}
	k.settled()
	tally.kills += len(k.cuts)
	tally.messages += lettersPerRound
	tally.matched += matched
	k.judge(tally)
	if k.undo {
		k.judgeUndo()
	}

	return k.rabbitmq()
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

func (k *killing) call() *command {
	args := k.args(k.queues, k.file)
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

// untilKilled calls the command, and kills it: when a random number of messages has arrived, or, one time in five, at a random moment at its
// beginning. True if it was done before.
func (k *killing) untilKilled(matched int) (done bool) {
	k.t.Helper()
	goal := 1 + k.random.IntN(2*matched/(k.kills+1))
	arrived := k.state(k.to(k.queues)).Messages
	early := k.random.IntN(5) == 0

	c := k.call()
	if early {
		c.after(time.Duration(k.random.IntN(150)) * time.Millisecond)
	} else {
		for c.after(time.Millisecond) && k.state(k.to(k.queues)).Messages < arrived+goal {
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
	k.settled()

	k.cuts = append(k.cuts, k.state(k.to(k.queues)).Messages)

	return false
}

func (k *killing) untilDone() bool {
	k.t.Helper()
	c := k.call()
	select {
	case <-c.ended:
	case <-time.After(5 * time.Minute):
		require.Fail(k.t, "it does not end", c.out.String())
	}

	return k.isDone(c)
}

// isDone judges a command that has ended by itself.
func (k *killing) isDone(c *command) bool {
	k.t.Helper()
	if k.name == "import" && len(k.cuts) > 0 && strings.Contains(c.out.String(), " was imported at ") {
		return true // the one that was killed had just noted that it was done
	}
	require.Equal(k.t, 0, c.ProcessState.ExitCode(), c.out.String())

	return true
}

// settled waits until the broker has noticed that the process is gone: what it had is given back, and what it has sent is in.
func (k *killing) settled() {
	k.t.Helper()
	require.Eventually(k.t, func() bool { return k.state(k.dead).Consumers == 0 && !k.locked() }, patience, 5*time.Millisecond, "the process is gone")
	same, last, enough := 0, [2]int{}, 4
	if k.name == "import" { // which has no lock by which its connection is seen to be gone
		enough = 20
	}
	require.Eventually(k.t, func() bool {
		now := [2]int{k.state(k.dead).Messages, k.state(k.to(k.queues)).Messages}
		if now != last {
			same, last = 0, now
		}
		same++
		return same >= enough
	}, patience, 15*time.Millisecond, "no messages come any more")
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

// judge finds every message, and those that are there twice.
func (k *killing) judge(tally *tally) {
	k.t.Helper()
	arrived, stayed := bodies(k.drained(k.to(k.queues))), map[string]int{}
	if k.name != "import" {
		for _, text := range bodies(k.drained(k.dead)) {
			stayed[text]++
		}
	}

	byKill, at := make([]int, len(k.cuts)), map[string]int{}
	for i, text := range arrived {
		if before, again := at[text]; again {
			cut := sort.SearchInts(k.cuts, before+1) // the first kill behind it; others may have gone first afterwards
			if assert.True(k.t, cut < len(k.cuts) && k.cuts[cut] <= i, "%s has arrived twice, with no kill in between", text) {
				assert.LessOrEqual(k.t, k.cuts[cut]-before, k.most, "%s was not on its way when the process was killed", text)
				byKill[cut]++
			}
			tally.twice++
		}
		at[text] = i
	}
	for n := range lettersPerRound {
		text := body(n)
		_, there := at[text]
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
	for _, twice := range byKill {
		tally.most = max(tally.most, twice)
		if twice == 0 {
			tally.none++
		}
		assert.LessOrEqual(k.t, twice, k.most, "twice after one kill")
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

func bodies(deliveries []amqp091.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = string(d.Body)
	}

	return all
}
