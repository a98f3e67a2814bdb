package publish

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// heldCopies counts the deliveries of a queue that are held, from the first publish to the confirmation.
type heldCopies struct {
	telling sync.Mutex // held while events are told, so that they come in order; taken before mu

	mu       sync.Mutex
	count    int
	reported time.Time // when a HeldError was reported last
	told     bool      // it was, of those that are held now
}

// heldCopy is one of them. It reports itself while it lasts too long, whatever it waits for: a connection, an alarm,
// its turn, a confirmation.
type heldCopy struct {
	queue    *QueueForwarder
	exchange string // where the copy is to go
	since    time.Time

	mu       sync.Mutex
	err      error // what went wrong last
	timer    *time.Timer
	released bool
}

// hold begins one, of a copy that is to go to exchange. check is called now and then while it lasts.
func (q *QueueForwarder) hold(exchange string, check func()) *heldCopy {
	q.held.mu.Lock()
	q.held.count++
	q.held.mu.Unlock()

	h := &heldCopy{queue: q, exchange: exchange, since: time.Now()}
	interval := q.forwarder.settings.HoldWarning

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

func (h *heldCopy) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.err = err
}

func (h *heldCopy) release() {
	h.mu.Lock()
	h.released = true
	h.timer.Stop()
	h.mu.Unlock()

	held := &h.queue.held
	held.mu.Lock()
	held.count--
	over := held.count == 0 && held.told
	if over {
		held.told = false
	}
	held.mu.Unlock()

	if over {
		held.telling.Lock()
		defer held.telling.Unlock()
		h.queue.forwarder.settings.emit(retry.Event{Kind: retry.EventReleased, Queue: h.queue.plan.Queue})
	}
}

// report tells that deliveries are held, at most once in HoldWarning for the queue.
func (h *heldCopy) report() {
	settings := h.queue.forwarder.settings

	h.mu.Lock()
	released, err := h.released, h.err
	h.mu.Unlock()
	if released {
		return
	}
	if down := h.queue.forwarder.connection.Failure(); down != nil {
		err = down
	}

	held := &h.queue.held
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
		Queue: h.queue.plan.Queue, VirtualHost: settings.Connection.VirtualHost(), Exchange: h.exchange,
		Held: held.count, For: now.Sub(h.since), Err: err,
	}
	held.mu.Unlock()

	settings.Logger.Error("Failed deliveries are held, as the broker does not confirm their copies", e,
		watermill.LogFields{"amqp_queue_name": e.Queue, "held": e.Held})
	settings.emit(retry.Event{Kind: retry.EventHeld, Queue: e.Queue, Held: e.Held, Took: e.For, Err: e})
}
