package dlqcmd

import (
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func checkCanary(cmd *cobra.Command, c *dlq.Canary) error {
	switch {
	case c.Messages == 0 && (cmd.Flags().Changed("watch") || cmd.Flags().Changed("tolerate")):
		return cli.Usage("--watch and --tolerate need --canary, the number of messages to send first")
	case c.Messages == 0:
		*c = dlq.Canary{}
	case c.Watch == 0:
		return cli.Usage("--watch: must be more than 0, got %s", c.Watch)
	}
	return nil
}

// tellOfCanary says on a terminal what becomes of it: retries can take long.
func (t *tool) tellOfCanary(c *dlq.Canary) {
	if t.ErrIsTerminal && !t.JSON {
		c.OnChange = func(r dlq.CanaryReport) { t.Note("Canary: %s", r) }
	}
}

// canaryLine says what has become of a canary.
func canaryLine(r dlq.CanaryReport) string {
	switch {
	case r.Stopped != "":
		return "Canary: " + r.Stopped + ". The other messages were not sent"
	case !r.Watched:
		return "Canary: not watched, because no other messages were to follow"
	default:
		return "Canary: " + r.String()
	}
}
