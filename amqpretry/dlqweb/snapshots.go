package dlqweb

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
)

const (
	// mostInMemory is how many dead letters the snapshots have together, of which each takes about
	// 100 bytes of memory. The queue that was viewed last is read whole in any case.
	mostInMemory = 2_000_000
	// mostFiles is how many bytes of whole messages they have together, in temporary files.
	mostFiles = 8 << 30
	// longestRead ends a read.
	longestRead = time.Hour
	// failedFor is how long a read that has failed is not begun anew.
	failedFor = 3 * time.Second
)

// snapshots remembers the newest snapshot of each queue, and reads a queue once for all who want
// it.
type snapshots struct {
	console *Console
	files   *snapshot.Files
	reads   chan struct{} // has an element for each read that goes on

	mu  sync.Mutex
	all []*entry // the one that was viewed last is the last
}

// entry is what is known of a queue.
type entry struct {
	target target

	// Guarded by snapshots.mu.
	snapshot *snapshot.Snapshot // the newest; nil before the first
	reading  *pending           // that goes on; nil if none does
	failed   *pending           // the last, if it has failed
	changed  string             // the run that has changed the queue since the snapshot
	runs     int                // that are at work
}

// pending is one read of a queue.
type pending struct {
	snapshot *snapshot.Snapshot
	done     chan struct{}

	changed string // the run that has changed the queue before it

	mu       sync.Mutex
	progress dlq.Progress
	waits    string // for whom it waits

	err   error // once it is done
	ended time.Time
}

// seen is what a page shows of a queue: a snapshot, and what has happened since.
type seen struct {
	*snapshot.Snapshot
	Reading *pending // nil if none goes on
	Err     error    // why the last read has failed
	Changed string   // the run that has changed the queue since
}

// ID of the snapshot; empty if there is none.
func (s seen) ID() string {
	if s.Snapshot == nil {
		return ""
	}

	return strconv.FormatInt(s.Began.UnixMilli(), 36)
}

// Progress of a read.
func (r *pending) Progress() dlq.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.progress
}

// Waits tells for whom the read waits; empty if for nobody.
func (r *pending) Waits() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.waits
}

func (r *pending) change(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// of is what is known of a queue. The lock is held.
func (k *snapshots) of(t target) *entry {
	i := slices.IndexFunc(k.all, func(l *entry) bool { return l.is(t) })
	if i < 0 {
		k.all = slices.DeleteFunc(k.all, (*entry).isOver) // whoever makes up names cannot fill the memory
		l := &entry{target: t}
		k.all = append(k.all, l)
		return l
	}
	l := k.all[i]
	k.all = append(slices.Delete(k.all, i, i+1), l)

	return l
}

// is tells whether it is about a target.
func (l *entry) is(t target) bool {
	return l.target.Queue == t.Queue && l.target.Waits == t.Waits && (!t.Waits || l.target.MainQueue == t.MainQueue)
}

// isOver tells that nothing is known of a queue, and nothing goes on.
func (l *entry) isOver() bool {
	return l.snapshot == nil && l.reading == nil && l.runs == 0 && !l.hasFailed()
}

// hasFailed tells that the last read has failed just now.
func (l *entry) hasFailed() bool { return l.failed != nil && time.Since(l.failed.ended) < failedFor }

// newest is the newest snapshot of a queue; nil if there is none. It is not viewed by that.
func (k *snapshots) newest(queue string) *snapshot.Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.all, func(l *entry) bool { return l.is(target{Queue: queue}) }); i >= 0 {
		return k.all[i].snapshot
	}

	return nil
}

// id is that of the newest snapshot of a queue; empty if there is none.
func (k *snapshots) id(queue string) string { return seen{Snapshot: k.newest(queue)}.ID() }

// held is how many messages a queue had when the read began that goes on; 0 if none does.
func (k *snapshots) held(queue string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.all, func(l *entry) bool { return l.is(target{Queue: queue}) && l.reading != nil })
	if i < 0 {
		return 0
	}

	return k.all[i].reading.Progress().Total
}

// want says whether a view may read the queue.
type want int

const (
	wantNothing want = iota // that is not there: a page that updates itself
	wantOne                 // which is read if there is none
	wantNew                 // which is read if there is none, or a run has changed the queue since
	wantAnother             // than that of the view
)

// anySnapshot stands for the ID of whatever snapshot there is.
const anySnapshot = "now"

// view gives what is known of a queue, and begins to read it where that is wanted. id is the
// snapshot that somebody does not want any more.
func (k *snapshots) view(t target, w want, id string) seen {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.of(t)
	known := l.seen()
	wanted := w >= wantOne && known.Snapshot == nil || w >= wantNew && l.changed != "" ||
		w == wantAnother && (known.ID() == id || id == anySnapshot)
	wanted = wanted && !l.hasFailed()
	if wanted && l.runs > 0 && known.Snapshot == nil {
		known.Err = heldByRun()
	}
	if wanted && l.runs == 0 && l.reading == nil {
		k.begin(l)
		known.Reading, known.Err = l.reading, nil
	}

	return known
}

func (l *entry) seen() seen {
	s := seen{Snapshot: l.snapshot, Reading: l.reading, Changed: l.changed}
	if l.failed != nil && l.reading == nil {
		s.Err = l.failed.err
	}

	return s
}

// begin begins to read. The lock is held.
func (k *snapshots) begin(l *entry) {
	ctx, stop := context.WithTimeout(k.console.ctx, longestRead)
	r := &pending{done: make(chan struct{}), changed: l.changed}
	l.reading, l.changed = r, ""
	k.console.running.Go(func() {
		defer stop()
		r.err = k.read(ctx, l.target, r)
		k.end(l, r)
	})
}

