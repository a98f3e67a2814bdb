package publish

import (
	"cmp"
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
	copies   map[*copying]struct{}
	timer    *time.Timer // nil if there were none when it ended
	reported time.Time   // when a HeldError was reported last
	told     bool        // it was, of those that are held now
}

func (q *QueueForwarder) hold(c *copying) {
	c.since = time.Now()
	q.held.mu.Lock()
	defer q.held.mu.Unlock()

	q.held.copies[c] = struct{}{}
	if q.held.timer == nil {
		q.held.timer = time.AfterFunc(q.forwarder.settings.HoldWarning/4, q.lookAtHeld)
	}
}

func (q *QueueForwarder) lookAtHeld() {
	held := &q.held
	held.mu.Lock()
	var looks []func()
	for h := range held.copies {
		if h.look != nil {
			looks = append(looks, h.look)
		}
	}
	if len(held.copies) > 0 {
		held.timer.Reset(q.forwarder.settings.HoldWarning / 4)
	} else {
		held.timer = nil
	}
	held.mu.Unlock()

	for _, look := range looks {
		look()
	}
	q.reportHeld()
}

func (h *heldCopies) look(c *copying, look func()) {
	h.mu.Lock()
	defer h.mu.Unlock()

	c.look = look
}

func (h *heldCopies) failed(c *copying, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	c.failure = err
}

func (q *QueueForwarder) release(c *copying) {
	held := &q.held
	held.mu.Lock()
	delete(held.copies, c)
	over := len(held.copies) == 0 && held.told
	if over {
		held.told = false
	}
	held.mu.Unlock()

	if over {
		held.telling.Lock()
		defer held.telling.Unlock()
		q.forwarder.held.Delete(q)
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
	var oldest *copying
	for h := range held.copies {
		if oldest == nil || h.since.Before(oldest.since) {
			oldest = h
		}
	}
	now := time.Now()
	isLong := oldest != nil && now.Sub(oldest.since) >= settings.HoldWarning
	if !isLong { // others may always be on their way
		q.forwarder.held.Delete(q)
	}
	if !isLong || now.Sub(held.reported) < settings.HoldWarning*9/10 {
		held.mu.Unlock()
		return
	}
	held.reported, held.told = now, true
	state := &oldest.request.State
	exchange, _ := q.plan.Route(state.Count, delayOf(state), &amqp091.Publishing{})
	e := &topology.HeldError{
		Queue: q.plan.Queue, VirtualHost: settings.Connection.VirtualHost(), Exchange: exchange,
		Held: len(held.copies), For: now.Sub(oldest.since), Err: cmp.Or(down, oldest.failure),
	}
	held.mu.Unlock()

	q.forwarder.held.Store(q, retry.Problem{
		Kind: retry.ProblemCopies, Queue: e.Queue, Since: oldest.since, Text: e.Error(), Err: e})
	settings.Logger.Error("Failed deliveries are held, as the broker does not confirm their copies", e,
		watermill.LogFields{"amqp_queue_name": e.Queue, "held": e.Held})
	settings.emit(retry.Event{Kind: retry.EventHeld, Queue: e.Queue, Held: e.Held, Took: e.For, Err: e})
}
