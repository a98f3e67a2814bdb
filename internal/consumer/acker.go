package consumer

import (
	"runtime"
	"slices"
	"sync"
)

// acker acknowledges the deliveries of one channel, in batches as far as they have piled up while
// it was writing: it never waits for more. One acknowledgement covers all deliveries up to the
// first that is still being worked on.
type acker struct {
	channel ackChannel
	writes  writes

	// writing is held while a batch is taken and written, and while a nack is: an acknowledgement
	// of everything up to a delivery must not overtake what is said of single ones below it. It is
	// taken before mu.
	writing  sync.Mutex
	commands int // written so far, guarded by writing

	mu      sync.Mutex
	settled []tags   // ascending, never adjacent: at most one more than there are deliveries that are not settled
	pending []uint64 // settled, but still to be acknowledged
	open    int      // delivered and not settled
	closed  bool

	last        uint64       // tag that has arrived
	generations []generation // of consumers, the present one at last

	changed chan struct{} // has something in it when open has changed

	wake chan struct{}
	done chan struct{}
}

// ackChannel is what an acker needs of a channel.
type ackChannel interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
	Reject(tag uint64, requeue bool) error
}

// writes are those of a connection, which can be held back so that they go out together.
type writes interface {
	Hold()
	Release()
}

// tags are delivery tags from first to last.
type tags struct{ first, last uint64 }

// generation are the deliveries of one of the consumers that a channel has one after the other.
type generation struct {
	from uint64
	open int // delivered and not settled
}

func newAcker(channel ackChannel, writes writes) *acker {
	a := &acker{
		channel: channel,
		writes:  writes,
		settled: []tags{{0, 0}}, // delivery tags count from one on each channel

		generations: make([]generation, 1),

		changed: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	go a.run()

	return a
}

// ack acknowledges a delivery soon. After close it does nothing: the channel is on its way out and
// the broker delivers again.
func (a *acker) ack(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.closed {
		return
	}
	a.settle(tag)
	a.pending = append(a.pending, tag)

	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// requeue gives a delivery back to its queue at once. After close it does nothing, like ack.
func (a *acker) requeue(tag uint64) error {
	_, err := a.giveBack(func() error { return a.channel.Nack(tag, false, true) }, tag)
	return err
}

// reject hands a delivery back to the broker at once, which counts that: to its queue, or to where
// that dead-letters. done is false after close: then the broker gets it with the channel.
//
// RabbitMQ 4.3 counts a reject as a failed attempt, and a nack not: that is what a queue wants that
// counts failures, and what a dead-letter cycle does not, where counts travel along and come nearer
// to a delivery limit.
//
// Upstream: a nack counts as a failed delivery.
func (a *acker) reject(tag uint64, requeue bool) (done bool, err error) {
	return a.giveBack(func() error {
		if requeue {
			return a.channel.Reject(tag, true)
		}
		return a.channel.Nack(tag, false, false)
	}, tag)
}

// giveBack writes what gives a delivery back. It counts as settled only when that is written: an
// acknowledgement of everything up to a later delivery would otherwise overtake it, and the message
// would be lost.
func (a *acker) giveBack(write func() error, tag uint64) (done bool, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()

	if a.isClosed() {
		return false, nil
	}
	a.commands++
	if err := write(); err != nil {
		return false, err
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.settle(tag)

	return true, nil
}

func (a *acker) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.closed
}

// begin notes that the next consumer begins. Those before it deliver nothing more.
func (a *acker) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.generations = slices.DeleteFunc(a.generations, func(g generation) bool { return g.open == 0 })
	a.generations = append(a.generations, generation{from: a.last + 1})
}

// arrived counts a delivery of the present consumer.
func (a *acker) arrived(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.open++
	a.last = tag
	a.generations[len(a.generations)-1].open++
}

// consumers is how many consumers have deliveries that are not settled, the present one included in
// any case.
func (a *acker) consumers() (count int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for i, g := range a.generations {
		if g.open > 0 || i == len(a.generations)-1 {
			count++
		}
	}

	return count
}

// older is how many deliveries of the consumers before the present one are not settled.
func (a *acker) older() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.open - a.generations[len(a.generations)-1].open
}