// end puts a snapshot in the place of the one before.
func (k *snapshots) end(l *entry, r *pending) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(r.done)
	r.ended = time.Now()
	l.reading, l.failed = nil, nil
	if r.err != nil {
		l.failed, l.changed = r, cmp.Or(l.changed, r.changed)
		if k.console.ctx.Err() == nil {
			k.console.config.Logger.Error("Cannot read a dead-letter queue", r.err,
				watermill.LogFields{"queue": l.target.Queue})
		}
		// Where others took messages meanwhile, what the read has seen is still worth showing.
		if r.snapshot == nil || !errors.As(r.err, new(*dlq.IncompleteError)) {
			if r.snapshot != nil {
				r.snapshot.Release()
			}
			return
		}
	}
	if l.snapshot != nil {
		l.snapshot.Release()
	}
	l.snapshot = r.snapshot
	k.forgetOld(l)
}

// forgetOld makes room: whose queue nobody has viewed for the longest time goes first. The lock is
// held.
func (k *snapshots) forgetOld(except *entry) {
	total := 0
	for _, l := range k.all {
		if l.snapshot != nil {
			total += l.snapshot.Len()
		}
	}
	for _, l := range k.all {
		if total > mostInMemory && l != except && l.snapshot != nil {
			total -= l.snapshot.Len()
			l.snapshot.Release()
			l.snapshot = nil
		}
	}
}

// mostReads is how many queues are read at a time.
const mostReads = 4

// read reads the queue, as soon as nobody else does.
func (k *snapshots) read(ctx context.Context, t target, r *pending) error {
	for {
		err := k.inTurn(ctx, t, r)
		var busy *dlq.BusyError
		if !errors.As(err, &busy) {
			return err
		}
		r.change(func() { r.waits = "Another client reads this queue, or works on it: the console waits for it." })
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return cmp.Or(err, context.Cause(ctx))
		}
	}
}

// inTurn reads the queue once, when few others are read.
func (k *snapshots) inTurn(ctx context.Context, t target, r *pending) error {
	select {
	case k.reads <- struct{}{}:
	default:
		r.change(func() { r.waits = "Other queues are read first." })
		select {
		case k.reads <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-k.reads }()

	return k.readOnce(ctx, t, r)
}

func (k *snapshots) readOnce(ctx context.Context, t target, r *pending) error {
	read, err := k.console.reader(ctx, t)
	if err != nil {
		return err
	}
	if r.snapshot == nil {
		if r.snapshot, err = snapshot.New(k.files); err != nil {
			k.console.config.Logger.Error("Cannot keep whole messages for the console: it reads them from the queue",
				err, watermill.LogFields{"folder": k.files.Folder})
		}
	}
	s := r.snapshot
	err = read(ctx, func(read dlq.Stat) {
		s.Began, s.Read = time.Now(), read
		r.change(func() { r.waits, r.progress = "", dlq.Progress{Total: read.Ready} })
	}, func(l *dlq.DeadLetter) bool {
		s.Add(k.console.redacted(l))
		r.change(func() { r.progress.Seen++ })
		return true
	})
	if errors.As(err, new(*dlq.BusyError)) { // it has not begun, or must begin again
		if s.Len() > 0 {
			s.Release()
			r.snapshot = nil
		}
		return err
	}
	if failed := s.End(); failed != nil {
		k.console.config.Logger.Error("Cannot keep all whole messages for the console", failed,
			watermill.LogFields{"folder": k.files.Folder})
	}

	return err
}

// isBehind tells whether a view is to wait for the read that goes on: it has nothing else, it was
// asked for, or a run has changed the queue before it.
func (s seen) isBehind(w want) bool {
	return s.Reading != nil && (s.Snapshot == nil || w == wantAnother || w == wantNew && s.Reading.changed != "")
}

// wait waits for the read that goes on, but no longer than this, and gives what is known then.
func (k *snapshots) wait(ctx context.Context, t target, now seen, most time.Duration) seen {
	if now.Reading == nil {
		return now
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-now.Reading.done:
	case <-ctx.Done():
		return now
	case <-timer.C:
		return now
	}

	return k.view(t, wantNothing, "")
}

// hold keeps reads of a queue from beginning until it is released, as a run is at work, and waits
// for one that goes on: to end it would take as long. waits is called before.
func (k *snapshots) hold(ctx context.Context, t target, waits func()) (release func(), err error) {
	k.mu.Lock()
	l := k.of(t)
	l.runs++
	going := l.reading
	k.mu.Unlock()
	release = func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		l.runs--
	}
	if going == nil {
		return release, nil
	}
	waits()
	timer := time.NewTicker(mostBusy)
	defer timer.Stop()
	for {
		select {
		case <-going.done:
			return release, nil
		case <-timer.C:
			if why := going.Waits(); why != "" {
				release()
				return nil, &problem{Status: http.StatusConflict, Title: "The queue cannot be read", Detail: why,
					Do: "Try again when the other client has ended."}
			}
		case <-ctx.Done():
			release()
			return nil, context.Cause(ctx)
		}
	}
}

func heldByRun() *problem {
	return &problem{Status: http.StatusConflict, Title: "A run is working on this queue",
		Detail: "Its messages cannot be shown while it counts or moves them.", Do: "Try again when it has ended."}
}

// change notes that a run has changed a queue: what is known of it is from before.
func (k *snapshots) change(t target, run string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(t).changed = run
}

// close gives up the files.
func (k *snapshots) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.all {
		if l.snapshot != nil {
			l.snapshot.Release()
		}
	}
}
