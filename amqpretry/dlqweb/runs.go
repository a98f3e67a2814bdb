package dlqweb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// runs are all that were asked for, and are done one at a time for each queue.
type runs struct {
	console *Console
	journal *journal // nil where the console only shows

	confirming sync.Mutex // one at a time, before mu

	mu  sync.Mutex
	all []*running // the oldest first
}

// running is a run with what it needs while it goes on.
type running struct {
	mu    sync.Mutex
	run   Run
	saved time.Time
	stop  context.CancelFunc
	// ready is when it was counted, and discarded why it is ended while it counts.
	ready     time.Time
	discarded string
	// who has confirmed it, or planned it, for the audit record of its end.
	who visitor
	// plan is what the dry run has counted; it belongs to one goroutine at a time.
	plan dlq.Plan
	// rest selects what was counted, after a run that has not done all of it.
	rest dlq.Filter
	pace pace
}

// errStopped ends a run that somebody has stopped.
var errStopped = errors.New("stopped")

// snapshot is the run as it is now.
func (r *running) snapshot() Run {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.run
}

// restore reads what is known of the runs of before. What was going on then has been interrupted.
func (k *runs) restore() error {
	if k.journal == nil {
		return nil
	}
	before, err := k.journal.load()
	if err != nil {
		return err
	}
	for _, r := range before {
		if !r.State.IsOver() {
			if r.State == stateCounting || r.State == stateReady {
				r.State = stateDiscarded
			} else {
				r.State = stateInterrupted
			}
			r.Ended, r.Waits = time.Now().UTC(), ""
			r.Undo = k.journal.has(r.ID, fileUndo)
			k.console.auditEnd(visitor{User: cmp.Or(r.ConfirmedBy, r.By)}, r)
			if err := k.journal.save(r); err != nil {
				return err
			}
		}
		k.all = append(k.all, &running{run: r})
	}

	return nil
}

// list gives the runs, the youngest first.
func (k *runs) list() []Run {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Run, 0, len(k.all))
	for _, r := range slices.Backward(k.all) {
		list = append(list, r.snapshot())
	}

	return list
}

func (k *runs) find(id string) (*running, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.all {
		if r.run.ID == id { // which never changes
			return r, nil
		}
	}

	return nil, notFound("This run")
}

// active tells whether a run changes this queue.
func (k *runs) active(queue string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	return k.busyWith(queue) != ""
}

// busyWith is the run that changes this queue now. The lock is held.
func (k *runs) busyWith(queue string) string {
	for _, r := range k.all {
		if now := r.snapshot(); now.Queue == queue && (now.State == stateRunning || now.State == stateStopping) {
			return now.ID
		}
	}

	return ""
}

// plan begins to count what a run would do. input is the file of an import.
func (k *runs) plan(w wish, plan dlq.Plan, who visitor, input io.Reader) (Run, error) {
	if k.journal == nil {
		return Run{}, &problem{Status: http.StatusNotFound, Title: "This console is read-only"}
	}
	k.mu.Lock()
	_, err := k.makeRoom(w, who.User) // before a file is read
	k.mu.Unlock()
	if err != nil {
		return Run{}, err
	}
	now, none := time.Now().UTC(), dlq.Report{Left: []dlq.Left{}}
	r := &running{plan: plan, who: who, run: Run{ID: newID(now), wish: w, State: stateCounting, By: who.User,
		Planned: now, Plan: none, Report: none}}
	if err := k.journal.create(r.run); err != nil {
		return Run{}, noFolder(err)
	}
	if input != nil {
		if err := k.keep(r.run.ID, input); err != nil {
			k.journal.remove(r.run.ID)
			return Run{}, err
		}
	}

	k.mu.Lock()
	victim, err := k.makeRoom(w, who.User)
	if err == nil {
		k.all = append(k.all, r)
		k.forgetOld()
	}
	k.mu.Unlock()
	if err != nil {
		k.journal.remove(r.run.ID)
		return Run{}, err
	}
	if victim != nil {
		k.discard(victim, fmt.Sprintf("more than %d runs were waiting to be confirmed: plan it again", mostPending))
	}
	k.start(r, func(ctx context.Context) { k.count(ctx, r, plan) })

	return r.snapshot(), nil
}

// forgetOld drops the oldest that are over; they stay in the folder. The lock is held.
func (k *runs) forgetOld() {
	for i := 0; i < len(k.all) && len(k.all) > mostRuns; {
		if k.all[i].snapshot().State.IsOver() {
			k.all = slices.Delete(k.all, i, i+1)
		} else {
			i++
		}
	}
}

// keep writes the file that is imported.
func (k *runs) keep(id string, input io.Reader) error {
	file, err := k.journal.newFile(id, fileImport)
	if err != nil {
		return noFolder(err)
	}
	from := &reading{Reader: input}
	_, err = io.Copy(file, from)
	if failed := errors.Join(file.Sync(), file.Close()); err == nil {
		err = failed
	}
	switch {
	case from.err != nil:
		return badForm(from.err)
	case err != nil:
		return noFolder(err)
	default:
		return nil
	}
}

