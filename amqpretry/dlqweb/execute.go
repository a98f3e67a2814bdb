package dlqweb

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// isStop tells an error that says no more than that somebody has stopped the run.
func isStop(err error) bool { return errors.Is(err, errStopped) || errors.Is(err, context.Canceled) }

// do does a run, or counts what it would do. Looks of the queue make room for it; who else works on
// the queue is waited for.
func (k *runs) do(ctx context.Context, r *running, filter dlq.Filter, dry bool) (dlq.Report, error) {
	now := r.snapshot()
	defer k.console.looks.hold(now.Queue)()
	client, err := k.console.client(ctx)
	if err != nil {
		return dlq.Report{}, err
	}
	e := &execution{runs: k, r: r, run: now, dry: dry, queue: client.DeadLetterQueue(now.Queue, now.MainQueue),
		filter: k.console.asShown(filter)}
	if !dry && now.Kind != kindImport {
		e.limit, e.filter = now.Most(), r.selection.filter()
	}
	if !dry && now.Kind.takes() {
		undo, err := k.journal.newFile(now.ID, fileUndo)
		if err != nil {
			return dlq.Report{}, err
		}
		defer func() { _ = undo.Close() }() // it is synced by then
		e.undo = undo
	}

	for began := time.Now(); ; {
		report, err := e.once(ctx)
		var busy *dlq.BusyError
		if !errors.As(err, &busy) || report.Seen > 0 || time.Since(began) > mostBusy {
			return report, err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return report, context.Cause(ctx)
		}
	}
}

// mostBusy is how long a run waits for somebody else who works on the queue.
const (
	mostBusy  = 2 * time.Minute
	busyPause = 200 * time.Millisecond
)

// once does it, as far as the queue is free.
func (e *execution) once(ctx context.Context) (dlq.Report, error) {
	now := e.run
	filter := e.filter
	if e.dry {
		e.r.selection = nil
		at := time.Now()
		filter = dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
			matches := e.filter.Matches(l, at)
			if matches && now.Kind != kindImport {
				e.r.selection = append(e.r.selection, identity(l))
			}
			return matches
		}}
	}
	switch now.Kind {
	case kindReplay:
		return e.replay(ctx, filter)
	case kindMove:
		return e.queue.Move(ctx, dlq.MoveOptions{Filter: filter, To: now.To, Limit: e.limit, Rate: now.Rate,
			DryRun: e.dry, Undo: e.undo, Progress: e.progress, AllowDrop: now.AllowDrop})
	case kindPurge:
		return e.queue.Purge(ctx, dlq.PurgeOptions{Filter: filter, Limit: e.limit, DryRun: e.dry, Undo: e.undo,
			Progress: e.progress})
	case kindExport:
		return e.export(ctx, filter)
	default:
		return e.put(ctx)
	}
}

// execution is a run that goes on.
type execution struct {
	runs   *runs
	r      *running
	run    Run
	dry    bool
	queue  *dlq.Queue
	filter dlq.Filter
	limit  int
	undo   io.Writer
}

func (e *execution) progress(p dlq.Progress) {
	e.runs.change(e.r, false, func(r *Run) { r.Total, r.Seen, r.Matched, r.Done = p.Total, p.Seen, p.Matched, p.Done })
}

func (e *execution) replay(ctx context.Context, filter dlq.Filter) (dlq.Report, error) {
	options := dlq.ReplayOptions{Filter: filter, To: e.run.To, Limit: e.limit, Rate: e.run.Rate,
		Foreign: e.run.Foreign, AllowDrop: e.run.AllowDrop, By: string(e.run.By), DryRun: e.dry, Undo: e.undo,
		Progress: e.progress,
		Canary: dlq.Canary{Messages: e.run.First, Tolerate: e.run.Tolerate, OnChange: func(c dlq.CanaryReport) {
			e.runs.change(e.r, false, func(r *Run) { r.Canary = canaryOf(c) })
		}}}
	if e.run.Edit != nil {
		options.Edit = func(m *amqp091.Publishing) error { return e.run.Edit.apply(m) }
	}
	report, err := e.queue.Replay(ctx, options)
	e.runs.change(e.r, false, func(r *Run) {
		if e.dry {
			return
		}
		r.Replay = report.Run
		if e.run.First > 0 {
			r.Canary = canaryOf(report.Canary)
		}
	})
	if err == nil && report.EditError != nil {
		err = report.EditError
	}

	return report.Report, err
}