// isIdle reports whether all is settled.
func (a *acker) isIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.open == 0
}

// hasOpen reports whether so many deliveries of the present consumer are not settled.
func (a *acker) hasOpen(prefetch int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.generations[len(a.generations)-1].open >= prefetch
}

// hold runs change while nothing is acknowledged. What the present consumer's prefetch leaves room
// for may still come; once all of it is used up, the broker has nothing on its way to that
// consumer.
func (a *acker) hold(change func() error) error {
	a.writing.Lock()
	defer a.writing.Unlock()

	return change()
}

// isFull reports whether all of the present consumer's prefetch is used up.
func (a *acker) isFull(prefetch int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	present := a.generations[len(a.generations)-1]
	used := present.open
	for _, tag := range a.pending {
		if tag >= present.from {
			used++
		}
	}

	return used >= prefetch
}

// waitBelow waits until less than limit deliveries are not settled. It is false if stop came first.
// After notify the limit is asked again.
func (a *acker) waitBelow(limit func() int, stop <-chan struct{}) bool {
	for {
		a.mu.Lock()
		open := a.open
		a.mu.Unlock()
		if open < limit() {
			return true
		}

		select {
		case <-a.changed:
		case <-stop:
			return false
		}
	}
}

// notify wakes who waits in waitBelow.
func (a *acker) notify() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// settle adds a tag. mu is held.
func (a *acker) settle(tag uint64) {
	a.open--
	for i := len(a.generations) - 1; i >= 0; i-- {
		if a.generations[i].from <= tag {
			a.generations[i].open--
			break
		}
	}
	a.notify()

	i, _ := slices.BinarySearchFunc(a.settled, tag, func(r tags, tag uint64) int {
		if r.first < tag {
			return -1
		}

		return 1
	})
	below := a.settled[i-1].last+1 == tag // there is always one below
	above := i < len(a.settled) && a.settled[i].first == tag+1

	switch {
	case below && above:
		a.settled[i-1].last = a.settled[i].last
		a.settled = slices.Delete(a.settled, i, i+1)
	case below:
		a.settled[i-1].last = tag
	case above:
		a.settled[i].first = tag
	default:
		a.settled = slices.Insert(a.settled, i, tags{tag, tag})
	}
}

// close writes what is left and ends the acker. It returns how many commands were written on the
// channel.
func (a *acker) close() (commands int) {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()

	close(a.wake)
	<-a.done

	a.writing.Lock()
	defer a.writing.Unlock()

	return a.commands
}

func (a *acker) run() {
	defer close(a.done)

	for range a.wake {
		runtime.Gosched() // who is about to acknowledge as well does so before
		a.flush()
	}
	a.flush()
}

// flush writes what is to be acknowledged.
func (a *acker) flush() {
	a.writing.Lock()
	defer a.writing.Unlock()

	upTo, single := a.batch()
	if len(single) > 0 {
		a.writes.Hold()
		defer a.writes.Release()
	}

	// An error means that the channel is gone: the broker delivers again what it has not seen
	// acknowledged.
	if upTo > 0 {
		a.commands++
		if a.channel.Ack(upTo, true) != nil {
			return
		}
	}
	for _, tag := range single {
		a.commands++
		if a.channel.Ack(tag, false) != nil {
			return
		}
	}
}

// batch takes what is to be acknowledged: all up to a tag, and single ones behind a delivery that
// is not settled yet.
func (a *acker) batch() (upTo uint64, single []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	low := a.settled[0].last // everything up to here is settled
	for _, tag := range a.pending {
		if tag <= low {
			upTo = max(upTo, tag)
		} else {
			single = append(single, tag)
		}
	}
	a.pending = a.pending[:0]

	return upTo, single
}
