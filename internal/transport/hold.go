package transport

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// holds counts the deliveries of a lane that are held, from the first publish to the confirmation.
type holds struct {
	mu       sync.Mutex
	count    int
	reported time.Time // when a HeldError was reported last
}

// hold is one of them. It reports itself while it lasts too long, whatever it waits for: a connection, an alarm, its turn, a
// confirmation.
type hold struct {
	lane     *Lane
	exchange string // where the copy is to go
	since    time.Time

	mu       sync.Mutex
	err      error // what went wrong last
	timer    *time.Timer
	released bool
}

// hold begins one, of a copy that is to go to exchange. check is called now and then while it lasts.
func (l *Lane) hold(exchange string, check func()) *hold {
	l.held.mu.Lock()
	l.held.count++
	l.held.mu.Unlock()

	h := &hold{lane: l, exchange: exchange, since: time.Now()}
	interval := l.forwarder.settings.HoldWarning

	h.mu.Lock()
	defer h.mu.Unlock()

	h.timer = time.AfterFunc(interval, func() {
		check()
		h.report()

		h.mu.Lock()
		defer h.mu.Unlock()

		if !h.released {
			h.timer.Reset(interval)
		}
	})

	return h
}

func (h *hold) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.err = err
}

func (h *hold) release() {
	h.mu.Lock()
	h.released = true
	h.timer.Stop()
	h.mu.Unlock()

	h.lane.held.mu.Lock()
	defer h.lane.held.mu.Unlock()

	h.lane.held.count--
}

// report tells that deliveries are held, at most once in HoldWarning for the lane.
func (h *hold) report() {
	settings := h.lane.forwarder.settings

	h.mu.Lock()
	released, err := h.released, h.err
	h.mu.Unlock()
	if released {
		return
	}
	if down := h.lane.forwarder.connection.failure(); down != nil {
		err = down
	}

	held := &h.lane.held
	held.mu.Lock()
	now := time.Now()
	if now.Sub(held.reported) < settings.HoldWarning*9/10 {
		held.mu.Unlock()
		return
	}
	held.reported = now
	e := HeldError{
		Queue: h.lane.plan.Queue, Exchange: h.exchange, Held: held.count, For: now.Sub(h.since), Err: err,
	}
	held.mu.Unlock()

	settings.Logger.Error("Failed deliveries are held", &e, watermill.LogFields{"amqp_queue_name": e.Queue, "held": e.Held})
	if settings.OnHeld != nil {
		guard(settings.Logger, "OnHeld", func() { settings.OnHeld(e) })
	}
}
