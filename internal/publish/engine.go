package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/publish"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// engineSettings say how an Engine publishes.
type engineSettings struct {
	Connection *connection.Connection
	// Name of the publisher, for errors: "delay publisher".
	Name string
	// Timeout bounds a call, if the contexts of its messages do not end before.
	Timeout time.Duration
	// Repairs is false when nothing that is missing is declared again.
	Repairs bool
}

// Engine publishes batches. It is safe for concurrent use.
type Engine struct {
	settings engineSettings
	sender   *sender
	refusals refusals

	timeout error         // of a call
	alone   chan struct{} // attempts that have channels of their own

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	bounded context.Context // see within
	began   time.Time       // it
	closed  bool
	running sync.WaitGroup // calls
}

// NewEngine returns an engine. It owns the connection.
func NewEngine(settings engineSettings) *Engine {
	ctx, cancel := context.WithCancelCause(context.Background())

	return &Engine{settings: settings, sender: newSender(manyCallers), ctx: ctx, cancel: cancel,
		alone: make(chan struct{}, 4), timeout: fmt.Errorf("tried for %s", settings.Timeout)}
}

// Begin begins a call, which Close waits for until end is called. It fails after Close.
func (e *Engine) Begin(topic string) (end func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.closed {
		return nil, fmt.Errorf("cannot publish to topic %q: the %s is %w", topic, e.settings.Name, connection.ErrClosed)
	}
	e.running.Add(1)

	return e.running.Done, nil
}

// Close waits for calls until the deadline, and ends those that are left. It takes a second or two more if the broker
// does not answer.
func (e *Engine) Close(deadline time.Time) {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()

	connection.WaitUntil(deadline, e.running.Wait)
	e.cancel(connection.ErrClosed)
	connection.WaitUntil(time.Now().Add(time.Second), e.running.Wait)
	e.settings.Connection.Close(time.Now().Add(time.Second))
}

// Send publishes a batch until the broker has confirmed all of it, the timeout or the contexts of the messages end, or
// the engine is closed. What became of each message is in itself.
func (e *Engine) Send(b *Batch, route Route) {
	within := e.within()
	var rounds rounds
	var missing time.Time // when the last message was published for which something was missing
	open := b.Messages
	for {
		before := missing
		tried := rounds.next(open)
		ctx, end := bound(within, tried)
		err := e.try(ctx, tried, route, &missing)
		if open = b.Open(); len(open) == 0 {
			end()
			return
		}
		for _, m := range open {
			if err != nil && !m.hasEnded() {
				m.Err = withReason(ctx, err, m.Err)
			}
		}
		end()
		if isFinal(err) {
			b.Final = true
			return
		}
		if !wanted(open) {
			return
		}
		if err == nil && before.IsZero() && !missing.IsZero() && e.settings.Repairs {
			continue // it is declared again at once, for the first time
		}
		if wait := rounds.pause(tried); wait > 0 && !pause(within, wait, open) {
			return
		}
	}
}

// within is the context of a call. All calls of a hundredth of the timeout have the same one, and a hundredth more time
// at the most: to make one for each message takes as long as to publish it.
func (e *Engine) within() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()

	now := time.Now()
	if e.bounded == nil || now.Sub(e.began) > e.settings.Timeout/100 {
		e.began = now
		bounded, cancel := context.WithTimeoutCause(e.ctx, e.settings.Timeout+e.settings.Timeout/100, e.timeout)
		context.AfterFunc(bounded, cancel) // it ends by itself, or with Close
		e.bounded = bounded
	}

	return e.bounded
}

// pause waits between two attempts. It returns false when there is to be no other, and tells the messages why.
func pause(within context.Context, d time.Duration, open []*Message) bool {
	ctx, end := bound(within, open)
	defer end()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		return true
	}
	for _, m := range open {
		if !m.hasEnded() {
			m.Err = because(ctx, m.Err)
		}
	}

	return false
}

// wanted tells whether the context of a message has not ended. If all have, it adds their ends to what was wrong before.
func wanted(open []*Message) bool {
	for _, m := range open {
		if m.ctx.Err() == nil {
			return true
		}
	}
	for _, m := range open {
		m.Err = because(m.ctx, m.Err)
	}

	return false
}

// bound returns a context that ends when those of all messages have ended.
func bound(within context.Context, messages []*Message) (context.Context, context.CancelFunc) {
	for _, m := range messages {
		if m.ctx.Done() == nil { // then not all of them end
			return within, func() {}
		}
	}
	ctx, cancel := context.WithCancelCause(within)

	var left atomic.Int64
	left.Store(int64(len(messages)))
	stops := make([]func() bool, 0, len(messages))
	for _, m := range messages {
		stops = append(stops, context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(m.ctx))
			}
		}))
	}

	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// try makes one attempt to publish what is open. The outcome of a message is in itself; an error means that this was
// the outcome of all that are open, or that no message may be published at all.
func (e *Engine) try(ctx context.Context, open []*Message, route Route, missing *time.Time) error {
	link, err := e.settings.Connection.TryLink(ctx)
	if err != nil {
		return withReason(ctx, err, e.settings.Connection.Failure())
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		if ctx.Err() != nil {
			err = &publish.BlockedError{Reason: link.BlockedFor(), Err: err}
		}
		return err
	}
	if err := route.Ready(ctx, link, *missing); err != nil {
		return err
	}
	a := &attempt{ctx: ctx, link: link, route: route, missing: missing, sender: e.sender,
		refusals: &e.refusals, messages: suspects(open)}
	if len(a.messages) > 0 {
		select {
		case e.alone <- struct{}{}:
			defer func() { <-e.alone }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a.sender, a.oneByOne = newSender(manyCallers), true
		defer a.sender.retire()
	} else {
		a.messages = open
	}
	a.publish()

	return a.final
}

// finalError is one that another attempt does not end.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Final marks an error that another attempt does not end.
func Final(err error) error { return &finalError{err} }

func isFinal(err error) bool {
	var final *finalError

	return errors.As(err, &final)
}
