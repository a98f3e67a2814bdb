package dlqcmd

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func uuids(deadLetters []dlq.DeadLetter) (all []string) {
	for _, l := range deadLetters {
		all = append(all, l.UUID)
	}
	return all
}

// A command with a position shows the message that it found there, and takes that one: also when
// the queue has changed before the answer.
func TestPositionIsShownAndKept(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"purge", "orders", "2"}, {"replay", "orders", "2"},
		{"move", "orders", "2", "--to", "parked"}} {
		f := orders(deadLetters(4)...)
		code, out, errs := f.run(t, func(w *world) {
			terminal("")(w)
			w.In = readerFunc(func(p []byte) (int, error) { // somebody takes the oldest one
				f.deadLetters = f.deadLetters[1:]
				for i := range f.deadLetters {
					f.deadLetters[i].Position = i + 1
				}
				return copy(p, "y\n"), nil
			})
		}, append(args, "--no-undo")...)
		assert.Equal(t, cli.ExitOK, code, errs)
		assert.Contains(t, out, "\n2  uuid-2  2m00s  exhausted ")
		assert.Contains(t, out, "4 messages, of which 1 matches; 1 can be ")
		assert.Contains(t, errs, " 1 message")
		assert.Equal(t, []string{"uuid-3", "uuid-4"}, uuids(f.deadLetters))
	}
}

func TestPositionNeedsSomebodyWhoSees(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"purge", "orders"}, {"replay", "orders"}, {"move", "orders", "--to", "parked"}} {
		f := orders(deadLetters(4)...)
		code, _, errs := f.run(t, nil, append(args, "2", "--yes")...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "--yes: another message may be at position 2 by now; pass the UUID of the message")
		assert.Zero(t, f.opened)

		code, out, errs := f.run(t, nil, append(args, "2")...)
		assert.Equal(t, cli.ExitOK, code)
		assert.Contains(t, out, "\n2  uuid-2  ")
		assert.Contains(t, errs, "This was a dry run: nothing was ")
		assert.Contains(t, errs, "To do it, pass UUIDs instead of positions, with --yes")
		assert.Zero(t, f.runs)

		code, out, _ = f.run(t, nil, append(args, "2", "--json")...)
		assert.Equal(t, cli.ExitOK, code)
		var plan struct {
			Matched  int
			Messages []namedMessage
		}
		require.NoError(t, json.Unmarshal([]byte(out), &plan))
		assert.Equal(t, []namedMessage{{2, "uuid-2"}}, plan.Messages)
		assert.Equal(t, 1, plan.Matched)

		code, _, errs = f.run(t, nil, append(args, "uuid-2", "uuid-3", "--yes")...)
		assert.Equal(t, cli.ExitOK, code, errs)
		assert.Equal(t, []string{"uuid-1", "uuid-4"}, uuids(f.deadLetters))
	}
}

func TestMessagesThatAreNotThere(t *testing.T) {
	for name, says := range map[string]string{
		"uuid-9": `no message with the UUID "uuid-9" among the 4`, "5": "has no message at position 5: 4 are visible",
		"1234567890": `no message with the UUID "1234567890"`, // no queue has so many
	} {
		f := orders(deadLetters(4)...)
		for _, command := range []string{"purge", "replay", "export"} {
			code, out, errs := f.run(t, nil, command, "orders", "uuid-1", name)
			assert.Equal(t, cli.ExitFailed, code)
			assert.Contains(t, errs, says)
			assert.Empty(t, out, "nor is anything done with the others")
		}
		assert.Zero(t, f.runs)
	}
}

func TestMessagesAndFilters(t *testing.T) {
	f := orders(deadLetters(4)...)
	_, out, _ := f.run(t, nil, "purge", "orders", "1", "2", "--older-than", "90s")
	assert.Contains(t, out, "4 messages, of which 1 matches", "both hold")
	_, out, _ = f.run(t, nil, "export", "orders", "3", "uuid-1")
	assert.Equal(t, 2, strings.Count(out, "\n"))
	assert.Contains(t, out, "uuid-1")
	assert.Contains(t, out, "uuid-3")
}

// On a broker each message is recognized by everything that it has. Of several that are the same as
// many go as are named.
func TestMessagesOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 5)
	twice := deadletter.New(p.main, 7)
	p.Publish(p.main+suffix, twice, twice)
	yes := func(s *cli.Session) { s.InIsTerminal, s.In = true, strings.NewReader("y\n") }

	out, _ := p.ok("list", p.main)
	uuid := regexp.MustCompile(`(?m)^3 +(\S+) `).FindStringSubmatch(out)[1]
	out, _ = p.ok("show", p.main, "3")
	assert.Regexp(t, `uuid +`+uuid+"\n", out)
	code, out, errs := p.run(yes, "purge", p.main, "3", "7", "--no-undo")
	require.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "2 of 2 matching messages purged")
	code, _, errs = p.run(nil, "replay", p.main, "uuid-0", "--set-header", "a=b", "--yes", "--no-undo")
	require.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, "b", p.bodies(p.main, 1)[0].Headers["a"])
	var want []string
	for _, n := range []int{1, 3, 4, 7} {
		want = append(want, deadletter.Body(n))
	}
	assert.Equal(t, want, rabbit.Bodies(p.bodies(p.main+suffix, 4)))
}

// The error of an edit that several messages match has a command that works.
func TestAdviceForAnEditWorks(t *testing.T) {
	t.Chdir(t.TempDir())
	command := regexp.MustCompile(`amqpretry dlq (replay [^;]+);`)
	set := func(w *world) {
		w.Getenv = environment(map[string]string{"EDITOR": `sh -c 'echo "{\"n\":9}" > "$1"' editor`})
	}
	for _, args := range [][]string{
		{"replay", "orders", "--older-than", "90s", "--edit", "--to", "parked", "--no-undo", "--yes"},
		{"replay", "orders", "--set-header", "a=b", "--set-header", "c=d", "--to", "parked", "--no-undo", "--yes"},
	} {
		f := orders(deadLetters(3)...)
		code, _, errs := f.run(t, set, args...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.NotContains(t, errs, "if any flags")
		advice := command.FindStringSubmatch(errs)
		require.NotNil(t, advice, errs)
		code, out, errs := f.run(t, set, strings.Fields(advice[1])...)
		assert.Equal(t, cli.ExitOK, code, errs)
		assert.Contains(t, out, "1 of 1 matching message replayed to parked")
		require.Len(t, f.published, 1)
		assert.Len(t, f.deadLetters, 2)
	}

	f := orders(deadLetters(3)...)
	f.deadLetters[0].UUID = ""
	_, _, errs := f.run(t, nil, "replay", "orders", "--set-header", "a=b", "--yes")
	assert.Contains(t, errs, "amqpretry dlq replay --set-header=a=b orders 1; ", "a position, without --yes")
}
