package protect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

// maxAnswer is how long a claim is renewed after its handler has succeeded, for a message that
// nobody answers.
const maxAnswer = time.Hour

// callID is what an inbox knows a message by.
type callID struct{ handler, key string }

// mark is what is noted on a message whose handler has succeeded. A failure that has it is one that
// a middleware outside has made of a success.
func (i callID) mark() string {
	sum := sha256.Sum256([]byte(joined(i.handler, i.key)))

	return hex.EncodeToString(sum[:16])
}

// failed is an error of the store.
func (i callID) failed(op string, err error) *StoreError {
	return &StoreError{Op: op, Handler: i.handler, Key: i.key, Err: err}
}

// inInbox handles a message that nobody has handled.
func (d *Deduplicator) inInbox(h message.HandlerFunc, msg *message.Message, key string) ([]*message.Message, error) {
	ctx := msg.Context()
	id := callID{handlerIn(ctx, d.config.Name), key}
	if d.isInside(id, msg) {
		return h(msg)
	}
	call := d.again(id, msg)
	if call == nil {
		claim, err := d.claim(ctx, id)
		if err != nil {
			return nil, err
		}
		if claim.State() == store.Done {
			return d.done(h, msg, id)
		}
		call = d.newCall(id, claim, msg)
	}

	return call.handle(h, msg)
}

// done is for a message that was handled. It is handled again if its own success was made a
// failure, or if it must.
func (d *Deduplicator) done(h message.HandlerFunc, msg *message.Message, id callID) ([]*message.Message, error) {
	ctx := msg.Context()
	attempt, _ := retry.AttemptFromContext(ctx)
	if engine.HandledMark(ctx) != id.mark() && (!d.config.HandleReplays || attempt.Replays == 0) {
		return nil, nil
	}
	produced, err := h(msg)
	if err == nil {
		engine.MarkHandled(ctx, id.mark())
	}

	return produced, err
}

// claim returns a claim that is New or Done. Until there is one the message is postponed; one that
// cannot be postponed waits in place.
func (d *Deduplicator) claim(ctx context.Context, id callID) (store.Claim, error) {
	for {
		claim, err := d.begin(ctx, id)
		wait, why := d.config.Postpone, ErrInFlight
		switch {
		case err != nil:
			why = id.failed("claim", err)
			d.reportOften(why)
		case claim.State() != store.InFlight:
			return claim, nil
		case claim.Rest() > 0:
			wait = min(wait, claim.Rest())
		}
		if _, ok := postponable(ctx); ok {
			return nil, postponed(ctx, why, wait)
		}
		if err := pause(ctx, wait); err != nil {
			return nil, fmt.Errorf("%w: %w", err, why)
		}
	}
}

func (d *Deduplicator) begin(ctx context.Context, id callID) (claim store.Claim, err error) {
	// An answer that comes later leaves too little of the lease.
	ctx, cancel := context.WithTimeout(ctx, min(d.config.Timeout, d.config.Lease/2))
	defer cancel()

	err = safely(func() error {
		claim, err = d.config.Inbox.Begin(ctx, id.handler, id.key, d.config.Lease)
		switch {
		case err != nil:
			return err
		case claim == nil || isNilPointer(claim):
			return fmt.Errorf("the store %T returned neither a claim nor an error", d.config.Inbox)
		default:
			return checkState(d.config.Inbox, claim.State())
		}
	})

	return claim, err
}

// checkState returns an error for a state that no store may return. Its message would be taken for
// a new one, or be postponed for ever and nobody would know why.
func checkState(inbox any, s store.State) error {
	switch s {
	case store.New, store.InFlight, store.Done:
		return nil
	default:
		return fmt.Errorf("the store %T returned the state %d: neither New, InFlight nor Done", inbox, s)
	}
}

// pause waits for d, unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// inboxCall is a call of a handler with a claim of ours. In the background the claim is renewed
// while the handler runs, and, after it has succeeded, until the router has answered the message.
type inboxCall struct {
	d             *Deduplicator
	id            callID
	claim         store.Claim
	acked, nacked <-chan struct{}

	ctx     context.Context // of the store, which the end of the message's does not concern
	cancel  context.CancelFunc
	stopped chan struct{}

	// These are the background's while it runs.
	lost  bool
	ended bool
}

func (d *Deduplicator) newCall(id callID, claim store.Claim, msg *message.Message) *inboxCall {
	return &inboxCall{
		d: d, id: id, claim: claim, acked: msg.Acked(), nacked: msg.Nacked(),
		ctx: context.WithoutCancel(msg.Context()),
	}
}

// isInside tells whether the delivery has a claim already, as this Deduplicator wraps its handler
// twice. The claim would postpone its own message for ever.
func (d *Deduplicator) isInside(id callID, msg *message.Message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	acked, runs := d.running[id]

	return runs && acked == msg.Acked()
}

// enter notes which delivery the handler runs for, until leave is called.
func (d *Deduplicator) enter(id callID, acked <-chan struct{}) (leave func()) {
	if acked == nil { // not made by Watermill's constructor: it cannot be told from others
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()

	d.running[id] = acked

	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()

		if d.running[id] == acked { // else its claim was lost, and another delivery has it
			delete(d.running, id)
		}
	}
}

