package transport

import (
	"sync"

	"github.com/rabbitmq/amqp091-go"
)

// acker acknowledges the deliveries of one channel, in batches as far as they have piled up while it was writing: it never
// waits for more. One acknowledgement covers all deliveries up to the first that is still being worked on.
type acker struct {
	channel *amqp091.Channel

	mu      sync.Mutex
	next    uint64          // the lowest delivery tag that is not settled
	settled map[uint64]bool // at or above next; true: still to be acknowledged
	pending int             // how many are to be acknowledged
	closed  bool

	wake chan struct{}
	done chan struct{}
}

func newAcker(channel *amqp091.Channel) *acker {
	a := &acker{
		channel: channel,
		next:    1, // delivery tags count from one on each channel
		settled: map[uint64]bool{},
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	go a.run()

	return a
}

// ack acknowledges a delivery soon. After close it does nothing: the channel is on its way out and the broker delivers again.
func (a *acker) ack(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.closed {
		return
	}
	a.settled[tag] = true
	a.pending++

	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// requeue gives a delivery back to its queue at once. It counts as settled only when that is written: an acknowledgement of
// everything up to a later delivery would otherwise overtake it, and the message would be lost.
func (a *acker) requeue(tag uint64) error {
	if err := a.channel.Nack(tag, false, true); err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.settled[tag] = false

	return nil
}

// close writes what is left and ends the acker.
func (a *acker) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()

	close(a.wake)
	<-a.done
}

func (a *acker) run() {
	defer close(a.done)

	for range a.wake {
		a.flush()
	}
	a.flush()
}

func (a *acker) flush() {
	upTo, single := a.batch()

	// An error means that the channel is gone: the broker delivers again what it has not seen acknowledged.
	if upTo > 0 {
		if a.channel.Ack(upTo, true) != nil {
			return
		}
	}
	for _, tag := range single {
		if a.channel.Ack(tag, false) != nil {
			return
		}
	}
}

// batch takes what is to be acknowledged: all up to a tag, and single ones behind a delivery that is not settled yet.
func (a *acker) batch() (upTo uint64, single []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for {
		ack, ok := a.settled[a.next]
		if !ok {
			break
		}
		if ack {
			upTo = a.next
			a.pending--
		}
		delete(a.settled, a.next)
		a.next++
	}

	if a.pending == 0 {
		return upTo, nil
	}
	for tag, ack := range a.settled {
		if ack {
			single = append(single, tag)
			a.settled[tag] = false
			a.pending--
		}
	}

	return upTo, single
}
