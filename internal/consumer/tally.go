package consumer

import (
	"sync"
	"time"
)

// tally counts what is under way, like a sync.WaitGroup. Unlike one, a wait can have a bound, and
// Add may be called during a wait.
type tally struct {
	mu    sync.Mutex
	count int
	late  int           // of count, those that a wait has given up
	eased chan struct{} // closed when the count goes down; nil while nobody waits
}

// Add counts n more.
func (t *tally) Add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.count += n
}

// Done counts one less.
func (t *tally) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.count--
	t.late = min(t.late, t.count)
	if t.eased != nil {
		close(t.eased)
		t.eased = nil
	}
}

// Go counts one more until f returns, in a goroutine of its own.
func (t *tally) Go(f func()) {
	t.Add(1)
	go func() {
		defer t.Done()
		f()
	}()
}

// Wait waits until the count is zero.
func (t *tally) Wait() {
	for {
		eased := t.above(func() int { return 0 })
		if eased == nil {
			return
		}
		<-eased
	}
}

// within waits until the count is zero, for bound at the longest, and not after stop. It reports
// whether the count was zero. What has taken longer once is not waited for again.
func (t *tally) within(bound time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()

	for {
		eased := t.above(func() int { return t.late })
		if eased == nil {
			return t.isZero()
		}
		select {
		case <-eased:
		case <-timer.C:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.late = t.count

			return t.count == 0
		case <-stop:
			return t.isZero()
		}
	}
}

// above gives a channel that is closed when the count goes down; nil if it is not above the limit.
func (t *tally) above(limit func() int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.count <= limit() {
		return nil
	}
	if t.eased == nil {
		t.eased = make(chan struct{})
	}

	return t.eased
}

func (t *tally) isZero() bool { return t.value() == 0 }

func (t *tally) value() int {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.count
}
