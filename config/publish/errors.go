package publish

import (
	"errors"
	"fmt"
	"strings"
)

// What can be wrong with a message, beside *[RefusedError] and *[BlockedError].
var (
	// ErrUnroutable means that no queue gets the message: the queue does not exist, or none is
	// bound to the exchange for its routing key. It is not stored, unless Failed.MayBeStored says
	// so: an earlier publish of it was not answered, such as when the exchange was deleted
	// meanwhile.
	ErrUnroutable = errors.New("no queue gets it")
	// ErrNacked means that the broker has refused the message: a queue is full, and then does not
	// have it, or went down, and then may have it. By the default exchange, which leads to one
	// queue, the message was published again until the end. By another one it was not: a queue that
	// has taken it would get it once more each time.
	ErrNacked = errors.New("the broker refused it (nack)")
	// ErrUnconfirmed means that the broker has not confirmed the message in time.
	ErrUnconfirmed = errors.New("the broker has not confirmed it")
)

// Error names the messages of a call that are not known to be stored. The broker has all others.
// From a publisher of package amqpretry/delay it is about the messages with a delay: those without
// one were not published.
type Error struct {
	// Topic to which the messages were to be published.
	Topic string
	// Of is how many messages the call had; of one with delays, how many messages have a delay.
	Of int
	// Failed are those that are not known to be stored, in their order.
	Failed []Failed
	// Final says that another call fails as well until somebody has removed the reason: a
	// permission, a queue or a provisioned object is missing, or an object differs.
	Final bool
}

// Failed is a message that is not known to be stored.
type Failed struct {
	// Index of the message in the call, from 0.
	Index int
	// UUID of the message.
	UUID string
	// MayBeStored means that the broker has the message or not: it has not answered to some publish
	// of it, or has refused it without saying why (ErrNacked). Else it has not: no queue got it, it
	// was refused for good, or it was never sent.
	MayBeStored bool
	// RefusedEachTime is true beside MayBeStored when the broker has answered to each publish of
	// the message, and refused it with a nack. Then it is stored only if several queues get it and
	// another one took it, or if a queue refused it because one of its nodes failed: a queue that
	// is just full has not.
	RefusedEachTime bool
	// Err is why: one that is ErrUnroutable, ErrNacked or ErrUnconfirmed, a *RefusedError, or a
	// *BlockedError. It may be a *topology.AccessError or *topology.ConflictError as well.
	Err error
}

// mostNamed bounds the messages in a text.
const mostNamed = 5

func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "cannot publish %d of %d messages to topic %q: ", len(e.Failed), e.Of, e.Topic)
	for i, f := range e.Failed {
		if i == mostNamed {
			fmt.Fprintf(&text, "; and %d more", len(e.Failed)-mostNamed)
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		stored := "not stored"
		switch {
		case f.RefusedEachTime:
			stored = "refused each time"
		case f.MayBeStored:
			stored = "may be stored"
		}
		why := f.Err.Error()
		if refused, is := f.Err.(*RefusedError); is { //nolint:errorlint // one that is wrapped says more
			why = refused.why() // the message is named already
		}
		fmt.Fprintf(&text, "message %q (%s): %s", f.UUID, stored, why)
	}
	if e.Final {
		text.WriteString("; remove the reason, and publish them again")
	}

	return text.String()
}

// Unwrap gives the errors of all messages.
func (e *Error) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}

	return errs
}

// ErrorType is the reason for the first message, for the attribute error.type of OpenTelemetry:
// unroutable, nacked, unconfirmed, refused or blocked; empty for another one.
func (e *Error) ErrorType() string {
	if len(e.Failed) == 0 {
		return ""
	}
	var (
		err     = e.Failed[0].Err
		refused *RefusedError
		blocked *BlockedError
	)
	switch {
	case errors.Is(err, ErrUnroutable):
		return "unroutable"
	case errors.As(err, &blocked):
		return "blocked"
	case errors.As(err, &refused):
		return "refused"
	case errors.Is(err, ErrNacked):
		return "nacked"
	case errors.Is(err, ErrUnconfirmed):
		return "unconfirmed"
	default:
		return ""
	}
}

// BlockedError says that the broker blocks who publishes, until a memory or disk alarm is over.
type BlockedError struct {
	// Reason is the broker's, such as "low on memory".
	Reason string
	// Err is the end of the time.
	Err error
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("the broker has blocked the connection (%s): %v", e.Reason, e.Err)
}

func (e *BlockedError) Unwrap() error { return e.Err }

// RefusedError says that the broker refuses a message for good: its payload is larger than the
// broker's max_message_size, its expiration is no number, or its user id is not that of the
// connection. It is not stored. To publish it again unchanged is of no use.
type RefusedError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Err is the broker's answer.
	Err error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: %s", e.UUID, e.Topic, e.why())
}

func (e *RefusedError) why() string {
	return fmt.Sprintf("the broker refuses it: %v; do not publish it again unchanged", e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// TooLargeError says that the headers of a message do not fit into what the broker or its consumers
// take, whatever its payload is. No message of the call was published.
type TooLargeError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Part that is too large, such as `header "trace"`.
	Part string
	// Size of the part in bytes, and the most that it can have.
	Size, Most int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: the size of the %s is %d bytes, and the most "+
		"is %d; give it less metadata", e.UUID, e.Topic, e.Part, e.Size, e.Most)
}
