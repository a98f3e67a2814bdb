//go:build clocksteps

package chaos

import (
	"sync/atomic"
	"time"
)

// This file needs the standard library with a clock that can be stepped: see clock_test.go.

// Now is the time by the host's clock, without steps.
func Now() time.Time { return time.Now().Add(-time.Duration(atomic.LoadInt64(&time.SteppedBy))) }

// StepClock moves the wall clock of the process, as an operator or NTP does: the monotonic one goes
// on as it was.
func StepClock(d time.Duration) error {
	atomic.AddInt64(&time.SteppedBy, int64(d))
	return nil
}
