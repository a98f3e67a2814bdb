package dlq

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// block holds a part of a queue: what one consumer with a channel of its own was given and has not
// acknowledged. A prefetch that the broker honours is what bounds the memory, as amqp091-go buffers
// whatever comes; and closing a channel gives its messages back in their order, which is true of
// one consumer for each channel only.
//
// Upstream: deliveries are buffered without a bound.
type block struct {
	asker

	channel  *amqp091.Channel
	inbox    *inbox
	closes   <-chan *amqp091.Error
	prefetch int
	given    int // deliveries so far
	kept     int // of them, those that are to stay
	acked    atomic.Int64
	taken    atomic.Int64 // those that are on their way out, with those that are acknowledged
	released atomic.Int64 // those that were given back one by one
	bytes    int
	shown    uint64 // tag of the last that was given to whoever reads the queue
	sealed   bool   // cancelled: gives what it has, and no more
	ending   bool   // sealed as nothing came any more
	goesOn   bool   // gets others for those that are acknowledged, until it is full

	// acks is closed when acknowledgements may be written: with each the consumer may be given
	// another message.
	acks     chan struct{}
	openAcks func()

	firstKept atomic.Uint64 // tag of the first that is to stay; 0: none so far
	asking    sync.Mutex    // one question to the broker at a time: amqp091-go does not tell whose an answer is
}

const consumerTag = "amqpretry"

func openBlock(asker asker, queue string, prefetch, room int, held *heldBlock) (*block, error) {
	var (
		channel    *amqp091.Channel
		closes     <-chan *amqp091.Error
		deliveries <-chan amqp091.Delivery
	)
	err := asker.ask(func() (err error) {
		if channel, err = asker.link.Channel(); err != nil {
			return err
		}
		closes = channel.NotifyClose(make(chan *amqp091.Error, 1))
		if err = channel.Qos(prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = channel.Consume(queue, consumerTag, false, false, false, false, nil)

		return err
	})
	if err != nil {
		return nil, explainAccess(rabbitmq.KindQueue, queue, err)
	}

	acks := make(chan struct{})
	b := &block{
		asker: asker, channel: channel, inbox: newInbox(deliveries, room, held), closes: closes, prefetch: prefetch,
		acks: acks, openAcks: sync.OnceFunc(func() { close(acks) }),
	}
	held.opened(b)

	return b, nil
}

// getBlock takes one message without a consumer; more is false if the queue has none.
func getBlock(asker asker, queue string, held *heldBlock) (b *block, a arrived, more bool, err error) {
	none := make(chan amqp091.Delivery)
	close(none)
	b = &block{asker: asker, inbox: newInbox(none, 0, held), prefetch: 1, sealed: true, acks: make(chan struct{})}
	b.openAcks = sync.OnceFunc(func() { close(b.acks) })
	err = asker.ask(func() (err error) {
		if b.channel, err = asker.link.Channel(); err != nil {
			return err
		}
		b.closes = b.channel.NotifyClose(make(chan *amqp091.Error, 1))
		a.delivery, more, err = b.channel.Get(queue, false)
		if err == nil && !more {
			err = b.channel.Close()
		}

		return err
	})
	a.size = codec.SizeInMemory(&a.delivery)
	b.openAcks()
	held.opened(b)

	return b, a, more, err
}

// keep leaves a message in the queue.
func (b *block) keep(tag uint64) {
	b.kept++
	b.firstKept.CompareAndSwap(0, tag)
}

// goOn lets acknowledgements be written. The block then gets more, so it must not be cancelled any
// more before it is full: what is on its way to a consumer that is cancelled is given back before
// its turn.
func (b *block) goOn() {
	b.goesOn = true
	b.openAcks()
}

// isFull tells whether everything that the consumer may hold is to stay, so that it gets no more.
func (b *block) isFull() bool { return b.kept >= b.prefetch }

// seal ends the consumer. What it was given stays with the channel.
func (b *block) seal() error {
	if b.sealed {
		return nil
	}
	b.sealed = true

	return b.cancel()
}

// sealAndCount ends the consumer before its messages are given back. It also counts the messages
// that nobody has come to: they go back with the others, and the broker counts them again only
// after it has ended the channel.
func (b *block) sealAndCount() {
	if !b.sealed && b.seal() == nil { // if it fails, the channel is gone
		b.inbox.rest(func(arrived) { b.given++ })
	}
}

// end seals it and does not wait: what is on its way still comes, over a slow link for long, and
// only then is the end of the deliveries.
func (b *block) end() {
	b.sealed, b.ending = true, true
	go func() { _ = b.cancel() }() // if it fails, the channel is gone
}

func (b *block) cancel() error {
	b.asking.Lock()
	err := b.ask(func() error { return b.channel.Cancel(consumerTag, false) })
	b.asking.Unlock()
	b.openAcks()

	return err
}

// ack takes messages out of the queue for good: those with these tags, in their order, all that
// were before them having gone or being kept. It returns when the broker has dealt with it, since
// what only waits there is lost with the process, and its messages come back. With reject the queue
// dead-letters them.
func (b *block) ack(tags []uint64, reject bool) error {
	<-b.acks
	n, first := len(tags), b.firstKept.Load()
	multiple := first == 0 || first > tags[n-1]
	if multiple {
		tags = tags[n-1:]
	}
	for _, tag := range tags {
		err := error(nil)
		if reject {
			err = b.channel.Nack(tag, multiple, false)
		} else {
			err = b.channel.Ack(tag, multiple)
		}
		if err != nil {
			return err
		}
	}
	b.acked.Add(int64(n))

	return b.barrier()
}

// barrier returns when the broker's channel has dealt with everything that came to it before.
func (b *block) barrier() error {
	b.asking.Lock()
	defer b.asking.Unlock()

	// which means nothing to a consumer that is there: it is asked for its answer
	return b.ask(func() error { return b.channel.Qos(leastPrefetch, 0, false) })
}

// held is how many messages go back when the channel is closed.
func (b *block) held() int { return b.given - int(b.acked.Load()+b.released.Load()) }

// giveBack returns what is not acknowledged. requeue does so by a nack, which RabbitMQ from 4.3 on
// does not count as a failure; before, it counts everything alike, and only the close keeps the
// order. The error is that of a broker that does not answer: then it takes back all that came over
// this connection, at once.
//
// Upstream: a nack counts as a failed delivery.
func (b *block) giveBack(requeue bool) error {
	if requeue && b.held() > 0 {
		_ = b.seal()                      // or it would be given what it has given back
		_ = b.channel.Nack(0, true, true) // all; if it fails, the close does it
	}
	if err := b.ask(b.channel.Close); errors.As(err, new(*silentError)) {
		return err
	}

	return nil // else it is closed, whoever has done it
}

const (
	firstPrefetch = 32
	leastPrefetch = 16
	mostPrefetch  = 1000
	// windowBytes are on their way, as far as the size of the messages before tells. There is room
	// for defaultRoom, of one block, where they become larger.
	windowBytes = 16 << 20
	defaultRoom = 4 * windowBytes
)

// prefetchFor is how many messages of that size on average are few enough to be in memory.
func prefetchFor(messages, bytes int) int {
	average := bytes/max(1, messages) + 1

	return max(leastPrefetch, min(windowBytes/average, mostPrefetch))
}
