package transport

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

const (
	// upkeepInterval is how often the ways back are declared again while messages wait that need them.
	upkeepInterval = 15 * time.Second
	// wayBackWait is how long one of them keeps the others waiting when the broker does not answer.
	wayBackWait = 2 * time.Second
)

// upkeep looks after the ways back from shared retry queues. When somebody deletes the exchange that leads back, or the binding
// of a main queue, then no publish fails, nothing is returned, and nobody would notice: what comes out of a quorum retry
// queue stays there, and what comes out of a classic one is lost. So they are declared again and again, over one channel, as long
// as copies wait that this process has published.
type upkeep struct {
	mu    sync.Mutex
	ways  map[string]*wayBack // by main queue
	timer *time.Timer
}

type wayBack struct {
	plan      topology.Plan
	until     time.Time // when the last copy that waits is due
	failed    bool      // and that was told
	declaring flight
}

// lookAfter is called for every copy that has begun to wait.
func (f *Forwarder) lookAfter(plan topology.Plan, published *wire.State) {
	if !plan.IsShared() || !f.settings.Redeclare || published.Count == header.CountDead {
		return
	}
	delay, err := config.ParseDelay(published.Delay)
	if err != nil {
		return // impossible: it was routed by it
	}

	u := &f.upkeep
	u.mu.Lock()
	defer u.mu.Unlock()

	w := u.ways[plan.Queue]
	if w == nil {
		w = &wayBack{plan: plan.WayBack()}
		u.ways[plan.Queue] = w
	}
	if due := time.Now().Add(delay); due.After(w.until) {
		w.until = due
	}
	if u.timer == nil {
		u.timer = time.AfterFunc(upkeepInterval, f.keepUp)
	}
}

// keepUp declares all ways back that are needed, and comes again while there are any.
func (f *Forwarder) keepUp() {
	ctx, cancel := context.WithTimeout(f.ctx, upkeepInterval)
	defer cancel()

	f.declareWaysBack(ctx, f.upkeep.needed(time.Now()))

	u := &f.upkeep
	u.mu.Lock()
	defer u.mu.Unlock()

	u.timer = nil
	if f.ctx.Err() == nil && len(u.ways) > 0 {
		u.timer = time.AfterFunc(upkeepInterval, f.keepUp)
	}
}

func (u *upkeep) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.timer != nil {
		u.timer.Stop()
	}
}

// needed forgets the ways back on which nothing waits any more, and gives the others.
func (u *upkeep) needed(now time.Time) []*wayBack {
	u.mu.Lock()
	defer u.mu.Unlock()

	var needed []*wayBack
	for queue, w := range u.ways {
		needed = append(needed, w) // the last one once more: its messages may be due just now
		if now.After(w.until) {
			delete(u.ways, queue)
		}
	}

	return needed
}

func (f *Forwarder) declareWaysBack(ctx context.Context, ways []*wayBack) {
	link, err := f.connection.Link(ctx)
	if err != nil {
		return // it is down, and so is what could be declared
	}

	var channel *amqp091.Channel
	for _, w := range ways {
		if w.declaring.current() != nil {
			continue // still without an answer
		}
		if channel == nil || channel.IsClosed() { // the broker closes it with each error
			if channel, err = link.Channel(); err != nil {
				return
			}
		}

		err := w.declare(f.ctx, channel)
		if err != nil && !w.failed && f.ctx.Err() == nil {
			f.settings.Logger.Error("Cannot declare the way back from the shared retry queues", err,
				watermill.LogFields{"amqp_queue_name": w.plan.Queue})
		}
		w.failed = err != nil

		if late := w.declaring.current(); late != nil {
			go closeAfter(channel, late)
			channel = nil
		}
	}
	if channel != nil {
		_ = channel.Close() // fails after an error of the broker
	}
}

// declare declares the way back. It does not wait long for an answer.
func (w *wayBack) declare(ctx context.Context, channel *amqp091.Channel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wayBackWait, errors.New("the broker has not answered"))
	defer cancel()

	return w.declaring.do(ctx, time.Now(), func() error { return w.plan.Declare(channel) })
}

func closeAfter(channel *amqp091.Channel, a *attempt) {
	<-a.done
	_ = channel.Close()
}
