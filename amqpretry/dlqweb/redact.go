package dlqweb

import (
	"maps"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// redacted is the dead letter as it may be shown.
func (c *Console) redacted(l *dlq.DeadLetter) *dlq.DeadLetter {
	if c.config.Redact == nil {
		return l
	}
	shown := *l
	shown.History, shown.Edits = slices.Clone(l.History), slices.Clone(l.Edits)
	shown.Message.Headers, shown.Message.Body = maps.Clone(l.Message.Headers), slices.Clone(l.Message.Body)
	for name := range shown.Message.Headers {
		if header.IsPoison(name) || name == header.Error || name == header.History || name == header.Edits {
			delete(shown.Message.Headers, name) // they say what Error, History and Edits say
		}
	}
	c.config.Redact(&shown)

	return &shown
}

// asShown makes a filter compare what is shown, so that nobody finds out by searching what was redacted.
func (c *Console) asShown(f dlq.Filter) dlq.Filter {
	if c.config.Redact == nil {
		return f
	}

	now := time.Now()

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool { return f.Matches(c.redacted(l), now) }}
}
