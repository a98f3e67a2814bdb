package dlq

import (
	"slices"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// holder gives the messages of a queue in which they wait back when they are due, while a scan
// holds the others. The broker then hands them on, and does not deliver them again.
type holder struct {
	place *place

	mu     sync.Mutex
	blocks []*heldBlock // in their order
	// back counts the messages that were given back, and that the broker may deliver again: it has
	// got them later than their sender thinks, or the clocks differ.
	back map[uint64]int
	// returned are the times of those that were given back with their blocks.
	returned []int64

	stop    chan struct{}
	stopped sync.WaitGroup
}

// heldBlock has what a block was given, in its order, and has not given back.
type heldBlock struct {
	holder *holder
	block  *block // nil until it is open
	held   []held
}

type held struct {
	tag     uint64
	id      uint64
	release int64 // milliseconds; 0: unknown
	claimed bool  // it is on its way out
}

const (
	// releaseEvery is how often due messages are given back, and releaseSlack how long after they
	// are due: the broker has got them a little later than the sender has written.
	releaseEvery = 20 * time.Millisecond
	releaseSlack = 20 * time.Millisecond
	// againAfter is how long a message is held that was given back too early.
	againAfter = 200 * time.Millisecond
	// settledWait is how long the broker has to count a block that was given back, and to deliver
	// what it has. The others are late by that.
	settledWait = time.Second
)

func newHolder(p *place) *holder {
	if p == nil {
		return nil
	}
	h := &holder{place: p, back: map[uint64]int{}, stop: make(chan struct{})}
	h.stopped.Add(1)
	go func() {
		defer h.stopped.Done()
		for {
			select {
			case <-h.stop:
				return
			case now := <-time.After(releaseEvery):
				h.releaseDue(now)
			}
		}
	}()

	return h
}

func (h *holder) end() {
	if h == nil {
		return
	}
	close(h.stop)
	h.stopped.Wait()
}

// add begins with another block.
func (h *holder) add() *heldBlock {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &heldBlock{holder: h}
	h.blocks = append(h.blocks, b)

	return b
}

// opened tells which block it is.
func (b *heldBlock) opened(block *block) {
	if b == nil {
		return
	}
	b.holder.mu.Lock()
	defer b.holder.mu.Unlock()
	b.block = block
}

// arrive notes a message as soon as it has come, whoever looks at it later. again tells that it was
// given back before.
func (b *heldBlock) arrive(d *amqp091.Delivery) (again bool) {
	if b == nil {
		return false
	}
	h, now := b.holder, time.Now()
	m := held{tag: d.DeliveryTag, id: waitIdentity(d.Headers, d.MessageId, d.RoutingKey, d.Body)}
	if at := h.place.wait(d, now).release; !at.IsZero() {
		m.release = at.Add(releaseSlack).UnixMilli()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if again = d.Redelivered && h.back[m.id] > 0; again {
		if h.back[m.id]--; h.back[m.id] == 0 {
			delete(h.back, m.id)
		}
		m.release = max(m.release, now.Add(againAfter).UnixMilli())
	}
	b.held = append(b.held, m)

	return again
}

// claim takes a message out, if it was not given back.
func (h *holder) claim(of *block, tag uint64) bool {
	if h == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	i := len(h.blocks) - 1 // mostly it is the last
	for i >= 0 && h.blocks[i].block != of {
		i--
	}
	if i < 0 {
		return false
	}
	all := h.blocks[i].held
	j, found := slices.BinarySearchFunc(all, tag, func(m held, tag uint64) int { return int(m.tag) - int(tag) })
	if found {
		all[j].claimed = true
		of.taken.Add(1)
	}

	return found
}

func (h *holder) releaseDue(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.blocks {
		if n := b.due(now.UnixMilli()); n > 0 && b.block != nil {
			for _, m := range b.held[:n] {
				if !m.claimed {
					h.back[m.id]++
				}
			}
			b.block.release(slices.DeleteFunc(b.held[:n:n], func(m held) bool { return m.claimed }))
			b.held = b.held[n:]
		}
	}
}

// due is how many messages are due: those up to the last one that is. A message before it that is
// due later holds it up in the queue as well.
func (b *heldBlock) due(now int64) (n int) {
	for i, m := range b.held {
		switch {
		case m.release == 0 || m.claimed: // not later than the next one
		case m.release > now:
			return n
		default:
			n = i + 1
		}
	}

	return n
}

// forget is called when a whole block goes back, again if the queue is then read again. It returns
// how many of the messages that are back may be due before the broker has counted these.
func (h *holder) forget(of *block, again bool) (due int) {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.IndexFunc(h.blocks, func(b *heldBlock) bool { return b.block == of }); i >= 0 {
		for _, m := range h.blocks[i].held {
			if m.claimed {
				continue
			}
			if again {
				h.back[m.id]++
			}
			h.returned = append(h.returned, m.release)
		}
		h.blocks = slices.Delete(h.blocks, i, i+1)
	}
	soon := time.Now().Add(settledWait).UnixMilli()
	for _, release := range h.returned {
		if release == 0 || release > soon {
			break
		}
		due++
	}
	h.returned = h.returned[due:]

	return due
}

// release gives messages back that the broker is to hand on.
func (b *block) release(all []held) {
	if len(all) == 0 {
		return
	}
	b.released.Add(int64(len(all)))
	if b.taken.Load() == b.acked.Load() { // all that came before is among them
		_ = b.channel.Nack(all[len(all)-1].tag, true, true) // if it fails, they are back
		return
	}
	for _, m := range all {
		_ = b.channel.Nack(m.tag, false, true)
	}
}
