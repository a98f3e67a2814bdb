package dlqcmd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// breakdowns are what dead letters can be counted by.
var breakdowns = []struct {
	name string
	of   func(*dlq.Stat) dlq.Counts
}{
	{"reason", func(s *dlq.Stat) dlq.Counts { return s.ByReason }},
	{"topic", func(s *dlq.Stat) dlq.Counts { return s.ByTopic }},
	{"handler", func(s *dlq.Stat) dlq.Counts { return s.ByHandler }},
	{"error-type", func(s *dlq.Stat) dlq.Counts { return s.ByErrorType }},
	{byFingerprint, func(s *dlq.Stat) dlq.Counts { return s.ByFingerprint }},
}

const byFingerprint = "fingerprint"

func (t *tool) stat() *cobra.Command {
	all := make([]string, len(breakdowns))
	for i, b := range breakdowns {
		all[i] = b.name
	}
	var by words
	cmd := &cobra.Command{
		Use:   "stat QUEUE",
		Short: "Count dead letters by reason, topic, handler, error type and fingerprint",
		Long: `Count the dead letters of a queue: number, size, age, and breakdowns by reason, topic, handler, error
type and fingerprint. They stay in the queue.

Messages with the same fingerprint have the same error type, handler and error text, apart from
numbers, UUIDs, hexadecimal values, long IDs and quoted values. --fingerprint selects them in other
commands.

The command reads every message, so the numbers are exact. It cannot see messages that other
consumers hold at this moment, and does not count them. Each breakdown prints the largest numbers,
and the sum of the others.

With --json: one object with the keys of package dlq's Stat, with all names.`,
		Example: `  amqpretry dlq stat orders
  amqpretry dlq stat orders --by reason,error-type --newer-than 1d
  amqpretry dlq stat orders --by fingerprint
  amqpretry dlq stat orders --json`,
		Args: cobra.ExactArgs(1),
	}
	filters := filterFlags(cmd)
	cmd.Flags().Var(&by, "by", "breakdowns, comma-separated, of "+strings.Join(all, ", ")+" (default: all)")
	top := cmd.Flags().Int("top", 20, "maximum number of names to print in each breakdown; 0 means all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		if len(by) == 0 {
			by = all
		}
		for _, name := range by {
			if !slices.Contains(all, name) {
				return cli.Usage("--by: must be some of %s, got %q", strings.Join(all, ", "), name)
			}
		}
		if *top < 0 {
			return cli.Usage("--top: must be 0 or more, got %d", *top)
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			stat, err := q.Stat(cmd.Context(), filter)
			if err != nil && !isIncomplete(err) {
				return err
			}
			if t.JSON {
				return errors.Join(t.PrintJSON(stat), err)
			}
			defer t.noteUnseen(q, stat.Consumers, stat.Hidden)
			defer t.noteUntimed(stat.UntimedLeftOut)

			return errors.Join(t.printStat(q, stat, filters.given(), by, *top), err)
		})
	}

	return cmd
}

func (t *tool) printStat(q queue, s dlq.Stat, filtered bool, by []string, top int) error {
	now := t.Now()
	lines := [][2]string{{"queue", q.Name()}, {"main queue", cmp.Or(q.MainQueue(), "-")},
		{"messages", units.Thousands(s.Seen)}}
	if s.Seen != s.Ready {
		lines[2][1] += fmt.Sprintf(" (%s when the browse began)", units.Thousands(s.Ready))
	}
	if filtered {
		lines = append(lines, [2]string{"matching", units.Thousands(s.Matched)})
	}
	if s.Matched > 0 {
		lines = append(lines, [2]string{"bodies", units.Thousands(s.Bytes) + " bytes"},
			[2]string{"oldest", moment(s.Oldest, now)}, [2]string{"newest", moment(s.Newest, now)})
		for _, line := range []struct {
			name string
			n    int
		}{{"without time", s.Untimed}, {"replayed before", s.Replayed}, {"parked", s.Parked},
			{"headers that cannot be read", s.Unreadable}} {
			if line.n > 0 {
				lines = append(lines, [2]string{line.name, units.Thousands(line.n)})
			}
		}
	}
	if err := t.pairs(lines); err != nil || s.Matched == 0 {
		return err
	}

	for _, b := range breakdowns {
		if !slices.Contains(by, b.name) {
			continue
		}
		if _, err := fmt.Fprintln(t.Out); err != nil {
			return err
		}
		columns, rows := []string{"messages", "share", strings.ReplaceAll(b.name, "-", " ")},
			countRows(b.of(&s), s.Matched, top)
		if b.name == byFingerprint {
			columns, rows = append(columns, "error type", "handler", "error"), withCauses(rows, s.Fingerprints)
		}
		if err := t.Table(columns, rows); err != nil {
			return err
		}
	}

	return nil
}

// withCauses adds what fingerprints stand for to the rows of countRows.
func withCauses(rows [][]string, fingerprints map[string]dlq.Fingerprint) [][]string {
	for i, row := range rows {
		if cause, ok := fingerprints[row[len(row)-1]]; ok {
			rows[i] = append(row, cmp.Or(cause.ErrorType, "-"), cmp.Or(cause.Handler, "-"), cmp.Or(cause.Pattern, "-"))
		}
	}

	return rows
}

// countRows are the names by how many they have, the largest first, so many of them, and the rest
// in one number.
func countRows(counts dlq.Counts, total, top int) [][]string {
	var rows [][]string
	add := func(n int, name string) {
		share := fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(total, 1)))
		rows = append(rows, []string{units.Thousands(n), share, name})
	}
	rest, further := counts.Others, 0
	for i, count := range counts.Sorted() {
		if top > 0 && i >= top {
			rest += count.N
			further++
			continue
		}
		add(count.N, cmp.Or(count.Name, "(not told)"))
	}
	switch {
	case rest == 0:
	case counts.Others > 0:
		add(rest, fmt.Sprintf("(others: more than %s)", units.Many(further, "name")))
	default:
		add(rest, fmt.Sprintf("(others: %s; --top 0 prints all)", units.Many(further, "name")))
	}

	return rows
}

// moment is a time and how long ago it was.
func moment(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339), units.Elapsed(now.Sub(at)))
}
