package publish

import (
	"cmp"
	"errors"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// defaultTimeout is what [Options.Timeout] is when it is 0.
const defaultTimeout = 30 * time.Second

// Options say how to publish. The zero value is useful.
type Options struct {
	// Timeout is how long Publish tries until the broker has confirmed the messages: while it is
	// not reachable, refuses them because a queue is full, or blocks the connection because of an
	// alarm. The context of a message can end it earlier, unless it has ended before Publish is
	// called, as Watermill's Timeout leaves it. Publish returns later only while a message is being
	// written on a slow line. Calls may take up to a hundredth longer. Defaults to 30s.
	Timeout time.Duration

	// IgnoreUnroutable takes messages that no queue gets for published, as for events that nobody
	// has subscribed to yet. Otherwise they are an error, ErrUnroutable.
	IgnoreUnroutable bool
}

// WithDefaults returns a copy in which nothing is left out.
func (o Options) WithDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)

	return o
}

// Validate reports all problems in one error, as joined *config.FieldErrors.
func (o Options) Validate() error {
	if o.Timeout < 0 {
		return errors.Join(&config.FieldError{Path: "Timeout", Problem: "negative",
			Wanted: "more than 0, or left out for " + defaultTimeout.String(), Found: o.Timeout.String()})
	}

	return nil
}
