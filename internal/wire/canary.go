package wire

import (
	"strconv"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// MaxCanaryBytes bound the header of a canary: a name, a run and a number.
const MaxCanaryBytes = MaxNameBytes + 64

// Canary is in a message that a run has replayed to see what becomes of it: where to say so, and of
// which.
type Canary struct {
	Queue  string // that the run listens to
	Run    string
	Number int // of the message, from 1
}

// canaryQueues is how the names of queues end that a run listens to. Nothing is said to others: a
// publisher writes headers as it likes.
const canaryQueues = ".lock"

// Text is the header's value.
func (c Canary) Text() string { return strconv.Itoa(c.Number) + " " + c.Run + " " + c.Queue }

// ReadCanary reads the header. It is false if nobody is to be told.
func ReadCanary(text string) (c Canary, ok bool) {
	number, rest, _ := strings.Cut(text, " ")
	run, queue, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || run == "" || !strings.HasSuffix(queue, canaryQueues) {
		return Canary{}, false
	}

	return Canary{Queue: queue, Run: run, Number: n}, true
}

// Outcome is what has become of a message.
type Outcome string

// The outcomes that a run is told of.
const (
	Handled      Outcome = "handled" // the handler has succeeded
	Retried      Outcome = "retried"
	Postponed    Outcome = "postponed"
	DeadLettered Outcome = "dead-lettered"
	Dropped      Outcome = "dropped"
)

// IsFinal tells whether nothing comes after it.
func (o Outcome) IsFinal() bool { return o == Handled || o == DeadLettered || o == Dropped }

// Notice is what a run is told of one of its canaries. It is a message without a body.
type Notice struct {
	Canary
	Outcome Outcome
	// Attempts that have failed in this life, and how long it waits for the next one: of Retried
	// and Postponed.
	Attempts int
	Delay    string
}

const keyOutcome = header.Prefix + "outcome"

// Headers spells the notice.
func (n Notice) Headers() map[string]any {
	return map[string]any{
		header.Canary: n.Text(), keyOutcome: string(n.Outcome), header.Count: strconv.Itoa(n.Attempts),
		header.Delay: n.Delay,
	}
}

// ReadNotice reads one. It is false of anything else, and of an outcome that a later version has
// added.
func ReadNotice(headers map[string]any) (n Notice, ok bool) {
	text := func(key string) string {
		s, _ := headers[key].(string)
		return s
	}
	if n.Canary, ok = ReadCanary(text(header.Canary)); !ok {
		return Notice{}, false
	}
	switch n.Outcome = Outcome(text(keyOutcome)); n.Outcome {
	case Handled, Retried, Postponed, DeadLettered, Dropped:
	default:
		return Notice{}, false
	}
	n.Attempts, n.Delay = number(text(header.Count)), text(header.Delay)

	return n, true
}