// again returns the call of a delivery whose handler has succeeded and is called again: it still
// has the claim.
func (d *Deduplicator) again(id callID, msg *message.Message) *inboxCall {
	d.mu.Lock()
	call := d.calls[id]
	d.mu.Unlock()
	if call == nil || call.acked != msg.Acked() {
		return nil
	}
	if call.stop(); call.lost || call.ended {
		return nil
	}

	return d.newCall(id, call.claim, msg)
}

// handle calls the handler, and ends the claim if it fails: also if by a panic.
func (c *inboxCall) handle(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx, succeeded := msg.Context(), false
	defer c.d.enter(c.id, msg.Acked())()
	c.background(func(ctx context.Context) { c.renewing(ctx, nil, nil) })
	defer func() {
		c.stop()
		switch {
		case c.lost: // and told
		case succeeded:
			c.await()
		default:
			c.release()
		}
	}()

	produced, err := h(msg)
	if err == nil {
		engine.MarkHandled(ctx, c.id.mark())
		// A message that was not made by Watermill's constructor has no channel to tell of its
		// answer. Without outputs the answer does not matter.
		if succeeded = c.acked != nil || len(produced) == 0; succeeded && c.acked == nil {
			c.acked = closed
		}
	}

	return produced, err
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// background begins to work for the claim.
func (c *inboxCall) background(work func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.cancel, c.stopped = cancel, make(chan struct{})
	stopped := c.stopped
	go func() {
		defer close(stopped)
		work(ctx)
	}()
}

// stop ends the work in the background. What was begun with the store is broken off.
func (c *inboxCall) stop() {
	c.cancel()
	<-c.stopped
}

// await ends the claim when the router has answered the message: an acknowledgement means that the
// outputs are published.
func (c *inboxCall) await() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()

	c.d.calls[c.id] = c
	c.d.pending++
	c.background(func(ctx context.Context) {
		defer c.forget()
		c.renewing(ctx, c.acked, c.nacked)
		if ctx.Err() != nil || c.lost {
			return
		}
		c.ended = true
		if isClosed(c.nacked) {
			c.release()
		} else if isClosed(c.acked) {
			c.commit()
		}
	})
}

// forget is the end of await.
func (c *inboxCall) forget() {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.calls[c.id] == c {
		delete(d.calls, c.id)
	}
	if d.pending--; d.pending == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// renewing renews the claim until the message is answered, nobody wants it any more, or it is lost.
func (c *inboxCall) renewing(ctx context.Context, acked, nacked <-chan struct{}) {
	each := c.d.config.Lease / 3
	ticker := time.NewTicker(each)
	defer ticker.Stop()

	var last <-chan time.Time // nobody answers any more
	if acked != nil {
		timer := time.NewTimer(maxAnswer)
		defer timer.Stop()
		last = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-acked:
			return
		case <-nacked:
			return
		case <-last:
			return
		case <-ticker.C:
		}
		err := c.ask(ctx, min(each, c.d.config.Timeout), func(ctx context.Context) error {
			return c.claim.Renew(ctx, c.d.config.Lease)
		})
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.d.report(c.id.failed("renew", err))
		if c.lost = errors.Is(err, store.ErrLost); c.lost {
			return
		}
	}
}

// ask asks the store, for a while.
func (c *inboxCall) ask(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	return safely(func() error { return f(ctx) })
}

func (c *inboxCall) release() {
	if err := c.ask(c.ctx, c.d.config.Timeout, c.claim.Release); err != nil {
		c.d.report(c.id.failed("release", err)) // the lease runs out
	}
}

// commit says that the message is handled, until the store has heard it or the lease must have run
// out.
func (c *inboxCall) commit() {
	wait, until := 50*time.Millisecond, time.Now().Add(c.d.config.Lease)
	for {
		err := c.ask(c.ctx, c.d.config.Timeout, c.claim.Commit)
		if err == nil {
			return
		}
		if errors.Is(err, store.ErrLost) || time.Now().Add(wait).After(until) {
			c.d.report(c.id.failed("commit", err))
			return
		}
		_ = pause(c.ctx, wait)
		wait = min(2*wait, time.Second)
	}
}

// Close waits until the Inbox knows of all messages that were handled, for one Lease at most. Call
// it after the router is closed and before the process ends. Without an Inbox there is nothing to
// wait for. The Deduplicator can be used further.
func (d *Deduplicator) Close() error {
	d.mu.Lock()
	if d.pending == 0 {
		d.mu.Unlock()
		return nil
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()

	timer := time.NewTimer(d.config.Lease)
	defer timer.Stop()

	select {
	case <-idle:
		return nil
	case <-timer.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()

	for _, call := range d.calls {
		call.cancel()
	}

	return fmt.Errorf("cannot close the deduplicator: the inbox does not know of %d handled messages; it takes them "+
		"for unhandled after their lease", d.pending)
}
