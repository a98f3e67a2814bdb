package retrytest

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Step is one thing that happened to a message: a call of its handler, or a decision without one.
type Step struct {
	// At is when it began, Took how long its handler took.
	At   time.Time
	Took time.Duration
	// Attempt is where the message stood: see retry.AttemptFromContext. Zero under policy "off".
	Attempt retry.Attempt
	// Calls of the handler: 0 where none was allowed to see the message, more than 1 with a
	// middleware that calls it again, such as Watermill's Retry.
	Calls int
	// Class of the failure; empty if there is none.
	Class retry.Class
	// Err is the error, as the middlewares and Decide have made it.
	Err error
	// Verdict over it. The zero value means that the message was acknowledged.
	Verdict retry.Verdict
	// Waited is how long the message waited then.
	Waited time.Duration
	// Headers are all that its copy carries, which waited or is dead; nil where there was none.
	Headers map[string]string
	// Fault that the test has asked for.
	Fault Fault

	text string // of the error, as it is written on the message
}

// observe makes steps of what the middleware tells.
func (l *life) observe(e retry.Event) {
	if !l.note(e) {
		return
	}
	if l.service.OnEvent != nil {
		l.service.OnEvent(e)
	}
}

// note is false for what a dead process would tell.
func (l *life) note(e retry.Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.dead {
		return false
	}

	switch e.Kind {
	case retry.EventCall:
		l.add(Step{At: e.At, Attempt: e.Attempt})
		l.open = true
	case retry.EventSucceeded:
		l.close(Step{Took: e.Took})
	case retry.EventRequeued:
		l.close(l.takenBack(e.Took))
	case retry.EventFailed:
		l.close(Step{Took: e.Took, Class: e.Class, Err: e.Err, Verdict: e.Verdict})
	case retry.EventUnhandled:
		l.add(Step{At: e.At, Attempt: e.Attempt, Class: e.Class, Err: e.Err, Verdict: e.Verdict})
	}

	return true
}

// add begins a step.
func (l *life) add(s Step) { l.result.Steps = append(l.result.Steps, s) }

// close completes the last step with how it has ended, and with the calls of its handler.
func (l *life) close(end Step) {
	step := l.lastStep()
	step.Took, step.Class, step.Err, step.Verdict = end.Took, end.Class, end.Err, end.Verdict
	if l.open {
		step.Calls, step.Fault = l.current.lastCalls()
	}
	l.open = false
}

// takenBack is the end of a call that does not count. What the handler has returned is all that is
// known of it.
func (l *life) takenBack(took time.Duration) Step {
	s := Step{Took: took, Err: l.current.returned(), Verdict: retry.Verdict{Action: retry.ActionRequeue}}
	if l.current.Withdrawn() {
		s.Class = retry.ClassShutdown
	}

	return s
}

// crashed completes the step in which the process has died: nobody has learned what its handler
// returned.
func (l *life) crashed() {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.open { // not under policy off
		end := l.takenBack(l.clock.Now().Sub(l.lastStep().At))
		end.Class, end.Err = retry.ClassCrashed, nil
		l.close(end)
	}
}

// unobserved makes the step of a call of which the middleware tells nothing: under policy off.
func (l *life) unobserved(acked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	end := l.takenBack(l.clock.Now().Sub(l.current.arrived))
	if acked {
		end.Verdict = retry.Verdict{}
	}
	l.add(Step{At: l.current.arrived})
	l.open = true
	l.close(end)
}

func (l *life) lastStep() *Step { return &l.result.Steps[len(l.result.Steps)-1] }

func (l *life) last() Step {
	l.mu.Lock()
	defer l.mu.Unlock()

	return *l.lastStep()
}

// text is that of an error as it is written on the message. Errors and ErrorText are foreign code,
// which may panic.
func (s Service) text(err error) (text string) {
	if err == nil {
		return ""
	}

	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the error's text is lost: it panicked with %T)", r)
		}
	}()

	if s.ErrorText != nil {
		return wire.Text(s.ErrorText(err), wire.MaxErrorBytes)
	}

	return wire.Text(err.Error(), wire.MaxErrorBytes)
}
