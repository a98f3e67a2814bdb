//go:build !clocksteps

package chaos

import (
	"errors"
	"time"
)

// Now is the time by the host's clock.
func Now() time.Time { return time.Now() }

// StepClock moves the clock of the process.
func StepClock(time.Duration) error {
	return errors.New("the clock can be stepped only in a program that was built for it")
}
