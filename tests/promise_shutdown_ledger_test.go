package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/retry"
)

// shutdownLedger keeps what happened to the messages of one queue, over all the services that came
// and went.
//
// The ledgers of tests/chaos and tests/cluster follow messages through faults, which explain
// duplicates. This one follows single calls: when each began, what its handler answered in time or
// late, whether the output was sent, and by which event it ended. Where nothing fails but the
// service closes, it allows no call that repeats another.
type shutdownLedger struct {
	mu       sync.Mutex
	calls    map[string][]*shutdownCall // by message, in their order
	ends     map[shutdownAttempt]retry.EventKind
	crashed  map[string]int // up to RabbitMQ 4.2, quorum queues count what closes give back
	archived map[string]int // by those who are subscribed to dead letters
	foreign  []string       // what should not have been called at all
}

type shutdownAttempt struct {
	life   int // of the service
	id     string
	number int
}

type shutdownCall struct {
	shutdownAttempt
	began  time.Time
	ended  bool
	err    error
	inTime bool // the message was still ours when the handler was done
	output bool // it has an output,
	sent   bool // which the broker has confirmed
}

func newShutdownLedger() *shutdownLedger {
	return &shutdownLedger{
		calls: map[string][]*shutdownCall{}, ends: map[shutdownAttempt]retry.EventKind{}, archived: map[string]int{},
		crashed: map[string]int{},
	}
}

func (c *shutdownCall) succeeded() bool { return c.ended && c.err == nil && (!c.output || c.sent) }

// unsent tells that a handler has succeeded whose output could not be published: its publisher was
// closed before.
func unsent(c *shutdownCall) bool { return c.err == nil && c.output && !c.sent }

func (l *shutdownLedger) begin(life int, msg *message.Message) *shutdownCall {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	c := &shutdownCall{shutdownAttempt: shutdownAttempt{life, msg.UUID, attempt.Number}, began: time.Now()}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[msg.UUID] = append(l.calls[msg.UUID], c)

	return c
}

func (l *shutdownLedger) end(c *shutdownCall, msg *message.Message, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.ended, c.err, c.inTime, c.output = true, err, msg.Context().Err() == nil, fate.Of(msg.UUID) == hasOutput
}

func (l *shutdownLedger) sent(life int, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls[id] {
		if c.life == life && c.ended {
			c.sent = true
		}
	}
}

func (l *shutdownLedger) archive(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.archived[id]++
}

func (l *shutdownLedger) hear(life int, e retry.Event) {
	if e.Message == nil || e.DeadLetters {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	switch e.Kind {
	case retry.EventUnhandled:
		if e.Class == retry.ClassCrashed {
			l.crashed[e.Message.UUID]++
		}
		return
	case retry.EventSucceeded, retry.EventRequeued, retry.EventRetried, retry.EventDeadLettered, retry.EventAbandoned:
	default:
		return
	}
	attempt := shutdownAttempt{life, e.Message.UUID, e.Attempt.Number}
	if l.ends[attempt] == retry.EventRetried || l.ends[attempt] == retry.EventDeadLettered {
		return // a stock subscriber can call a handler twice for one attempt, which then has this end
	}
	l.ends[attempt] = e.Kind
}

func (l *shutdownLedger) done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for id, calls := range l.calls {
		if slices.ContainsFunc(calls, (*shutdownCall).succeeded) {
			n++
			continue
		}
		died := func(c *shutdownCall) bool { return l.ends[c.shutdownAttempt] == retry.EventDeadLettered }
		if fate.Of(id).Dies() && slices.ContainsFunc(calls, died) {
			n++
		}
	}

	return n
}

func (l *shutdownLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, calls := range l.calls {
		n += len(calls)
	}

	return n
}

type shutdownSums struct {
	Messages, Calls, DeadLetters, Lost int

	Again        int // calls of an attempt that had ended before without being counted: requeued or abandoned
	AfterSuccess int // calls of a message whose handler had succeeded
	Crashed      int // messages that were given back so often that they were taken for crashing their consumers
}

