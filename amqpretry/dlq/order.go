package dlq

import (
	"context"
	"errors"
	"io"
	"time"
)

// release ends the scan, and gives back what is held. The next browse must find all of it.
func (s *scan) release() error {
	if s.released {
		return nil
	}
	s.released = true
	left := s.leave()
	defer left()
	err := s.giveBack(false)
	s.holder.end()
	_ = s.asker.ask(s.depthChannel.Close)
	s.links.close()
	s.unlock()

	return err
}

// giveBack gives back what is held, in its order: the oldest block first, and each one only when
// the broker has counted the one before among what it has to give, since closing several channels
// at once would mix them up. It goes on when the context of the caller has ended. The error is that
// the order is another one now. again tells that the queue is read once more.
func (s *scan) giveBack(again bool) error {
	for _, b := range s.blocks {
		b.kept = b.held() // also what was on its way when a run failed: nobody takes it out any more
	}
	err := s.complete()
	for _, b := range s.blocks {
		// An open consumer with room would receive what the others give back. One without room
		// receives nothing, but the broker counts it, and await would take it for somebody else's.
		b.sealAndCount()
	}
	patience := mostUncounted
	switch {
	case s.holder != nil && !s.safety.quorum && !again: // it puts each message back in its place
		patience = 0
	case s.holder != nil:
		patience = 5 * settledWait
	}
	returned, _ := s.ready()
	for i, b := range s.blocks {
		due := s.holder.forget(b, again)
		held := b.held()
		if silent := b.giveBack(s.safety.requeue); silent != nil && i < len(s.blocks)-1 {
			err = and(err, errors.Join(&OrderError{Queue: s.queue.name, Left: s.total - s.passed}, silent))
		}
		if held > 0 && patience > 0 {
			returned = s.await(returned+held-due, &patience)
		}
	}
	s.blocks = nil

	return err
}

// defaultOrderTime is how long a run that was interrupted goes on for the sake of the order. With
// defaultHold it is less than RabbitMQ's consumer_timeout.
const defaultOrderTime = 5 * time.Minute

// complete goes on until the last block is full and its last message was never given back before,
// or to the end. A quorum queue puts what it gets back behind what it got back before, and both
// before the rest: whoever stops among those that other browses have given back would turn them
// round. And the channel returns what is on its way to a consumer that is cancelled, before its
// turn: so it is taken again, see fetch.
func (s *scan) complete() error {
	if !s.safety.quorum || len(s.blocks) == 0 {
		return nil
	}
	passing, cancel := context.WithCancelCause(context.WithoutCancel(s.ctx))
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() {
		time.AfterFunc(s.queue.client.config.OrderTime, func() { cancel(errOrderTime) })
	})()

	begun, began := s.passed, time.Now()
	for range mostRounds {
		err := s.passOn(passing, begun, began)
		if err != nil && s.intact() != nil {
			return nil // the connection is gone, and all that was held with it
		}
		if err != nil {
			order := &OrderError{Queue: s.queue.name, Left: s.total - s.passed}
			if errors.Is(err, errOrderTime) {
				return order
			}
			return errors.Join(order, err)
		}
		last := s.blocks[len(s.blocks)-1]
		if last.isFull() || last.seal() != nil {
			return nil
		}
		last.inbox.rest(func(a arrived) {
			_, _ = s.found(last, a) // what must not be seen is given back as well
			last.keep(a.delivery.DeliveryTag)
		})
		last.prefetch = last.kept
		if more, err := s.fetch(passing, last); err != nil || !more {
			return nil
		}
		ready, err := s.ready()
		if err != nil {
			return nil
		}
		s.total = s.passed + min(ready, s.most)
	}

	return nil
}

// fetch takes the next message after the last consumer was cancelled; more is false if there is
// none. What was on its way to that consumer may not be back in the queue yet, and then nothing
// counts it: a passive declare reads a state that is older than the return. A basic.get is a
// command in the log of the queue, behind the return: it gets that message, or else nothing is
// missing. The message is a block of its own: two consumers of one channel would mix up their
// order.
func (s *scan) fetch(ctx context.Context, cancelled *block) (more bool, err error) {
	if err := cancelled.barrier(); err != nil {
		return false, err
	}
	link, err := s.links.forChannel(ctx)
	if err != nil {
		return false, err
	}
	b, a, more, err := getBlock(s.queue.client.asker(link), s.queue.name, s.holder.add())
	if err != nil || !more {
		return false, err
	}
	s.blocks = append(s.blocks, b)
	_, _ = s.found(b, a) // what must not be seen is given back as well
	b.keep(a.delivery.DeliveryTag)
	b.inbox.held.arrive(&a.delivery)

	return true, nil
}

// errOrderTime ends the passing.
var errOrderTime = errors.New("restoring the order took too long")

// mostRounds bounds how often a consumer of the dead-letter queue may take away what was to fill a
// block.
const mostRounds = 20

// defaultPatience is how long it takes before somebody is told of the passing, and how often then.
const defaultPatience = 300 * time.Millisecond

// passOn keeps all that comes until the last block is full and its last message is a fresh one, or
// to the end. It has begun after so many, then.
func (s *scan) passOn(ctx context.Context, begun int, began time.Time) error {
	told := began
	for s.returned || !s.blocks[len(s.blocks)-1].isFull() {
		f, err := s.take(ctx)
		if missing := (*IncompleteError)(nil); errors.Is(err, io.EOF) || errors.As(err, &missing) {
			return nil
		}
		if err != nil {
			return err
		}
		f.keep()
		if onOrder := s.queue.client.config.OnOrder; onOrder != nil && time.Since(told) > s.queue.client.patience {
			told = time.Now()
			onOrder(s.passed-begun, s.total-begun)
		}
	}

	return nil
}

// settleTime is how long a busy broker may take to count what was given back, and consumedTime how
// long it is waited for where others consume the queue: they take it away before it is counted.
// mostUncounted bounds the sum of what was waited in vain, as where messages expire.
const (
	settleTime    = 20 * time.Second
	consumedTime  = 2 * time.Second
	mostUncounted = time.Minute
)

// await waits until the queue has so many messages, and returns how many it has. Whoever consumes
// it at the same time takes them away, and has no order to lose. It takes off patience what it has
// waited in vain.
func (s *scan) await(messages int, patience *time.Duration) (ready int) {
	began := time.Now()
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		q, err := s.counts()
		waited := time.Since(began)
		if err == nil && q.Messages >= messages {
			return q.Messages
		}
		limit := settleTime
		if s.holder != nil {
			limit = settledWait
		}
		if err != nil || waited > min(limit, *patience) || q.Consumers > 0 && waited > consumedTime {
			*patience -= waited
			return q.Messages
		}
		<-time.After(pause)
	}
}
