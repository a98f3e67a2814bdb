package dlq

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
)

// Move moves dead letters to another queue, as they are: a dead letter stays one, with its headers.
func (q *Queue) Move(ctx context.Context, options MoveOptions) (_ Report, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
	err = errors.Join(options.Filter.Validate(), checkRun("MoveOptions", options.Limit, options.Rate))
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

	d := &drain{
		queue: q, filter: options.Filter, limit: options.Limit, rate: options.Rate, dryRun: options.DryRun,
		undo:  options.Undo,
		taken: Taken{By: "move", To: options.To, At: time.Now()}, progress: options.Progress,
		settled: options.Settled, target: options.To,
		copyOf: func(f *found, frame int) (amqp091.Publishing, LeftReason) {
			return fitting(codec.MovedOf(&f.delivery, q.mainQueue, frame))
		},
	}
	if err := r.guard(ctx, d, options.AllowDrop); err != nil {
		return Report{Target: r.target}, err
	}

	return r.drain(ctx, d)
}
