package dlqweb

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"os"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// isStop tells an error that says no more than that somebody has stopped the run.
func isStop(err error) bool { return errors.Is(err, errStopped) || errors.Is(err, context.Canceled) }

// do does a run, or counts what it would do.
func (k *runs) do(ctx context.Context, r *running, filter dlq.Filter, planned time.Time, dry bool) (dlq.Report, error) {
	now := r.snapshot()
	client, err := k.console.client(ctx)
	if err != nil {
		return dlq.Report{}, err
	}
	e := &execution{runs: k, r: r, run: now, dry: dry, queue: client.DeadLetterQueue(now.Queue, now.MainQueue)}
	e.filter = k.console.asShown(aged(filter, time.Since(planned)))
	if !dry && now.Kind != kindImport {
		e.limit = now.Most()
		e.filter = frozen(e.filter, now.Plan.Total)
	}
	if !dry && now.Kind.takes() {
		undo, err := k.journal.newFile(now.ID, fileUndo)
		if err != nil {
			return dlq.Report{}, err
		}
		defer func() { _ = undo.Close() }() // it is synced by then
		e.undo = undo
	}

	switch now.Kind {
	case kindReplay:
		return e.replay(ctx)
	case kindMove:
		return e.queue.Move(ctx, dlq.MoveOptions{Filter: e.filter, To: now.To, Limit: e.limit, Rate: now.Rate,
			DryRun: dry, Undo: e.undo, Progress: e.progress})
	case kindPurge:
		return e.queue.Purge(ctx, dlq.PurgeOptions{Filter: e.filter, Limit: e.limit, DryRun: dry, Undo: e.undo,
			Progress: e.progress})
	case kindExport:
		return e.export(ctx)
	default:
		return e.put(ctx)
	}
}

// aged keeps a filter about the same messages some time later.
func aged(f dlq.Filter, since time.Duration) dlq.Filter {
	if f.OlderThan > 0 {
		f.OlderThan += since
	}
	if f.NewerThan > 0 {
		f.NewerThan += since
	}

	return f
}

// frozen leaves out what has come since the messages were counted: it is behind them.
func frozen(f dlq.Filter, total int) dlq.Filter {
	now := time.Now()

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool { return l.Position <= total && f.Matches(l, now) }}
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

func (e *execution) replay(ctx context.Context) (dlq.Report, error) {
	options := dlq.ReplayOptions{Filter: e.filter, To: e.run.To, Limit: e.limit, Rate: e.run.Rate,
		Foreign: e.run.Foreign, By: string(e.run.By), DryRun: e.dry, Undo: e.undo, Progress: e.progress,
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

func (e *execution) export(ctx context.Context) (dlq.Report, error) {
	if e.dry {
		return e.queue.Export(ctx, io.Discard, dlq.ExportOptions{Filter: e.filter, Progress: e.progress})
	}
	file, err := e.runs.journal.newFile(e.run.ID, fileExport)
	if err != nil {
		return dlq.Report{}, err
	}
	defer func() { _ = file.Close() }()
	var report dlq.Report
	if e.runs.console.config.Redact == nil {
		report, err = e.queue.Export(ctx, file, dlq.ExportOptions{Filter: e.filter, Limit: e.limit,
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
	for l, err := range e.queue.Browse(ctx, e.filter) {
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
	end, err := wholeLines(file)
	if err != nil {
		return dlq.Report{}, err
	}
	whole := io.NewSectionReader(file, 0, end)
	filter, err := e.missing(ctx, whole)
	if err != nil {
		return dlq.Report{}, err
	}
	if _, err := whole.Seek(0, io.SeekStart); err != nil {
		return dlq.Report{}, err
	}

	report, err := e.queue.Import(ctx, whole, dlq.ImportOptions{Filter: filter, DryRun: e.dry, Progress: e.progress,
		Imported: func(lines int) error {
			e.runs.change(e.r, false, func(r *Run) {
				if !e.dry {
					r.Lines = lines
				}
			})
			return nil
		}})
	if err == nil && !e.dry && e.run.UndoOf != "" {
		if undone, failed := e.runs.find(e.run.UndoOf); failed == nil {
			e.runs.change(undone, true, func(r *Run) { r.Undone = e.run.ID })
		}
	}

	return report, err
}

// missing selects those of a file that are not in the dead-letter queue. In it are those that an import before has put
// there, those that have failed again since they were replayed, and those that a run had sent and not yet taken out when
// it ended.
func (e *execution) missing(ctx context.Context, lines io.Reader) (dlq.Filter, error) {
	there := map[uint64]int{}
	seed := maphash.MakeSeed()
	same := func(l *dlq.DeadLetter) uint64 {
		return maphash.Comparable(seed, [3]any{l.UUID, l.LastFailure.UnixMilli(), l.Replays})
	}
	again := func(l *dlq.DeadLetter) uint64 { return maphash.Comparable(seed, [2]any{l.UUID, "again"}) }

	replay := ""
	if e.run.UndoOf != "" {
		var err error
		if replay, err = replayOf(lines); err != nil {
			return dlq.Filter{}, err
		}
	}
	now := time.Now()
	for l, err := range e.queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return dlq.Filter{}, err
		}
		there[same(&l)]++
		if found, _ := l.Message.Headers[header.Replay].(string); replay != "" && found == replay {
			there[again(&l)]++
		}
	}

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		for _, key := range []uint64{same(l), again(l)} {
			if there[key] > 0 {
				there[key]--
				return false
			}
		}
		return e.filter.Matches(l, now)
	}}, nil
}

// replayOf is the run of a replay that has written an undo file.
func replayOf(undo io.Reader) (string, error) {
	line, err := bufio.NewReader(undo).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	var first struct {
		Taken struct {
			Run string `json:"run"`
		} `json:"taken"`
	}
	if len(line) == 0 {
		return "", nil
	}

	return first.Taken.Run, json.Unmarshal(line, &first)
}
