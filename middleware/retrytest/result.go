package retrytest

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// End is how a life has ended.
type End string

// The ends.
const (
	// Succeeded means acknowledged: the handler succeeded, and its outputs were published; or
	// Swallowed.
	Succeeded    End = "succeeded"
	DeadLettered End = "dead-lettered" // in the dead-letter queue
	Dropped      End = "dropped"       // acknowledged, because the error or the policy says so
)

// Result is the life of a message.
type Result struct {
	// UUID of the message, and the Topic that it was published to.
	UUID, Topic string
	// Steps are what happened, in order.
	Steps []Step
	// End is empty with an Err.
	End End
	// Swallowed is true if the message was acknowledged as a success, and the last call of its
	// handler has failed, or there was none: a middleware in between has answered for it.
	Swallowed bool
	// DeadLetter is what lies in the dead-letter queue; nil if nothing does.
	DeadLetter *DeadLetter
	// Outputs are the messages that were published.
	Outputs []*message.Message
	// Began and Ended are the times of the clock.
	Began, Ended time.Time
	// Err is why there is no end: what is wrong with the service (joined config.FieldErrors), an
	// EndlessError, or a handler that calls runtime.Goexit under policy off.
	Err error
}

// DeadLetter is a message in the dead-letter queue, read as it is written there.
type DeadLetter struct {
	retry.DeadLetter
	// Message is what a handler gets that Retrier.NewDeadLetterSubscriber feeds, with the above in
	// its context: it can be called with it.
	Message *message.Message
	// Headers are all that it carries.
	Headers map[string]string

	queued queued
}

func newDeadLetter(at queued, queue string) *DeadLetter {
	state, _ := wire.ReadDead(at.headers, queue)
	msg := raw(at, state)
	if uuid := msg.Metadata[uuidKey]; uuid != "" {
		msg.UUID = uuid
	}
	delete(msg.Metadata, uuidKey)
	l := engine.DeadLetterOf(state)
	msg.SetContext(retry.NewDeadLetterContext(context.Background(), l))

	return &DeadLetter{DeadLetter: l, Message: msg, Headers: at.texts(), queued: at}
}

// EndlessError means that a life has not ended within [Service.MaxDeliveries].
type EndlessError struct {
	Deliveries int           // so many
	For        time.Duration // in the time of the clock
	Last       Step
}

func (e *EndlessError) Error() string {
	return fmt.Sprintf("no end after %d deliveries in %s, the last verdict was %q. The handler may postpone or nack "+
		"again and again; under policy off, failed messages return at once, for ever. For a longer life, raise "+
		"Service.MaxDeliveries", e.Deliveries, e.For, e.Last.Verdict)
}

// Calls is how often the handler was called.
func (r Result) Calls() int {
	calls := 0
	for _, s := range r.Steps {
		calls += s.Calls
	}

	return calls
}

// Attempts is the number of the last attempt in which the handler was called: immediate tries are
// part of one, and postponing uses none up.
func (r Result) Attempts() int {
	last := 0
	for _, s := range r.Steps {
		if s.Calls > 0 {
			last = max(last, s.Attempt.Number)
		}
	}

	return last
}

// Delays are the waits, each from a failure to the next time that the message could be handled. One
// that took several delays of the policy, as RetryAfter and Postpone can, is their sum. Immediate
// tries wait for nothing.
func (r Result) Delays() []time.Duration {
	var delays []time.Duration
	for _, s := range r.Steps {
		switch {
		case s.Waited == 0:
		case s.isHop() && len(delays) > 0:
			delays[len(delays)-1] += s.Waited
		default:
			delays = append(delays, s.Waited)
		}
	}

	return delays
}

// isHop tells whether the message was not due yet, and went on waiting.
func (s Step) isHop() bool {
	return s.Calls == 0 && s.Verdict.Action == retry.ActionPostpone
}

// longest is how many steps a String shows of the beginning, and of the end.
const longest = 20

// String shows the whole life, one line for each step with the time since its beginning.
func (r Result) String() string {
	var b strings.Builder
	b.WriteString(r.summary() + "\n")

	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, s := range r.Steps {
		if left := len(r.Steps) - 2*longest; left > 0 && i >= longest && i < longest+left {
			if i == longest {
				_, _ = fmt.Fprintf(table, "  \t(%d more)\t\t\n", left)
			}

			continue
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", s.At.Sub(r.Began), s.who(), s.what(), s.then())
	}
	_ = table.Flush()

	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}

	return strings.Join(lines, "\n")
}

// summary is the end in one line.
func (r Result) summary() string {
	subject := fmt.Sprintf("message %q of topic %q", r.UUID, r.Topic)
	after := fmt.Sprintf("after %s and %s", plural(r.Calls(), "call"), r.Ended.Sub(r.Began))

	switch {
	case r.Err != nil && len(r.Steps) == 0:
		return "nothing was run: " + r.Err.Error()
	case r.Err != nil:
		return fmt.Sprintf("%s: given up %s: %s", subject, after, r.Err)
	case r.DeadLetter != nil:
		return fmt.Sprintf("%s: %s %s", subject, deadLettered(r.DeadLetter.Reason), after)
	case r.End == "":
		return "nothing was run"
	case r.Swallowed:
		return fmt.Sprintf("%s: swallowed %s: a middleware has acknowledged it, and its handler has not succeeded",
			subject, after)
	}

	return fmt.Sprintf("%s: %s %s", subject, r.End, after)
}

func deadLettered(reason retry.Reason) string {
	return fmt.Sprintf("%s (%s)", DeadLettered, reason)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}

	return fmt.Sprintf("%d %ss", n, what)
}

// who says which call it was.
func (s Step) who() string {
	switch {
	case s.isHop():
		return "not due yet"
	case s.Calls == 0:
		return "no handler called"
	case s.Attempt.Number == 0:
		return "handler called"
	}

	text := fmt.Sprintf("attempt %d of %d", s.Attempt.Number, s.Attempt.MaxRetries+1)
	if s.Attempt.Try > 1 {
		text += fmt.Sprintf(", try %d", s.Attempt.Try)
	}
	if s.Calls > 1 {
		text += fmt.Sprintf(", %d calls", s.Calls)
	}
	if s.Took > 0 {
		text += fmt.Sprintf(", took %s", s.Took)
	}

	return text
}

// maxShown is how much of an error text a String shows.
const maxShown = 120

// what says how it ended.
func (s Step) what() string {
	text, rest, _ := strings.Cut(s.text, "\n")
	text = strings.ReplaceAll(text, "\t", " ")
	if rest != "" {
		text += " …"
	}
	text = wire.Text(text, maxShown)

	switch {
	case s.Fault == Crash:
		return "the process died"
	case s.Class == retry.ClassShutdown && text != "":
		return "taken away by a shutdown: " + text
	case s.Class == retry.ClassShutdown:
		return "taken away by a shutdown"
	case s.isHop():
		return ""
	case s.Err == nil && s.Verdict.Action == "":
		return "succeeded"
	}

	return text
}

// then says what followed.
func (s Step) then() string {
	switch {
	case s.Verdict.Action == "":
		return "acknowledged"
	case s.Verdict.Wait > 0:
		return fmt.Sprintf("%s, shortened to %s", s.Verdict, s.Verdict.Wait)
	}

	return s.Verdict.String()
}
