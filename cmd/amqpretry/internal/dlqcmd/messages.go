package dlqcmd

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// messagesHelp describes the argument MESSAGE.
const messagesHelp = `MESSAGE is a UUID, or a position in the queue: the # of "dlq list". A position holds only as long as the
queue does not change. For a UUID of up to 9 digits use --uuid.`

// messagesToTake describes it for the commands that take messages out of the queue.
const messagesToTake = messagesHelp + ` So the command
shows the messages at positions before it asks for confirmation, and takes no others; with --yes it
needs UUIDs.`

// messages are the messages that a command line names.
type messages struct {
	positions []int
	uuids     []string
}

// position is a text that names a position. Longer numbers are UUIDs: no queue has so many
// messages.
var position = regexp.MustCompile(`^[0-9]{1,9}$`)

// parseMessages reads the arguments MESSAGE.
func parseMessages(names []string) (m messages, err error) {
	for _, name := range names {
		switch {
		case name == "":
			return m, cli.Usage("MESSAGE is empty: wanted a UUID, or a position, the # of `amqpretry dlq list`")
		case position.MatchString(name):
			n, err := strconv.Atoi(name)
			if err != nil || n == 0 {
				return m, cli.Usage("MESSAGE: the oldest message is at position 1, got %s", name)
			}
			m.positions = append(m.positions, n)
		default:
			m.uuids = append(m.uuids, name)
		}
	}

	return m, nil
}

// given tells whether the command line names messages.
func (m messages) given() bool { return len(m.positions)+len(m.uuids) > 0 }

// checkYes refuses positions where nobody sees which messages they are.
func (m messages) checkYes(yes bool) error {
	if !yes || len(m.positions) == 0 {
		return nil
	}
	n := m.positions[0]

	return cli.Usage("--yes: another message may be at position %d by now; pass the UUID of the message, or omit "+
		"--yes to see it first (--uuid %d for a UUID that is a number)", n, n)
}

// find gives the messages that are named, in the order of the queue. Each name must have one.
func (t *tool) find(ctx context.Context, q queue, m messages) ([]dlq.DeadLetter, error) {
	depth, _, err := q.Ready(ctx)
	if err != nil {
		return nil, err
	}
	bar := t.Progress("find the messages in "+q.Name(), depth)
	defer bar.Close()
	var found []dlq.DeadLetter
	seen, last := 0, slices.Max(append(m.positions, 0))
	for l, err := range q.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return nil, err
		}
		seen++
		bar.Set(l.Position)
		if slices.Contains(m.positions, l.Position) || l.UUID != "" && slices.Contains(m.uuids, l.UUID) {
			found = append(found, l)
		}
		if l.Position >= last && len(m.uuids) == 0 {
			break
		}
	}
	for _, n := range m.positions {
		if !slices.ContainsFunc(found, func(l dlq.DeadLetter) bool { return l.Position == n }) {
			return nil, fmt.Errorf("dead-letter queue %q has no message at position %s: %s are visible", q.Name(),
				units.Thousands(n), units.Thousands(seen))
		}
	}
	for _, uuid := range m.uuids {
		if !slices.ContainsFunc(found, func(l dlq.DeadLetter) bool { return l.UUID == uuid }) {
			return nil, &dlq.NotFoundError{Queue: q.Name(), UUID: uuid, Seen: seen}
		}
	}

	return found, nil
}

// choose narrows a filter to the messages that are named, and gives these; none if no message is
// named.
func (t *tool) choose(ctx context.Context, q queue, m messages, filter dlq.Filter) (found []dlq.DeadLetter,
	_ dlq.Filter, err error) {
	if !m.given() {
		return nil, filter, nil
	}
	if found, err = t.find(ctx, q, m); err == nil {
		filter.Where = only(found...)
	}

	return found, filter, err
}

// only matches the messages that were seen, each one once in a pass over the queue: neither those
// that have their positions by now nor further copies of them.
func only(seen ...dlq.DeadLetter) func(*dlq.DeadLetter) bool {
	var left []dlq.DeadLetter
	last := 0

	return func(l *dlq.DeadLetter) bool {
		if l.Position <= last || left == nil { // another pass
			left = slices.Clone(seen)
		}
		last = l.Position
		i := slices.IndexFunc(left, func(s dlq.DeadLetter) bool { return same(l, s) })
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)

		return true
	}
}

// same tells whether it is the message that was seen, by everything that it has.
func same(l *dlq.DeadLetter, seen dlq.DeadLetter) bool {
	return l.UUID == seen.UUID && bytes.Equal(l.Message.Body, seen.Message.Body) &&
		reflect.DeepEqual(l.Message, seen.Message) && l.CameBy == seen.CameBy
}
