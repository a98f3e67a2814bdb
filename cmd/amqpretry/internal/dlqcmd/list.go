package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

func (t *tool) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [QUEUE]",
		Short: "List dead letters, or all dead-letter queues",
		Long: `List the dead letters of a queue, oldest first. They stay in the queue.

Without QUEUE, list all dead-letter queues of the virtual host, with their main queues and depths.
This needs the management API, whose numbers are some seconds old. It recognizes a dead-letter queue
by its name: orders.dlq is that of orders.

With a filter, the command reads the whole queue to count the matches.

Names longer than 64 characters and errors longer than 80 are cut. --json prints them whole.

With --json: one line for each message (JSON Lines), with the keys of "dlq show --json".
Without QUEUE: one line for each queue, {"queue", "main_queue", "main_queue_exists", "messages",
"ready", "unacked"}; unknown numbers are null.`,
		Example: `  amqpretry dlq list
  amqpretry dlq list orders
  amqpretry dlq list orders --reason exhausted --newer-than 1h --limit 100
  amqpretry dlq list orders --limit 0 --json | jq -r .failure.uuid`,
		Args: cobra.MaximumNArgs(1),
	}
	filters := filterFlags(cmd)
	limit := cmd.Flags().Int("limit", 20, "maximum number of messages to list; 0 means all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		if *limit < 0 {
			return cli.Usage("--limit: must be 0 or more, got %d", *limit)
		}
		if len(args) == 0 {
			if filters.given() || t.deadLetterQueue != "" {
				return cli.Usage("filters and --dead-letter-queue need QUEUE, the name of a main queue")
			}
			return t.overview(cmd.Context())
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			return t.deadLetters(cmd.Context(), q, filter, filters.given(), *limit)
		})
	}

	return cmd
}

// block is how many dead letters are in memory for one table.
const block = 1000

// deadLetters prints what matches, up to a limit, and counts the rest.
func (t *tool) deadLetters(ctx context.Context, q queue, filter dlq.Filter, filtered bool, limit int) error {
	depth, hidden, err := q.Ready(ctx)
	if err != nil {
		return err
	}
	bar := t.Progress(q.Name(), depth)
	defer bar.Close()

	var rows [][]string
	matched, listed, now := 0, 0, t.Now()
	flush := func() error {
		bar.Close()
		if len(rows) == 0 { // a header alone says nothing
			return nil
		}
		err := t.Table(listHeader, rows)
		rows = rows[:0]
		return err
	}
	untimed := 0
	counting := dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		if filter.Untimed(l) {
			untimed++
		}
		return filter.Matches(l, now)
	}}
	for deadLetter, err := range q.Browse(ctx, counting) {
		if err != nil {
			return errors.Join(flush(), err)
		}
		bar.Set(deadLetter.Position)
		matched++
		if limit > 0 && matched > limit {
			if !filtered { // what is left is what the queue has
				matched = max(depth, matched)
				if err := flush(); err != nil { // at once: restoring the order may take long
					return err
				}
				break
			}
			continue
		}
		listed++
		if t.JSON {
			err = t.PrintJSONLine(deadLetter)
		} else if rows = append(rows, row(deadLetter, now)); len(rows) == block {
			err = flush()
		}
		if err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	defer t.noteUnseenNow(ctx, q, hidden)
	defer t.noteUntimed(untimed)

	switch what := units.Many(matched, "message"); {
	case matched == 0 && filtered:
		t.Note("%s: no message matches, of %s", q.Name(), units.Thousands(depth))
	case matched == 0:
		t.Note("%s: no messages", q.Name())
	case listed < matched:
		t.Note("%s: %s of %s; --limit lists more", q.Name(), units.Thousands(listed), what)
	case !t.JSON && filtered:
		t.Note("%s: %s of %s", q.Name(), what, units.Thousands(max(depth, matched)))
	case !t.JSON:
		t.Note("%s: %s", q.Name(), what)
	}

	return nil
}

// How much of a text a list has room for: a single long one would pad the cells of all other rows.
const (
	maxErrorCell = 80
	maxNameCell  = 64
)

// listHeader is the header of the table whose lines row makes.
var listHeader = []string{"#", "uuid", "age", "reason", "calls", "replays", "handler/topic", "error"}

func row(l dlq.DeadLetter, now time.Time) []string {
	text := l.Error
	if l.IsParked() {
		text = "(parked) " + text
	}
	if l.Unreadable != "" {
		text = "(headers that cannot be read: " + l.Unreadable + ") " + text
	}

	return []string{
		strconv.Itoa(l.Position), shorten(cmp.Or(l.UUID, "-"), maxNameCell), since(l.LastFailure, now),
		cmp.Or(string(l.Reason), "-"),
		strconv.Itoa(l.Calls), strconv.Itoa(l.Replays), shorten(handlerAndTopic(l), maxNameCell),
		shorten(text, maxErrorCell),
	}
}

func handlerAndTopic(l dlq.DeadLetter) string {
	if l.Handler == "" && l.Topic == "" {
		return "-"
	}
	return cmp.Or(l.Handler, "-") + "/" + cmp.Or(l.Topic, "-")
}

// shorten gives the first line, and not too much of it.
func shorten(text string, runes int) string {
	line, _, more := strings.Cut(text, "\n")
	if r := []rune(line); len(r) > runes {
		return string(r[:runes]) + "…"
	}
	if more {
		return line + " …"
	}
	return line
}
