package dlqcmd

import (
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

const allowDropHelp = "send messages although the target would drop some"

// targetReport is for programs what is known of the target of a run.
type targetReport struct {
	Target    *dlq.Target `json:"target,omitempty"`
	Warnings  []string    `json:"warnings,omitempty"`
	WouldDrop int         `json:"would_drop,omitempty"`
	Dropped   int         `json:"dropped,omitempty"`
}

// targetResult is about n messages that are sent.
func targetResult(r dlq.Report, n int) targetReport {
	return targetReport{r.Target, r.Target.Warnings(n, r.Bytes), r.Target.Excess(n, r.Bytes), r.Dropped}
}

// printWarnings says what the target would do to n messages, or to fewer with a limit; 0 means
// none.
func (t *tool) printWarnings(r dlq.Report, n, limit int) error {
	bytes := r.Bytes
	if limit > 0 && limit < n {
		n, bytes = limit, bytes*int64(limit)/int64(n)
	}
	for _, warning := range r.Target.Warnings(n, bytes) {
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
