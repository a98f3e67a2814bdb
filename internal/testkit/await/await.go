// Package await waits for events in tests, with one bound for all of them. The bound only ends a
// test that would wait for ever: on a busy machine an event comes late, and that is no fault. A
// test that is about time compares times itself, so that the wrong case takes longer, not the right
// one shorter.
package await

import (
	"fmt"
	"testing"
	"time"
)

const (
	// Bound is how long an event may take to come.
	Bound = 2 * time.Minute
	// Tick is the pause between two looks at a condition. They become rarer while it is awaited:
	// many tests look at a broker at the same time, which answers none of them sooner for being
	// asked more often.
	Tick    = 20 * time.Millisecond
	maxTick = 200 * time.Millisecond
)

// Until returns when the condition holds, and fails the test after [Bound]. It asks in the
// goroutine of the test. What is awaited is a format and its arguments, or nothing.
func Until(t testing.TB, condition func() bool, what ...any) {
	t.Helper()
	Within(t, Bound, condition, what...)
}

// Within is [Until] with a bound of its own, for an event that takes minutes by itself.
func Within(t testing.TB, bound time.Duration, condition func() bool, what ...any) {
	t.Helper()
	pause := Tick
	for deadline := time.Now().Add(bound); ; pause = min(pause*5/4, maxTick) {
		late := time.Now().After(deadline) // before the last look: a machine may stand still between the two
		if condition() {
			return
		}
		if late {
			t.Fatalf("not within %s: %s", bound, text(what))
		}
		<-time.After(pause)
	}
}

// Stays fails the test if the condition does not hold all the time, for as long as lasting.
func Stays(t testing.TB, lasting time.Duration, condition func() bool, what ...any) {
	t.Helper()
	for deadline := time.Now().Add(lasting); ; {
		over := time.Now().After(deadline)
		if !condition() {
			t.Fatalf("no longer: %s", text(what))
		}
		if over {
			return
		}
		<-time.After(Tick)
	}
}

// Closed returns when a channel is closed or has a value, and fails the test after [Bound].
func Closed[T any](t testing.TB, ch <-chan T, what string) {
	t.Helper()
	Value(t, ch, what)
}

// Value returns the next value of a channel, the zero value of one that is closed, and fails the
// test after [Bound].
func Value[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-ch:
		return value
	case <-time.After(Bound):
		t.Fatalf("not within %s: %s", Bound, what)
		panic("unreachable")
	}
}

func text(what []any) string {
	if len(what) == 0 {
		return "the condition"
	}
	format, _ := what[0].(string)

	return fmt.Sprintf(format, what[1:]...)
}
