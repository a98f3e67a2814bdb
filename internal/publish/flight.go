package publish

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// declareWait is how long a copy waits for the broker's answer to a declaration. The declaration itself goes on:
// RabbitMQ from 4.0 on takes a minute to tell that the node of a classic queue is down.
const declareWait = 30 * time.Second

// Flight runs one declaration, or one question, at a time. Each has a goroutine of its own and ends with the broker's
// answer or the connection, so a broker that does not answer keeps one channel, and callers wait for as long as they
// like.
type Flight struct {
	mu        sync.Mutex
	running   *declaration
	succeeded time.Time
}

// declaration is a declaration that all callers share who come while it runs.
type declaration struct {
	done chan struct{}
	err  error // read after done
}

// Do runs declare, or joins the one that runs. It does nothing if one has succeeded since then.
func (f *Flight) Do(ctx context.Context, since time.Time, declare func() error) error {
	a, _ := f.join(since, declare)

	return a.wait(ctx)
}

// DoWith is [Flight.Do] for a declaration over a channel that the caller closes afterwards. A caller whose declaration
// runs waits until it ends: with the broker's answer, or with the connection. A caller who joins waits as with Do.
func (f *Flight) DoWith(ctx context.Context, since time.Time, declare func() error) error {
	a, begun := f.join(since, declare)
	if begun {
		<-a.done
	}

	return a.wait(ctx)
}

// join starts an declaration that runs declare, unless one runs or has succeeded since then.
func (f *Flight) join(since time.Time, declare func() error) (a *declaration, begun bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.succeeded.After(since) {
		return succeeded, false
	}
	if f.running != nil {
		return f.running, false
	}
	f.running = &declaration{done: make(chan struct{})}
	go f.run(f.running, declare)

	return f.running, true
}

// succeeded is an declaration that has ended without an error.
var succeeded = func() *declaration {
	a := &declaration{done: make(chan struct{})}
	close(a.done)

	return a
}()

// wait returns the result of an declaration, unless ctx ends or the broker does not answer before.
func (a *declaration) wait(ctx context.Context) error {
	select {
	case <-a.done: // also when ctx has ended
		return a.err
	default:
	}
	timeout := time.NewTimer(declareWait)
	defer timeout.Stop()

	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return fmt.Errorf("cannot declare what is missing: the broker has not answered for %s", declareWait)
	}
}

func (f *Flight) run(a *declaration, declare func() error) {
	defer close(a.done)
	a.err = declare()

	f.mu.Lock()
	defer f.mu.Unlock()

	f.running = nil
	if a.err == nil {
		f.succeeded = time.Now()
	}
}

// current returns the declaration that the broker has not answered yet; nil if there is none.
func (f *Flight) current() *declaration {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.running
}
