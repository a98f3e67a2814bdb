package dlq

import (
	"sync"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
)

// inbox takes what comes to a consumer as soon as it comes: amqp091-go would collect it without a
// bound in bytes, and a prefetch has none either. Where more comes than there is room for, it keeps
// of a message only that it was there.
//
// Upstream: deliveries are buffered without a bound; streadway/amqp#490; amqp091-go 1.16;
// TestInboxIsBounded, TestScanOfSmallMessagesBeforeLargeOnes; remove when it stops reading for a
// slow consumer.
type inbox struct {
	room int        // bytes
	held *heldBlock // nil for dead letters

	mu      sync.Mutex
	waiting []arrived
	bytes   int
	ended   bool

	news chan struct{} // has something in it when something may have come
}

// arrived is a message that has come. Without its body and headers if there was no room.
type arrived struct {
	delivery amqp091.Delivery
	size     int
	lost     bool
	again    bool // see heldBlock.arrive
}

func newInbox(deliveries <-chan amqp091.Delivery, room int, held *heldBlock) *inbox {
	b := &inbox{room: room, held: held, news: make(chan struct{}, 1)}
	go func() {
		for d := range deliveries {
			b.put(d)
		}
		b.end()
	}()

	return b
}

func (b *inbox) put(d amqp091.Delivery) {
	a := arrived{delivery: d, size: codec.SizeInMemory(&d), again: b.held.arrive(&d)}
	b.mu.Lock()
	if b.bytes > 0 && b.bytes+a.size > b.room { // one message always has room, whatever its size
		a.lost, a.delivery = true, amqp091.Delivery{Acknowledger: d.Acknowledger, DeliveryTag: d.DeliveryTag,
			Redelivered: d.Redelivered}
	} else {
		b.bytes += a.size
	}
	b.waiting = append(b.waiting, a)
	b.mu.Unlock()
	b.tell()
}

func (b *inbox) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.tell()
}

func (b *inbox) tell() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// take takes the next message, if one has come. ended is true when none will.
func (b *inbox) take() (a arrived, ok, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return arrived{}, false, b.ended
	}
	a, b.waiting[0] = b.waiting[0], arrived{}
	if b.waiting = b.waiting[1:]; len(b.waiting) == 0 {
		b.waiting = nil // a long queue has a thousand inboxes that got all
	}
	if !a.lost {
		b.bytes -= a.size
	}

	return a, true, false
}

// isOver tells that take gives nothing any more.
func (b *inbox) isOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.ended && len(b.waiting) == 0
}

// rest waits for all that still comes to a consumer that is cancelled.
func (b *inbox) rest(each func(arrived)) {
	for {
		a, ok, ended := b.take()
		switch {
		case ok:
			each(a)
		case ended:
			return
		default:
			<-b.news
		}
	}
}
