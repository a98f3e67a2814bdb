package transport

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// holds counts the deliveries of a lane that are held, from the first publish to the confirmation.
type holds struct {
	telling sync.Mutex // held while events are told, so that they come in order; taken before mu

	mu       sync.Mutex
	count    int
	reported time.Time // when a HeldError was reported last
	told     bool      // it was, of those that are held now
	retired  bool      // the lane is not used any more
}

// retire makes the lane close its channels after each copy.
func (h *holds) retire() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.retired = true
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

	held := &h.lane.held
	held.mu.Lock()
	held.count--
	retired := held.retired
	over := held.count == 0 && held.told
	if over {
		held.told = false
	}
	held.mu.Unlock()

	if retired {
		h.lane.closeChannels()
	}
	if over {
		held.telling.Lock()
		defer held.telling.Unlock()
		h.lane.forwarder.settings.emit(retry.Event{Kind: retry.EventReleased, Queue: h.lane.plan.Queue})
	}
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
	held.telling.Lock()
	defer held.telling.Unlock()
	held.mu.Lock()
	now := time.Now()
	if held.count == 0 || now.Sub(held.reported) < settings.HoldWarning*9/10 {
		held.mu.Unlock()
		return
	}
	held.reported, held.told = now, true
	e := &topology.HeldError{
		Queue: h.lane.plan.Queue, VirtualHost: settings.Connection.virtualHost(), Exchange: h.exchange, Held: held.count, For: now.Sub(h.since), Err: err,
	}
	held.mu.Unlock()

	settings.Logger.Error("Failed deliveries are held", e, watermill.LogFields{"amqp_queue_name": e.Queue, "held": e.Held})
	settings.emit(retry.Event{Kind: retry.EventHeld, Queue: e.Queue, Held: e.Held, Took: e.For, Err: e})
}
