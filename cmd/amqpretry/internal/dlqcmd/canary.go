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
	case c.Messages < 0:
		return cli.Usage("--canary: must be 0 or more, got %d", c.Messages)
	case c.Messages == 0:
		*c = dlq.Canary{}
	case c.Watch <= 0:
		return cli.Usage("--watch: must be more than 0, got %s", c.Watch)
	case c.Tolerate < 0 || c.Tolerate >= c.Messages:
		return cli.Usage("--tolerate: must be from 0 to less than --canary (%d), got %d", c.Messages, c.Tolerate)
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

// canaryReport is for programs.
type canaryReport struct {
	Sent         int    `json:"sent"`
	Handled      int    `json:"handled"`
	DeadLettered int    `json:"dead_lettered"`
	Dropped      int    `json:"dropped"`
	Unresolved   int    `json:"unresolved"`
	Retried      int    `json:"retried"`
	Watched      bool   `json:"watched"`
	Stopped      string `json:"stopped,omitempty"`
}

func canaryResult(r *dlq.CanaryReport) *canaryReport {
	if r == nil {
		return nil
	}
	return &canaryReport{r.Sent, r.Handled, r.DeadLettered, r.Dropped, r.Unresolved(), r.Retried, r.Watched, r.Stopped}
}
