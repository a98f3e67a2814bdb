package dlq

import (
	"context"
	"errors"
	"time"
)

// Purge deletes dead letters, one by one and no other: what comes meanwhile stays. With an undo
// file each is deleted only when that has it.
func (q *Queue) Purge(ctx context.Context, options PurgeOptions) (_ Report, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
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
		progress: options.Progress, settled: options.Settled,
		taken: Taken{By: "purge", At: time.Now()},
	})
}
