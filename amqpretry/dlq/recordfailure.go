package dlq

import (
	"errors"
	"strconv"
)

// failure summarizes the headers for people and for tools that select by it. An import ignores it.
func (e *encoder) failure(l *DeadLetter) error {
	f := timed(l.DeadLetter)
	e.name("failure")
	e.out = append(e.out, '{')
	e.member("uuid", l.UUID, "reason", string(f.Reason), "error", f.Error, "error_type", f.ErrorType,
		"queue", f.Queue, "topic", f.Topic, "handler", f.Handler, "host", f.Host)
	e.name("calls")
	e.out = strconv.AppendInt(e.out, int64(f.Calls), 10)
	e.out = strconv.AppendInt(append(e.out, `,"replays":`...), int64(f.Replays), 10)
	err := errors.Join(e.time("first_failure", f.FirstFailure), e.time("last_failure", f.LastFailure),
		e.time("since", f.Since), e.time("deadline", f.Deadline))
	e.member("exchange", f.Exchange, "routing_key", f.RoutingKey, "expiration", f.Expiration,
		"user_id", f.UserID, "trace", f.Trace, "removed", f.Removed)
	if len(f.History) > 0 {
		e.name("history")
		e.out = append(e.out, '[')
	}
	for _, a := range f.History {
		e.next()
		e.out = strconv.AppendInt(append(e.out, `{"number":`...), int64(a.Number), 10)
		err = errors.Join(err, e.time("at", a.At))
		e.member("error", a.Error, "error_type", a.Type, "reason", string(a.Reason))
		e.out = append(e.out, '}')
	}
	if len(f.History) > 0 {
		e.out = append(e.out, ']')
	}
	if len(l.Edits) > 0 {
		edits, failed := encodeJSON(l.Edits)
		err = errors.Join(err, failed)
		e.name("edits")
		e.out = append(e.out, edits...)
	}
	if l.IsParked() {
		e.out = append(e.out, `,"parked":true`...)
	}
	if parking := l.Parking(); parking != nil {
		text, failed := encodeJSON(parking)
		err = errors.Join(err, failed)
		e.name("parking")
		e.out = append(e.out, text...)
	}
	e.out = append(e.out, '}')

	return err
}
