package dlq

import (
	"cmp"
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

	latest  int64 // the latest release so far
	soonest int64 // not later than the first release of those ahead; 0: there is none
}

type held struct {
	tag     uint64
	id      uint64
	release int64 // milliseconds; 0: unknown
	claimed bool  // it is on its way out
	again   bool  // it was given back before
	ahead   bool  // given back before, or due before one that came before it
}

const (
	// releaseEvery is how often due messages are given back, and releaseSlack how long after they
	// are due: the broker has got them a little later than the sender has written.
	releaseEvery = 20 * time.Millisecond
	releaseSlack = 20 * time.Millisecond
	// againAfter is how long a message is held at least that was given back too early, or that
	// comes although it seems to be due, and againPart which part of the time that it is overdue:
	// else many would come all the time, and be away when somebody wants them.
	againAfter, againPart = 200 * time.Millisecond, 4
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
	}
	overdue := time.Duration(0) // by the clocks of its sender and of ours, or as a publisher forges it
	if m.release != 0 {
		overdue = now.Sub(time.UnixMilli(m.release))
	}
	if again || overdue > 0 {
		m.release = max(m.release, now.Add(max(againAfter, overdue/againPart)).UnixMilli())
	}
	m.again, m.ahead = again, again || m.release != 0 && m.release < b.latest
	if m.ahead && (b.soonest == 0 || m.release < b.soonest) {
		b.soonest = m.release
	}
	b.latest = max(b.latest, m.release)
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
	m := h.find(of, tag)
	if m != nil {
		m.claimed = true
		of.taken.Add(1)
	}

	return m != nil
}

// holds tells whether a message was not given back so far.
func (h *holder) holds(of *block, tag uint64) bool {
	if h == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.find(of, tag) != nil
}

// find is for who has locked.
func (h *holder) find(of *block, tag uint64) *held {
	i := len(h.blocks) - 1 // mostly it is the last
	for i >= 0 && h.blocks[i].block != of {
		i--
	}
	if i < 0 {
		return nil
	}
	all := h.blocks[i].held
	j, found := slices.BinarySearchFunc(all, tag, func(m held, tag uint64) int { return cmp.Compare(m.tag, tag) })
	if !found {
		return nil
	}

	return &all[j]
}

func (h *holder) releaseDue(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.blocks {
		if b.block == nil {
			continue
		}
		h.release(b.block, b.takeAhead(now.UnixMilli()), false)
		n := b.due(now.UnixMilli())
		first := slices.DeleteFunc(b.held[:n:n], func(m held) bool { return m.claimed })
		b.held = b.held[n:]
		h.release(b.block, first, true)
	}
}

// release gives messages of a block back. upTo tells that no other one that came before the last of
// them is held.
func (h *holder) release(of *block, all []held, upTo bool) {
	for _, m := range all {
		h.back[m.id]++
	}
	of.release(all, upTo)
}

// due is how many messages are due: those up to the last one that is, and none behind one that is
// not.
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

// takeAhead takes out those that are due although others that came before them may not be: the
// broker delivers what was given back too early behind messages that are due much later.
func (b *heldBlock) takeAhead(now int64) (all []held) {
	if b.soonest == 0 || b.soonest > now {
		return nil
	}
	b.soonest = 0
	b.held = slices.DeleteFunc(b.held, func(m held) bool {
		if !m.ahead || m.claimed {
			return false
		}
		if m.release <= now {
			all = append(all, m)
			return true
		}
		if b.soonest == 0 || m.release < b.soonest {
			b.soonest = m.release
		}

		return false
	})

	return all
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
			if again && (m.again || m.tag <= of.shown) { // the others were on their way to the scan
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

// release gives messages back that the broker is to hand on. See holder.release.
func (b *block) release(all []held, upTo bool) {
	if len(all) == 0 {
		return
	}
	b.released.Add(int64(len(all)))
	if upTo && b.taken.Load() == b.acked.Load() { // all that came before is among them
		_ = b.channel.Nack(all[len(all)-1].tag, true, true) // if it fails, they are back
		return
	}
	for _, m := range all {
		_ = b.channel.Nack(m.tag, false, true)
	}
}
