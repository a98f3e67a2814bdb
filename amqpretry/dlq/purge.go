package dlq

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
)

// Purge deletes dead letters, one by one and no other: what comes meanwhile stays. With an undo file each is deleted
// only when that has it.
func (q *Queue) Purge(ctx context.Context, options PurgeOptions) (Report, error) {
	if err := errors.Join(options.Filter.Validate(), checkRun("PurgeOptions", options.Limit, 0)); err != nil {
		return Report{}, err
	}
	r, err := q.begin(ctx, "", options.DryRun)
	if err != nil {
		return Report{}, err
	}
	defer r.end(q.client)

	return r.drain(ctx, &drain{
		queue: q, filter: options.Filter, limit: options.Limit, dryRun: options.DryRun, undo: options.Undo,
		progress: options.Progress,
		taken:    Taken{By: "purge", At: time.Now()},
	})
}

// Move moves dead letters to another queue, as they are: a dead letter stays one, with its headers.
func (q *Queue) Move(ctx context.Context, options MoveOptions) (Report, error) {
	err := errors.Join(options.Filter.Validate(), checkRun("MoveOptions", options.Limit, options.Rate))
	if options.To == "" || options.To == q.name {
		err = errors.Join(err, &config.FieldError{Path: "MoveOptions.To", Wanted: "the name of another queue",
			Found: quoted(options.To)})
	}
	if err != nil {
		return Report{}, err
	}
	r, err := q.begin(ctx, options.To, options.DryRun)
	if err != nil {
		return Report{}, err
	}
	defer r.end(q.client)

	return r.drain(ctx, &drain{
		queue: q, filter: options.Filter, limit: options.Limit, rate: options.Rate, dryRun: options.DryRun,
		undo:  options.Undo,
		taken: Taken{By: "move", To: options.To, At: time.Now()}, progress: options.Progress, target: options.To,
		copyOf: func(f *found, frame int) (amqp091.Publishing, LeftReason) {
			return fitting(codec.MovedOf(&f.delivery, q.mainQueue, frame))
		},
	})
}

func fitting(p amqp091.Publishing, fits bool) (amqp091.Publishing, LeftReason) {
	if !fits {
		return p, LeftTooLarge
	}

	return p, ""
}

// checkRun checks what the options of all runs have.
func checkRun(options string, limit int, rate float64) error {
	var errs []error
	if limit < 0 {
		errs = append(errs, &config.FieldError{Path: options + ".Limit", Wanted: "0 (all) or more", Found: itoa(limit)})
	}
	if rate < 0 || rate != rate {
		errs = append(errs, &config.FieldError{Path: options + ".Rate", Wanted: "0 (no limit) or more messages a " +
			"second", Found: ftoa(rate)})
	}

	return errors.Join(errs...)
}
