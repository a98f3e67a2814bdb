package dlqcmd

import (
	"context"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// noteUnseenNow asks for the consumers when the one of the command is gone.
func (t *tool) noteUnseenNow(ctx context.Context, q queue, hidden int) {
	consumers, _ := q.Consumers(ctx) // what is listed stays right without
	t.noteUnseen(q, consumers, hidden)
}

// noteUnseen says which messages a browse did not see: those that other consumers hold, and those
// that the broker does.
func (t *tool) noteUnseen(q runner, consumers, hidden int) {
	if consumers > 0 {
		t.Note("%s: it has %s; the messages that are delivered and not acknowledged are not visible", q.Name(),
			units.Many(consumers, "other consumer"))
	}
	switch {
	case hidden < 0:
		t.Note("%s: this broker does not count the messages that it holds until their x-opt-delivery-time; to count "+
			"them, set %s, or --management-url",
			q.Name(), cli.EnvManagement)
	case hidden > 0:
		t.Note("%s: %s more, which the broker holds until their x-opt-delivery-time; they are not visible before",
			q.Name(), units.Many(hidden, "message"))
	}
}

// noteUntimed says how many messages a filter leaves out for their missing time.
func (t *tool) noteUntimed(n int) {
	if n == 0 {
		return
	}
	tell, them := "tell", "them"
	if n == 1 {
		tell, them = "tells", "it"
	}
	t.Note("%s %s no time of failure: --older-than and --newer-than leave %s out", units.Many(n, "message"), tell, them)
}