func (e *execution) export(ctx context.Context, filter dlq.Filter) (dlq.Report, error) {
	if e.dry {
		return e.queue.Export(ctx, io.Discard, dlq.ExportOptions{Filter: filter, Progress: e.progress})
	}
	file, err := e.runs.journal.newFileAgain(e.run.ID, fileExport)
	if err != nil {
		return dlq.Report{}, err
	}
	defer func() { _ = file.Close() }()
	var report dlq.Report
	if e.runs.console.config.Redact == nil {
		report, err = e.queue.Export(ctx, file, dlq.ExportOptions{Filter: filter, Limit: e.limit,
			Progress: e.progress})
	} else {
		report, err = e.exportRedacted(ctx, filter, file)
	}

	return report, errors.Join(err, file.Sync())
}

// exportRedacted writes what may be shown, one object a line.
func (e *execution) exportRedacted(ctx context.Context, filter dlq.Filter,
	file *os.File,
) (report dlq.Report, err error) {
	out := bufio.NewWriter(file)
	defer func() { err = errors.Join(err, out.Flush()) }()
	report.Total = e.run.Plan.Total
	for l, err := range e.queue.Browse(ctx, filter) {
		if err != nil {
			return report, err
		}
		if l.Unreadable != "" {
			continue
		}
		line, err := json.Marshal(e.runs.console.redacted(&l))
		if err != nil {
			return report, err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return report, err
		}
		report.Seen = l.Position
		report.Matched++
		report.Done++
		e.progress(report.Progress)
		if report.Done == e.limit {
			break
		}
	}

	return report, nil
}

// put imports a file: one that was given, or the undo file of a run.
func (e *execution) put(ctx context.Context) (dlq.Report, error) {
	id, name := e.run.ID, fileImport
	if e.run.UndoOf != "" {
		id, name = e.run.UndoOf, fileUndo
	}
	file, err := e.runs.open(id, name)
	if err != nil {
		return dlq.Report{}, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return dlq.Report{}, err
	}
	end := info.Size()
	if e.run.UndoOf != "" { // who was killed has left a part of a line, whose message is in the queue
		if end, err = wholeLines(file); err != nil {
			return dlq.Report{}, err
		}
	}
	whole := io.NewSectionReader(file, 0, end)
	filter, err := e.missing(ctx)
	if err != nil {
		return dlq.Report{}, err
	}

	report, err := e.queue.Import(ctx, whole, dlq.ImportOptions{Filter: filter, DryRun: e.dry, Progress: e.progress,
		AllowDrop: e.run.AllowDrop,
		Imported: func(lines int) error {
			e.runs.change(e.r, false, func(r *Run) {
				if !e.dry {
					r.Lines = lines
				}
			})
			return nil
		}})
	e.runs.change(e.r, false, func(r *Run) { r.Truncated = report.Truncated })
	if err == nil && !e.dry && e.run.UndoOf != "" {
		if undone, failed := e.runs.find(e.run.UndoOf); failed == nil {
			e.runs.change(undone, true, func(r *Run) { r.Undone = e.run.ID })
		}
	}

	return report, err
}

// missing selects those of a file that are not in the dead-letter queue. In it are those that an
// import before has put there, those that have failed again since they were replayed, and those
// that a run had sent and not yet taken out when it ended.
func (e *execution) missing(ctx context.Context) (dlq.Filter, error) {
	there := &present{newest: map[uint64]life{}, all: map[uint64]bool{}, undo: e.run.UndoOf != ""}
	now := time.Now()
	for l, err := range e.queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return dlq.Filter{}, err
		}
		there.add(&l)
	}

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool { return !there.has(l) && e.filter.Matches(l, now) }}, nil
}