// reading remembers why it could not be read.
type reading struct {
	io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}

	return n, err
}

// start does something of a run until it is stopped.
func (k *runs) start(r *running, do func(context.Context)) {
	ctx, cancel := context.WithCancelCause(k.console.ctx)
	r.mu.Lock()
	r.stop = func() { cancel(errStopped) }
	if r.run.StoppedBy != "" || r.discarded != "" { // before it has started
		r.stop()
	}
	r.mu.Unlock()
	k.console.running.Go(func() {
		defer cancel(nil)
		do(ctx)
	})
}

// change changes a run, and keeps it: at once where now is true, else now and then.
func (k *runs) change(r *running, now bool, change func(*Run)) {
	const often = time.Second
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.run)
	if !now && time.Since(r.saved) < often {
		return
	}
	r.saved = time.Now()
	if err := k.journal.save(r.run); err != nil {
		k.console.config.Logger.Error("Cannot store a run", err, watermill.LogFields{"run": r.run.ID})
	}
}

// blocked tells of the runs that the broker takes no messages, or takes them again.
func (k *runs) blocked(why error) {
	k.mu.Lock()
	all := slices.Clone(k.all)
	k.mu.Unlock()
	for _, r := range all {
		if r.snapshot().State != stateRunning {
			continue
		}
		k.change(r, false, func(run *Run) {
			run.Waits = ""
			if why != nil {
				run.Waits = "The broker takes no messages now: " + k.explain(why)
			}
		})
	}
}

// count does the dry run.
func (k *runs) count(ctx context.Context, r *running, plan dlq.Plan) {
	report, err := k.do(ctx, r, plan, true)
	k.log(r, err)
	k.change(r, true, func(run *Run) {
		run.Plan, run.Report, run.Waits = report, dlq.Report{Left: []dlq.Left{}, Truncated: report.Truncated}, ""
		switch {
		case run.StoppedBy != "", r.discarded != "", k.console.ctx.Err() != nil:
			run.State, run.Error = stateDiscarded, r.discarded
		case err == nil:
			run.State, r.ready = stateReady, time.Now()
		default:
			run.State, run.Error = stateFailed, k.explain(err)
		}
		if run.State != stateReady {
			run.Ended = time.Now().UTC()
			r.plan = dlq.Plan{}
			k.console.auditEnd(r.who, *run)
		}
	})
}

// confirm begins what was counted. It begins once: for whoever confirms it again it is the same
// run.
func (k *runs) confirm(ctx context.Context, id string, who visitor) (Run, error) {
	r, err := k.find(id)
	if err != nil {
		return Run{}, err
	}
	k.confirming.Lock()
	defer k.confirming.Unlock()

	now := r.snapshot()
	if err := who.mayDo(now); err != nil {
		return Run{}, err
	}
	if _, err := k.console.parse(&now.wish, who); err != nil {
		return Run{}, err
	}
	if done, again := isConfirmed(now); done {
		return now, again
	}
	if now.UndoOf != "" {
		if _, _, err := k.undoOf(now.UndoOf, who); err != nil {
			return Run{}, err
		}
	}
	k.mu.Lock()
	busy := k.busyWith(now.Queue)
	k.mu.Unlock()
	if busy != "" {
		return Run{}, &problem{Status: http.StatusConflict, Title: "Another run is working on this queue", Run: busy,
			Detail: "Only one run at a time can change a queue.", Do: "Wait for it, or stop it."}
	}
	if err := k.console.audit(ctx, who, actionConfirm, now); err != nil {
		return Run{}, err
	}

	r.mu.Lock()
	if r.run.State != stateReady { // somebody has discarded it
		defer r.mu.Unlock()
		return r.run, nil
	}
	before := r.run
	r.run.State, r.run.ConfirmedBy, r.run.Confirmed = stateRunning, who.User, time.Now().UTC()
	saved := k.journal.save(r.run)
	if saved != nil {
		failed := before
		failed.State, failed.Error = stateFailed, k.explain(saved)
		k.console.auditEnd(who, failed)
		r.run = before
	} else {
		r.who = who
	}
	confirmed := r.run
	r.mu.Unlock()
	if saved != nil {
		return Run{}, noFolder(saved)
	}
	k.start(r, func(ctx context.Context) { k.execute(ctx, r) })

	return confirmed, nil
}

// isConfirmed tells a run that has begun before, and why one cannot begin.
func isConfirmed(r Run) (bool, error) {
	switch {
	case !r.Confirmed.IsZero():
		return true, nil
	case r.State == stateCounting:
		return true, &problem{Status: http.StatusConflict, Title: "This run is still counting its messages", Run: r.ID}
	case r.State != stateReady:
		return true, &problem{Status: http.StatusConflict, Title: "This run is over", Run: r.ID,
			Do: "Plan another one."}
	case r.Most() == 0:
		return true, &problem{Status: http.StatusConflict, Title: "There is nothing to do", Run: r.ID}
	default:
		return false, nil
	}
}

