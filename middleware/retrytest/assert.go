package retrytest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/retry"
)

// T is what an assertion needs of a *testing.T.
type T interface {
	// Helper marks the caller as a helper, as testing.T does.
	Helper()
	// Errorf reports a failure, as testing.T does.
	Errorf(format string, args ...any)
}

// AssertSucceeded checks that the handler succeeded at this attempt, 1 for the first. It does not
// hold for a message that was swallowed: see [Result.AssertSwallowed]. Like all assertions here it
// reports what it found with the whole life, and tells whether it holds.
func (r Result) AssertSucceeded(t T, attempt int) bool {
	t.Helper()

	return r.assert(t, r.End == Succeeded && !r.Swallowed && r.Attempts() == attempt,
		fmt.Sprintf("%s at attempt %d", Succeeded, attempt))
}

// AssertSwallowed checks that the message was acknowledged although its handler had not succeeded:
// by a middleware such as Watermill's IgnoreErrors, or one that drops duplicates.
func (r Result) AssertSwallowed(t T) bool {
	t.Helper()

	return r.assert(t, r.Swallowed, "swallowed")
}

// AssertDeadLettered checks that the message ended in the dead-letter queue, and why.
func (r Result) AssertDeadLettered(t T, reason retry.Reason) bool {
	t.Helper()

	return r.assert(t, r.End == DeadLettered && r.DeadLetter.Reason == reason, deadLettered(reason))
}

// AssertDropped checks that the message was dropped: by its error, or because it had expired under
// OnExpiry "drop".
func (r Result) AssertDropped(t T) bool {
	t.Helper()

	return r.assert(t, r.End == Dropped, string(Dropped))
}

// AssertDelays checks all waits, in order: see [Result.Delays].
func (r Result) AssertDelays(t T, delays ...time.Duration) bool {
	t.Helper()

	return r.assert(t, slices.Equal(r.Delays(), delays), fmt.Sprintf("delays %v, found %v", delays, r.Delays()))
}

// AssertCalls checks how often the handler was called.
func (r Result) AssertCalls(t T, calls int) bool {
	t.Helper()

	return r.assert(t, r.Calls() == calls, plural(calls, "call"))
}

func (r Result) assert(t T, holds bool, wanted string) bool {
	t.Helper()
	if holds && r.Err == nil {
		return true
	}
	t.Errorf("wanted: %s\n%s", wanted, indent(r.String()))

	return false
}

func indent(text string) string { return "\t" + strings.ReplaceAll(text, "\n", "\n\t") }
