package publish

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// defaultTimeout is what [Options.Timeout] is when it is 0.
const defaultTimeout = 30 * time.Second

// Unroutable says what happens to messages that no queue gets.
type Unroutable string

const (
	// UnroutableFail makes them an error, ErrUnroutable. The default.
	UnroutableFail Unroutable = "fail"
	// UnroutableIgnore takes them for published, as for events that nobody has subscribed to yet.
	UnroutableIgnore Unroutable = "ignore"
)

// Options say how to publish. The zero value is useful.
type Options struct {
	// Timeout is how long Publish tries until the broker has confirmed the messages: while it is not reachable, refuses
	// them because a queue is full, or blocks the connection because of an alarm. The context of a message can end it
	// earlier, unless it has ended before Publish is called, as Watermill's Timeout leaves it. Publish returns later only
	// while a message is being written on a slow line. Calls may take up to a hundredth longer. Defaults to 30s.
	Timeout time.Duration

	// Unroutable says what happens to messages that no queue gets. Defaults to UnroutableFail.
	Unroutable Unroutable
}

// WithDefaults returns a copy in which nothing is left out.
func (o Options) WithDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Unroutable = cmp.Or(o.Unroutable, UnroutableFail)

	return o
}

// Validate reports all problems in one error, as joined *config.FieldErrors.
func (o Options) Validate() error {
	var errs []error
	if o.Timeout < 0 {
		errs = append(errs, &config.FieldError{Path: "Timeout", Problem: "negative",
			Wanted: "more than 0, or left out for " + defaultTimeout.String(), Found: o.Timeout.String()})
	}
	switch o.Unroutable {
	case "", UnroutableFail, UnroutableIgnore:
	default:
		errs = append(errs, &config.FieldError{Path: "Unroutable", Problem: "unknown",
			Wanted: `"fail" or "ignore"`, Found: strconv.Quote(string(o.Unroutable))})
	}

	return errors.Join(errs...)
}
