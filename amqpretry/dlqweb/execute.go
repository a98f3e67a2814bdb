package dlqweb

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// isStop tells an error that says no more than that somebody has stopped the run.
func isStop(err error) bool { return errors.Is(err, errStopped) || errors.Is(err, context.Canceled) }

// execution is a run that goes on, or the count of what it would do.
type execution struct {
	runs  *runs
	r     *running
	run   Run
	dry   bool
	queue *dlq.Queue
	waits *dlq.Waits // nil for dead letters
	plan  dlq.Plan
}

// subject is what a run is about: dead letters or messages that wait.
func (e *execution) subject() interface {
	Plan(ctx context.Context, plan dlq.Plan) (dlq.Plan, error)
	Run(ctx context.Context, plan dlq.Plan) (dlq.Report, error)
} {
	if e.waits != nil {
		return e.waits
	}

	return e.queue
}

// do does a run, or counts what it would do. Who else reads the queue, or works on it, is waited
// for.
func (k *runs) do(ctx context.Context, r *running, plan dlq.Plan, dry bool) (dlq.Report, error) {
	now := r.snapshot()
	if !dry || now.Snapshot == "" || k.console.config.Redact != nil { // it reads the queue: see count
		release, err := k.console.snapshots.hold(ctx, now.target(), func() {
			k.change(r, false, func(run *Run) { run.Waits = waitsForRead })
		})
		k.change(r, false, func(run *Run) { run.Waits = "" })
		if err != nil {
			return dlq.Report{}, err
		}
		defer release()
	}
	client, err := k.console.client(ctx)
	if err != nil {
		return dlq.Report{}, err
	}
	e := &execution{runs: k, r: r, run: now, dry: dry, queue: client.DeadLetterQueue(now.Queue, now.MainQueue),
		plan: plan}
	if now.OfWaits() {
		if e.waits, err = k.console.waits(ctx, now.target()); err != nil {
			return dlq.Report{}, err
		}
	}
	e.plan.By, e.plan.Progress = string(now.By), e.progress
	e.plan.OnChange = func(c dlq.CanaryReport) { k.change(r, false, func(run *Run) { run.Canary = &c }) }
	if !dry && now.takes() {
		undo, err := k.journal.newFile(now.ID, fileUndo)
		if err != nil {
			return dlq.Report{}, err
		}
		defer func() { _ = undo.Close() }() // it is synced by then
		e.plan.Undo = undo
	}

	for began := time.Now(); ; {
		report, err := e.once(ctx)
		if report.Left == nil {
			report.Left = []dlq.Left{}
		}
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

// waitsForRead is why a run does not begin yet.
const waitsForRead = "The queue is being read: the run begins when that has ended."

// mostBusy is how long a run waits for somebody else who works on the queue.
const (
	mostBusy  = 2 * time.Minute
	busyPause = 200 * time.Millisecond
)

// once does it, as far as the queue is free.
func (e *execution) once(ctx context.Context) (dlq.Report, error) {
	switch {
	case e.run.puts():
		return e.put(ctx)
	case e.dry:
		plan, err := e.count(ctx)
		if e.r.plan = plan; err == nil {
			err = plan.Check()
		}

		return *plan.Counted, err
	case e.run.Kind == kindExport:
		return e.export(ctx)
	}
	report, err := e.subject().Run(ctx, e.plan)
	if e.run.Messages > 0 {
		e.runs.change(e.r, false, func(r *Run) { r.Canary = &report.Canary })
	}
	if err == nil {
		err = report.EditError
	}

	return report, err
}

// count reads the queue, or takes what a snapshot has.
func (e *execution) count(ctx context.Context) (dlq.Plan, error) {
	c := e.runs.console
	if e.run.Snapshot == "" || c.config.Redact != nil { // whose snapshots have other messages
		e.plan.Filter = c.asShown(e.plan.Filter)
		return e.subject().Plan(ctx, e.plan)
	}
	none := e.plan
	none.Counted = &dlq.Report{}
	now := c.snapshots.view(e.run.target(), wantNothing, "")
	if now.ID() != e.run.Snapshot {
		return none, errors.New("the queue was read again since: open it, and choose the messages once more")
	}

	return countIn(ctx, e.queue, e.run.wish, e.plan, now)
}

// countIn counts what a plan would do with what a snapshot has.
func countIn(ctx context.Context, q *dlq.Queue, w wish, plan dlq.Plan, now seen) (dlq.Plan, error) {
	if w.RestOf != "" { // which no filter of a view finds
		return q.PlanOf(ctx, plan, now.Read, now.All(now.Everything()))
	}
	found, err := now.Find(ctx, w.Filter.Encode(), plan.Filter)
	if err != nil {
		return dlq.Plan{Counted: &dlq.Report{}}, err
	}
	plan.Filter = dlq.Filter{} // found has what matches

	counted, err := q.PlanOf(ctx, plan, now.Read, now.All(found))
	counted.Counted.UntimedLeftOut = found.UntimedLeftOut

	return counted, err
}

func (e *execution) progress(p dlq.Progress) {
	e.runs.change(e.r, false, func(r *Run) {
		r.Progress = p
		e.r.pace.saw(time.Now(), p.Done)
	})
}

func (e *execution) export(ctx context.Context) (dlq.Report, error) {
	file, err := e.runs.journal.newFileAgain(e.run.ID, fileExport)
	if err != nil {
		return dlq.Report{}, err
	}
	defer func() { _ = file.Close() }()
	var report dlq.Report
	if e.runs.console.config.Redact == nil {
		report, err = e.queue.Export(ctx, file, dlq.ExportOptions{Filter: e.plan.Filter, Limit: e.plan.Most(),
			Progress: e.progress})
	} else {
		report, err = e.exportRedacted(ctx, file)
	}

	return report, errors.Join(err, file.Sync())
}

// exportRedacted writes what may be shown, one object a line.
func (e *execution) exportRedacted(ctx context.Context, file *os.File) (report dlq.Report, err error) {
	out := bufio.NewWriter(file)
	defer func() { err = errors.Join(err, out.Flush()) }()
	report.Total = e.run.Plan.Total
	for l, err := range e.queue.Browse(ctx, e.plan.Filter) {
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
		if report.Done == e.plan.Most() {
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

	options := dlq.ImportOptions{
		Filter: e.runs.console.asShown(e.plan.Filter), OnlyMissing: true, FailedAgain: e.run.UndoOf != "",
		DryRun: e.dry, Progress: e.progress, AllowDrop: e.run.AllowDrop}
	if !e.dry {
		options.Imported = func(lines int) error {
			e.runs.change(e.r, false, func(r *Run) { r.Lines = lines })
			return nil
		}
	}
	put := e.queue.Import
	if e.waits != nil { // where nobody can see which are missing
		put, options.Skip = e.waits.Import, e.runs.restored(e.run.UndoOf)
	}
	report, err := put(ctx, io.NewSectionReader(file, 0, end), options)
	if e.dry {
		if e.r.plan.Counted = &report; err == nil {
			err = e.r.plan.Check()
		}
	} else if err == nil && e.run.UndoOf != "" {
		if undone, failed := e.runs.find(e.run.UndoOf); failed == nil {
			e.runs.change(undone, true, func(r *Run) { r.Undone = e.run.ID })
		}
	}

	return report, err
}