// judge gives what contradicts the promises. On a healthy connection and the retrier's own
// subscriber (strict) nothing is handled twice: a success is acknowledged, a failure is stored.
// Otherwise an attempt may be repeated, but none may be skipped.
func (l *shutdownLedger) judge(ids []string, letters map[string]int, strict bool) (sums shutdownSums, wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	known := make(map[string]bool, len(ids))
	sums.Messages = len(ids)

	for _, id := range ids {
		known[id] = true
		calls := l.calls[id]
		sums.Calls += len(calls)
		found := letters[id] + l.archived[id]
		sums.DeadLetters += found

		succeeded := slices.IndexFunc(calls, (*shutdownCall).succeeded)
		switch {
		case fate.Of(id).Dies() && found == 0:
			sums.Lost++
			complain("%s is in no dead-letter queue: lost; %v", id, l.story(id))
		case fate.Of(id).Dies() && found > 1 && strict:
			complain("%s is dead-lettered %d times; %v", id, found, l.story(id))
		case !fate.Of(id).Dies() && found > 0 && l.crashed[id] == 0:
			complain("%s is dead-lettered, by a shutdown; %v", id, l.story(id))
		case !fate.Of(id).Dies() && succeeded < 0 && found == 0:
			sums.Lost++
			complain("%s was never processed: lost; %v", id, l.story(id))
		}
		if succeeded >= 0 {
			again := len(calls) - 1 - succeeded
			sums.AfterSuccess += again
			if again > 0 && strict {
				complain("%s is handled again after its success; %v", id, l.story(id))
			}
		}

		sums.Crashed += min(l.crashed[id], 1)
		counted := 0 // the number of the last attempt that counts
		for _, c := range calls {
			if c.number > counted+1+l.crashed[id] {
				complain("%s skips from attempt %d to %d; %v", id, counted, c.number, l.story(id))
			}
			if c.number <= counted {
				sums.Again++
				if strict {
					complain("%s repeats attempt %d; %v", id, c.number, l.story(id))
				}
			}
			end := l.ends[c.shutdownAttempt]
			switch {
			case strict && c.ended && c.inTime && !unsent(c) &&
				(end == retry.EventRequeued || end == retry.EventAbandoned):
				complain("%s is given back although its handler has finished in time; %v", id, l.story(id))
			case end == retry.EventRequeued: // not counted
				sums.Again++
			default:
				counted = max(counted, c.number)
			}
		}
		if most := shutdownRetries + 1; counted > most {
			complain("%s was tried %d times, of %d; %v", id, counted, most, l.story(id))
		}
	}
	for id := range l.calls {
		if !known[id] {
			complain("a handler was called with %q", id)
		}
	}

	return sums, append(wrong, l.foreign...)
}

func (l *shutdownLedger) story(id string) string {
	var b strings.Builder
	for _, c := range l.calls[id] {
		fmt.Fprintf(&b, "[service %d attempt %d at %s: err=%v in time=%v sent=%v, then %q]",
			c.life, c.number, c.began.Format("05.000"), c.err, c.inTime, c.sent, l.ends[c.shutdownAttempt])
	}

	return b.String()
}

func (l *shutdownLedger) calledAfter(life int, closed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, calls := range l.calls {
		for _, c := range calls {
			if c.life == life && c.began.After(closed) {
				l.foreign = append(l.foreign, fmt.Sprintf("%s was handed out after the service %d was closed", id,
					life))
			}
		}
	}
}

const shutdownRetries = 2

// shutdownFates gives n ids. What one begins with is its fate.
func shutdownFates(prefix string, from, n int) []string {
	kinds := []string{"ok", "slow", "never", "once", "out", "ok", "panic", "twice", "slow", "out", "ok", "ok"}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%s-%d", kinds[(from+i)%len(kinds)], prefix, from+i)
	}

	return ids
}

// hasOutput is one more fate: a handler succeeds with an output.
const hasOutput fate.Fate = "out"

// meet does with a message what its fate is. pause is how long the slow ones take.
func meet(msg *message.Message, pause time.Duration) (outputs []*message.Message, err error) {
	switch fate.Of(msg.UUID) {
	case fate.Slow:
		select {
		case <-time.After(pause):
		case <-msg.Context().Done():
			return nil, msg.Context().Err()
		}

		return nil, nil
	case hasOutput:
		return []*message.Message{message.NewMessage(msg.UUID, msg.Payload)}, nil
	default:
		return nil, byFate(msg)
	}
}
