package retrytest

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
)

// delivery is the consumer's side of a message that is handed out, as the retry middleware sees it.
type delivery struct {
	engine.Handout

	engine  *engine.Engine
	queue   string
	arrival engine.Arrival
	arrived time.Time
	msg     *message.Message

	// ctx is the message's, which a shutdown and a crash end.
	ctx    context.Context
	cancel context.CancelFunc

	left chan struct{} // closed when the handler's goroutine is out of the retry middleware
	lost chan struct{} // closed before, if that goroutine has ended instead of returning

	mu    sync.Mutex
	fault Fault // of the last call
	calls int   // of the handler, since the last step
	err   error // that the handler has returned last
}

var _ engine.Delivery = (*delivery)(nil)

type deliveryKey struct{}

func (l *life) newDelivery(arrival engine.Arrival) *delivery {
	d := &delivery{engine: l.engine, queue: l.service.Queue, arrival: arrival, arrived: l.clock.Now()}
	d.Arrive(&l.policy, &d.arrival.State)
	d.left, d.lost = make(chan struct{}), make(chan struct{})
	d.ctx, d.cancel = context.WithCancel(context.WithValue(context.Background(), deliveryKey{}, d))

	return d
}

func (d *delivery) Engine() *engine.Engine { return d.engine }
func (d *delivery) Queue() string          { return d.queue }
func (d *delivery) Withdrawn() bool        { return d.ctx.Err() != nil }
func (d *delivery) NeedsCopy() bool        { return d.arrival.ByCopy || d.State().Handled != "" }

// answered waits until the router has answered and the middleware is done with the message. ok is
// false if nobody ever will.
func (d *delivery) answered() (acked, ok bool) {
	select {
	case <-d.msg.Acked():
	case <-d.msg.Nacked():
	case <-d.lost:
	}
	<-d.left

	select {
	case <-d.msg.Acked():
		return true, true
	case <-d.msg.Nacked():
		return false, true
	default:
		return false, false
	}
}

// lastFault is that of the last call.
func (d *delivery) lastFault() Fault {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.fault
}

// called notes that the handler is called, returns that it has returned.
func (d *delivery) called(fault Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.calls++
	d.fault, d.err = fault, nil
}

func (d *delivery) returns(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.err = err
}

// returned is what the handler has returned last.
func (d *delivery) returned() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.err
}

// lastCalls tells how often the handler was called since this was asked last, and what went wrong
// with the last of them.
func (d *delivery) lastCalls() (calls int, fault Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()

	calls, d.calls = d.calls, 0

	return calls, d.fault
}
