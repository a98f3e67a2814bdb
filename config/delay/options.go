package delay

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"

	"github.com/amqpretry/watermill-retry/config"
)

// defaultPublishTimeout is what [Options.PublishTimeout] is when it is 0.
const defaultPublishTimeout = 30 * time.Second

// Options say how messages with a delay are published. The zero value is useful.
type Options struct {
	// Ladder is what the messages wait in. Defaults to config.ScheduleLadder, field by field: units
	// of 1s, and delays up to 3.1 years. A delay is rounded up to the unit. All services of a
	// virtual host that use the same ladder share it.
	Ladder config.Ladder

	// DefaultDelayGenerator gives a delay to messages that have none, neither in their metadata nor
	// in their context. It is that of Watermill's delay.PublisherConfig. Without it these messages
	// are published without a delay. Optional.
	DefaultDelayGenerator func(delay.DefaultDelayGeneratorParams) (delay.Delay, error)

	// PublishTimeout is how long Publish tries until the broker has confirmed the messages with a
	// delay: while it is not reachable, refuses them, or blocks the connection because of an alarm.
	// The context of a message can end it earlier, unless it has ended before Publish is called, as
	// Watermill's Timeout leaves it. Publish returns later only while a message is being written on
	// a slow line. Defaults to 30s.
	PublishTimeout time.Duration
}

// WithDefaults returns a copy in which nothing is left out but DefaultDelayGenerator.
func (o Options) WithDefaults() Options {
	o.Ladder = o.Ladder.Or(config.ScheduleLadder())
	o.PublishTimeout = cmp.Or(o.PublishTimeout, defaultPublishTimeout)

	return o
}

// Validate reports all problems in one error, as joined *config.FieldErrors.
func (o Options) Validate() error {
	errs := config.WithPath("Options.Ladder", o.Ladder.Or(config.ScheduleLadder()).Validate())
	if o.PublishTimeout < 0 {
		errs = append(errs, &config.FieldError{Path: "Options.PublishTimeout", Problem: "negative",
			Wanted: "more than 0, or left out for " + defaultPublishTimeout.String(), Found: o.PublishTimeout.String()})
	}

	return errors.Join(errs...)
}
