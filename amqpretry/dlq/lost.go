package dlq

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// lostError is the error of a connection that was lost, in words for the one who has run something
// over it.
type lostError struct {
	text string
	err  error
}

func (e *lostError) Error() string { return e.text }

func (e *lostError) Unwrap() error { return e.err }

// explainLost tells which queue cannot be read (or what else is to be done with it) because the
// connection was lost, and what to do. Other errors stay as they are.
func explainLost(do, queue string, err error) error {
	if all := joined(err); len(all) > 0 {
		var explained error
		texts := map[string]bool{}
		for _, one := range all {
			if one = explainLost(do, queue, one); !texts[one.Error()] { // of several connections
				texts[one.Error()] = true
				explained = errors.Join(explained, one)
			}
		}
		return explained
	}
	if errors.As(err, new(*lostError)) {
		return err
	}
	if silent := (*silentError)(nil); errors.As(err, &silent) {
		return &lostError{fmt.Sprintf("cannot %s %q: %v", do, queue, silent), err}
	}

	reason := (*amqp091.Error)(nil)
	if !errors.As(err, &reason) {
		return err
	}
	cause := ""
	switch {
	case reason.Code == amqp091.FrameError && strings.HasSuffix(reason.Reason, "i/o timeout"):
		cause = "the connection was silent: not even heartbeats came from the broker"
	case reason.Code == amqp091.FrameError:
		cause = fmt.Sprintf("the connection was lost (%s)", reason.Reason)
	case reason.Code == amqp091.ConnectionForced:
		cause = fmt.Sprintf("the broker closed the connection (%s)", reason.Reason)
	default:
		return err
	}

	return &lostError{fmt.Sprintf("cannot %s %q: %s; check the network and the broker's log, then run it again. The "+
		"broker returns what was read, possibly in another order", do, queue, cause), err}
}

// joined are the errors that errors.Join has joined to this one, also in several steps; none if it
// is another.
func joined(err error) (single []error) {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(all.Unwrap()...).Error() != err.Error() {
		return nil
	}
	for _, one := range all.Unwrap() {
		if more := joined(one); more != nil {
			single = append(single, more...)
		} else {
			single = append(single, one)
		}
	}

	return single
}
