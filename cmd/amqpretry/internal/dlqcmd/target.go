package dlqcmd

import (
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

const allowDropHelp = "send messages although the target would drop some"

// printWarnings says what the target would do.
func (t *tool) printWarnings(r dlq.Report) error {
	for _, warning := range r.Warnings {
		if err := t.printSafe("Warning: %s", warning); err != nil {
			return err
		}
	}

	return nil
}

func (t *tool) printDropped(r dlq.Report) error {
	if r.Dropped == 0 {
		return nil
	}

	return t.printSafe("Warning: %s of them are not in %s, although it had no consumer: it has a limit, or somebody "+
		"has taken them", units.Thousands(r.Dropped), r.Target.Queue)
}
