package publish

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// heldCopies are the deliveries of a queue that are held, from the first publish to the
// confirmation. They are looked at now and then, whatever they wait for: a connection, an alarm, a
// declaration, a confirmation.
type heldCopies struct {
	telling sync.Mutex // held while events are told, so that they come in order; taken before mu

	mu       sync.Mutex
	copies   map[*heldCopy]struct{}
	timer    *time.Timer // nil if there were none when it ended
	reported time.Time   // when a HeldError was reported last
	told     bool        // it was, of those that are held now
}

// heldCopy is one of them.
type heldCopy struct {
	count int // and delay, of its state
	delay time.Duration
	since time.Time
	check func() // called now and then while it lasts
	err   error  // what went wrong last
}

func (q *QueueForwarder) hold(count int, delay time.Duration, check func()) *heldCopy {
	h := &heldCopy{count: count, delay: delay, since: time.Now(), check: check}
	q.held.mu.Lock()
	defer q.held.mu.Unlock()

	q.held.copies[h] = struct{}{}
	if q.held.timer == nil {
		q.held.timer = time.AfterFunc(q.forwarder.settings.HoldWarning/4, q.lookAtHeld)
	}

	return h
}

func (q *QueueForwarder) lookAtHeld() {
	held := &q.held
	held.mu.Lock()
	copies := slices.Collect(maps.Keys(held.copies))
	if len(copies) > 0 {
		held.timer.Reset(q.forwarder.settings.HoldWarning / 4)
	} else {
		held.timer = nil
	}
	held.mu.Unlock()

	for _, h := range copies {
		h.check()
	}
	q.reportHeld()
}

func (h *heldCopies) failed(c *heldCopy, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	c.err = err
}

func (q *QueueForwarder) release(h *heldCopy) {
	held := &q.held
	held.mu.Lock()
	delete(held.copies, h)
	over := len(held.copies) == 0 && held.told
	if over {
		held.told = false
	}
	held.mu.Unlock()

	if over {
		held.telling.Lock()
		defer held.telling.Unlock()
		q.forwarder.settings.emit(retry.Event{Kind: retry.EventReleased, Queue: q.plan.Queue})
	}
}

// reportHeld tells of the oldest delivery that is held for HoldWarning, at most once in that time
// for the queue.
func (q *QueueForwarder) reportHeld() {
	settings, down := q.forwarder.settings, q.forwarder.connection.Failure()
	held := &q.held
	held.telling.Lock()
	defer held.telling.Unlock()
	held.mu.Lock()
	var oldest *heldCopy
	for h := range held.copies {
		if oldest == nil || h.since.Before(oldest.since) {
			oldest = h
		}
	}
	now := time.Now()
	if oldest == nil || now.Sub(oldest.since) < settings.HoldWarning ||
		now.Sub(held.reported) < settings.HoldWarning*9/10 {
		held.mu.Unlock()
		return
	}
	held.reported, held.told = now, true
	exchange, _ := q.plan.Route(oldest.count, oldest.delay, &amqp091.Publishing{})
	e := &topology.HeldError{
		Queue: q.plan.Queue, VirtualHost: settings.Connection.VirtualHost(), Exchange: exchange,
		Held: len(held.copies), For: now.Sub(oldest.since), Err: cmp.Or(down, oldest.err),
	}
	held.mu.Unlock()

	settings.Logger.Error("Failed deliveries are held, as the broker does not confirm their copies", e,
		watermill.LogFields{"amqp_queue_name": e.Queue, "held": e.Held})
	settings.emit(retry.Event{Kind: retry.EventHeld, Queue: e.Queue, Held: e.Held, Took: e.For, Err: e})
}
