package retrytest

import (
	"sync"
	"time"
)

// Clock is the time in which a life is played: it stands still but for the waits, and for what a
// handler adds to play a slow one. The zero value starts at the second in which it is first looked
// at. It is safe for concurrent use, but lives that share one at the same time see each other's
// waits.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	system bool
}

// NewClock is a clock that shows start.
func NewClock(start time.Time) *Clock { return &Clock{now: start} }

// SystemClock is the clock of the system, on which waits are waited for. It is made for the bubble
// of a testing/synctest, where that takes no time: there it is one clock with time.Now, timers and
// contexts of the handler.
func SystemClock() *Clock { return &Clock{system: true} }

// Now is what the clock shows.
func (c *Clock) Now() time.Time {
	if c.system {
		return time.Now()
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	return c.show()
}

// Advance lets time pass: as much as a handler takes, when it is called there. Time never goes
// back.
func (c *Clock) Advance(d time.Duration) {
	if c.system {
		<-time.After(d)
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.now = c.show().Add(max(d, 0))
}

func (c *Clock) show() time.Time {
	if c.now.IsZero() { // a whole second, for all that is written of a life has bounds to which times are rounded
		c.now = time.Now().Truncate(time.Second)
	}

	return c.now
}
