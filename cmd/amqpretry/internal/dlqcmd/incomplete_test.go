package dlqcmd

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// Where others take messages at the same time, what could be seen is there, and that it is not all
// is said.
func TestSomeCouldNotBeSeen(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(3)...)
	f.missed = 2
	for _, test := range []struct{ args, shows string }{
		{"stat orders", "messages    3"}, {"stat orders --json", `"seen": 3`}, {"list orders", "uuid-2"},
		{"export orders", `"uuid":"uuid-2"`}, {"export orders -o f.jsonl --json", `"done": 3`},
	} {
		code, out, errs := f.run(t, nil, strings.Fields(test.args)...)
		assert.Equal(t, cli.ExitIncomplete, code, test.args)
		assert.Contains(t, out, test.shows, test.args)
		assert.Contains(t, errs, "of 5 messages, 2 were not visible", test.args)
	}
	assert.Equal(t, 3, strings.Count(read(t, "f.jsonl"), "\n"))
}

// Held-back messages are not among those that can be listed, and are not left out either.
func TestListWithHeldBackMessages(t *testing.T) {
	f := orders()
	f.hidden = 5
	_, out, errs := f.run(t, nil, "list", "orders")
	assert.Empty(t, out)
	assert.Contains(t, errs, "orders.dlq: 5 messages more, which the broker holds until their x-opt-delivery-time")

	f = orders(deadLetters(12)...)
	f.hidden = 5
	_, _, errs = f.run(t, nil, "list", "orders", "--limit", "10")
	assert.Contains(t, errs, "orders.dlq: 10 of 12 messages; --limit lists more\norders.dlq: 5 messages more,")
	f.hidden = -1
	_, _, errs = f.run(t, nil, "list", "orders")
	assert.Contains(t, errs, "this broker does not count the messages that it holds")
}