// execute does what was confirmed.
func (k *runs) execute(ctx context.Context, r *running) {
	counted := r.plan.Filter
	report, err := k.do(ctx, r, r.plan, false)
	k.log(r, err)
	r.plan = dlq.Plan{}
	if now := r.snapshot(); now.Kind != kindExport { // before anybody is told that it has ended
		k.console.snapshots.change(now.target(), now.ID)
	}
	k.change(r, true, func(run *Run) {
		defer func() {
			if run.State != stateDone && run.hasRest() {
				r.rest, run.Frozen = counted, true
			}
		}()
		run.Report, run.Waits, run.Ended = report, "", time.Now().UTC()
		run.Undo = k.journal.has(run.ID, fileUndo)
		switch {
		case run.StoppedBy != "" || k.console.ctx.Err() != nil:
			run.State = stateStopped
			if err != nil && !isStop(err) {
				run.Error = k.explain(err)
			}
		case err != nil:
			run.State, run.Error = stateFailed, k.explain(err)
		case run.Canary != nil && run.Canary.Stopped != "":
			run.State = stateStopped
		default:
			run.State = stateDone
		}
		k.console.auditEnd(r.who, *run)
	})
	k.forgetRests()
}

// mostRests is of how many runs the rest is remembered: 8 MB for a million messages.
const mostRests = 10

// forgetRests forgets the rest of the oldest runs.
func (k *runs) forgetRests() {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := 0
	for _, r := range slices.Backward(k.all) {
		r.mu.Lock()
		if r.run.Frozen {
			if known++; known > mostRests {
				r.rest, r.run.Frozen = dlq.Filter{}, false
			}
		}
		r.mu.Unlock()
	}
}

// end stops a run, or discards one that nobody has confirmed.
func (k *runs) end(ctx context.Context, id string, who visitor) (Run, error) {
	r, err := k.find(id)
	if err != nil {
		return Run{}, err
	}
	now := r.snapshot()
	if err := who.mayDo(now); err != nil {
		return Run{}, err
	}
	if !now.CanStop() {
		return now, nil
	}
	if err := k.console.audit(ctx, who, actionStop, now); err != nil {
		return Run{}, err
	}

	k.change(r, true, func(run *Run) {
		if !run.CanStop() {
			return
		}
		run.StoppedBy = who.User
		switch run.State {
		case stateReady:
			run.State, run.Ended = stateDiscarded, time.Now().UTC()
			r.plan = dlq.Plan{}
			k.console.auditEnd(r.who, *run)
		case stateRunning:
			run.State = stateStopping
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
	}

	return r.run, nil
}

// undoOf is what an undo of a run would be, if it can be undone.
func (k *runs) undoOf(id string, who visitor) (wish, dlq.Plan, error) {
	r, err := k.find(id)
	if err != nil {
		return wish{}, dlq.Plan{}, err
	}
	now := r.snapshot()
	w := wish{Plan: dlq.Plan{Kind: kindImport}, Queue: now.Queue, MainQueue: now.MainQueue, UndoOf: id}
	if now.OfWaits() {
		w.Kind = kindRestore
	}
	plan, err := k.console.parse(&w, who)
	if err != nil {
		return wish{}, dlq.Plan{}, err
	}
	if !now.CanUndo() {
		return wish{}, dlq.Plan{}, &problem{Status: http.StatusConflict, Title: "This run cannot be undone",
			Run:    cmp.Or(now.Undone, now.ID),
			Detail: "You can undo a finished run that removed messages, once."}
	}

	return w, plan, nil
}

// undo plans an import of what a run has taken out, unless that is planned already.
func (k *runs) undo(w wish, plan dlq.Plan, who visitor) (Run, error) {
	for _, other := range k.list() {
		if other.UndoOf == w.UndoOf && !other.State.IsOver() {
			return other, nil
		}
	}

	return k.plan(w, plan, who, nil)
}

// restOf selects what a run has counted and not done.
func (k *runs) restOf(id string, w wish) (dlq.Filter, error) {
	r, err := k.find(id)
	if err != nil {
		return dlq.Filter{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.run.Frozen || r.run.Queue != w.Queue {
		return dlq.Filter{}, &problem{Status: http.StatusConflict, Title: "The rest of this run is not known", Run: id,
			Detail: "The console was started again since, or the run is about another queue.",
			Do:     "Choose the messages in the queue."}
	}

	return r.rest, nil
}

// open opens a file of a run for reading.
func (k *runs) open(id, name string) (*os.File, error) {
	if _, err := k.find(id); err != nil {
		return nil, err
	}
	file, err := os.Open(k.journal.path(id, name))
	if err != nil {
		return nil, notFound("This file")
	}

	return file, nil
}
