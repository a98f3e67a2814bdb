package dlqcmd

import (
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// noteHidden says of which messages a browse knows nothing.
func (t *tool) noteHidden(q queue, hidden int) {
	switch {
	case hidden == dlq.HiddenUnknown:
		t.Note("%s: this broker does not count the messages that it holds until their x-opt-delivery-time; to count "+
			"them, set %s, or --management-url",
			q.Name(), cli.EnvManagement)
	case hidden > 0:
		t.Note("%s: %s more, which the broker holds until their x-opt-delivery-time; they are not visible before",
			q.Name(), units.Many(hidden, "message"))
	}
}
