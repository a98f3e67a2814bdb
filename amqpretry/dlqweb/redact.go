package dlqweb

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// redacted is the dead letter as it may be shown. It shares nothing with the one that is sent.
func (c *Console) redacted(l *dlq.DeadLetter) *dlq.DeadLetter {
	if c.config.Redact == nil {
		return l
	}
	shown := *l
	shown.History, shown.Edits = slices.Clone(l.History), slices.Clone(l.Edits)
	for i, e := range shown.Edits {
		shown.Edits[i].Headers, shown.Edits[i].Properties = maps.Clone(e.Headers), maps.Clone(e.Properties)
	}
	shown.Message.Headers, shown.Message.Body = codec.CloneTable(l.Message.Headers), slices.Clone(l.Message.Body)
	for name := range shown.Message.Headers {
		if header.IsPoison(name) || name == header.Error || name == header.History || name == header.Edits {
			delete(shown.Message.Headers, name) // they say what Error, History and Edits say
		}
	}
	if !c.redact(&shown) {
		shown.Error, shown.History, shown.Edits = notRedacted, nil, nil
		shown.Message = amqp091.Publishing{Headers: amqp091.Table{}}
	}

	return &shown
}

// notRedacted stands for all that a redaction that has panicked may have left as it was.
const notRedacted = "(Config.Redact panicked: nothing is shown)"

// redact tells whether the redaction came to its end.
func (c *Console) redact(shown *dlq.DeadLetter) (ended bool) {
	defer func() {
		if why := recover(); why != nil {
			c.config.Logger.Error("Config.Redact panicked", fmt.Errorf("%v", why),
				watermill.LogFields{"message_uuid": shown.UUID})
		}
	}()
	c.config.Redact(shown)

	return true
}

// asShown makes a filter compare what is shown, so that nobody finds out by searching what was
// redacted.
func (c *Console) asShown(f dlq.Filter) dlq.Filter {
	if c.config.Redact == nil {
		return f
	}
	now := time.Now()

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool { return f.Matches(c.redacted(l), now) }}
}
