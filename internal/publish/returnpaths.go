package publish

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

const (
	// returnPathInterval is how often the return paths are declared again while messages wait that
	// need them.
	returnPathInterval = 15 * time.Second
	// ladderInterval is how often that is done with what a ladder shares, which is more than a
	// hundred declarations.
	ladderInterval = time.Minute
	// returnPathWait is how long one of them keeps the others waiting when the broker does not
	// answer.
	returnPathWait = 2 * time.Second
	// ladderWait is the same for what a ladder shares.
	ladderWait = 10 * time.Second
	// failedFor is how long after the last message was due a path is still declared that could not
	// be declared.
	failedFor = 10 * time.Minute
)

// returnPaths are the ways from shared retry queues and ladders back to main queues. When somebody
// deletes the exchange that leads back, or the binding of a main queue, then no publish fails,
// nothing is returned, and nobody would notice: what comes out of a quorum retry queue stays there,
// and what comes out of a classic one is lost. The same holds for the lower levels of a ladder. So
// they are declared again and again, as long as copies wait that this process has published.
//
// Upstream: dead letters without a route hold up all behind them;
// Particular/NServiceBus.RabbitMQ#1407; RabbitMQ 3.10 to 4.3;
// TestReturnPaths_LastsAsLongAsCopiesWait, TestSharedQueues_OneMissingTargetBlocksAll,
// TestExact_DeliveryDeleted; remove when the broker passes over them.
type returnPaths struct {
	mu    sync.Mutex
	paths map[string]*returnPath // by main queue, or ladder
	timer *time.Timer
}

type returnPath struct {
	name     string
	plan     topology.Plan
	ladder   *topology.Ladder // that the plan needs; nil for a ladder's own path
	interval time.Duration
	next     time.Time // when it is declared again
	until    time.Time // when the last copy that waits is due
	failed   bool      // and that was told
	declared Object
}

// KeepReturnPath is called for every message that has begun to wait, for so long.
func (q *QueueForwarder) KeepReturnPath(delay time.Duration) {
	plan, f := q.plan, q.forwarder
	needed := plan.IsShared() || plan.Ladder != nil || plan.Strategy == config.StrategyCycle
	if !needed || !f.settings.Redeclare {
		return
	}

	u := &f.returnPaths
	u.mu.Lock()
	defer u.mu.Unlock()

	due := time.Now().Add(delay)
	if plan.Ladder != nil {
		u.keep("ladder "+plan.Ladder.Name(), nil, plan.Ladder.Shared, ladderInterval, due)
	}
	u.keep("queue "+plan.Queue, plan.Ladder, plan.ReturnPath, returnPathInterval, due)
	if u.timer == nil {
		u.timer = time.AfterFunc(returnPathInterval, f.keepDeclared)
	}
}

// keep notes that a path is needed until a copy is due. mu is held.
func (u *returnPaths) keep(
	name string, ladder *topology.Ladder, plan func() topology.Plan, interval time.Duration, due time.Time,
) {
	w := u.paths[name]
	if w == nil {
		// With a short interval at the next tick: that of another path may be on its way.
		next := time.Now().Add(interval - returnPathInterval)
		w = &returnPath{name: name, plan: plan(), ladder: ladder, interval: interval, next: next}
		u.paths[name] = w
	}
	if due.After(w.until) {
		w.until = due
	}
}

// keepDeclared declares all return paths that are needed, and comes again while there are any.
func (f *Forwarder) keepDeclared() {
	ctx, cancel := context.WithTimeout(f.ctx, returnPathInterval)
	defer cancel()

	u, now := &f.returnPaths, time.Now()
	needed := u.needed(now)
	if link, err := f.connection.Link(ctx); err == nil { // else it is down, and so is what could be declared
		for _, w := range needed {
			if w.declared.isRunning() {
				continue // still without an answer
			}
			f.declareReturnPath(link, w)
			u.declared(w, now)
		}
	}

	u.mu.Lock()
	defer u.mu.Unlock()

	u.timer = nil
	if f.ctx.Err() == nil && len(u.paths) > 0 {
		u.timer = time.AfterFunc(returnPathInterval, f.keepDeclared)
	}
}

// declared notes that a path was tried.
func (u *returnPaths) declared(w *returnPath, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()

	w.next = now.Add(w.interval - returnPathInterval/2) // a tick may come a little early
	last := w.until
	if w.failed {
		last = last.Add(failedFor) // its messages may wait for it
	}
	if now.After(last) {
		delete(u.paths, w.name)
	}
}

func (u *returnPaths) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.timer != nil {
		u.timer.Stop()
	}
}

// needed returns the paths that are to be declared again. One on which nothing waits any more is
// declared once more: its messages may be due just now.
func (u *returnPaths) needed(now time.Time) []*returnPath {
	u.mu.Lock()
	defer u.mu.Unlock()

	var needed []*returnPath
	for _, w := range u.paths {
		if !now.Before(w.next) {
			needed = append(needed, w)
		}
	}
	// A ladder comes first, as the others need it.
	slices.SortFunc(needed, func(a, b *returnPath) int { return cmp.Compare(a.plan.Queue, b.plan.Queue) })

	return needed
}

func (f *Forwarder) declareReturnPath(link *connection.Link, w *returnPath) {
	err := w.declare(f.ctx, link, w.plan)
	if isMissing(err) && w.ladder != nil {
		// The exchange of all targets is gone. Back without the queue's binding, it would take its
		// messages for unroutable, so both are declared together.
		whole := w.plan
		whole.Ladder = w.ladder
		err = w.declare(f.ctx, link, whole)
	}
	if err != nil && !w.failed && f.ctx.Err() == nil {
		f.settings.Logger.Error("Cannot redeclare the bindings through which waiting messages return", err,
			watermill.LogFields{"return_path": w.name})
	}
	w.failed = err != nil
}

// declare declares the return path. It does not wait long for an answer.
func (w *returnPath) declare(ctx context.Context, link *connection.Link, plan topology.Plan) error {
	wait := returnPathWait
	if plan.Ladder != nil || w.interval > returnPathInterval {
		wait = ladderWait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errors.New("the broker has not answered"))
	defer cancel()

	return w.declared.Declare(ctx, nil, time.Now(), func() error {
		return link.OnChannel(func(channel *amqp091.Channel) error { return plan.Declare(channel) })
	})
}
