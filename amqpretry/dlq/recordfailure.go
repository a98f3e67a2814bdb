package dlq

import (
	"strings"
	"time"
)

// appendFailure appends what people want to see and to select by. None of it is read again: it is in the headers.
func appendFailure(out []byte, l *DeadLetter) []byte {
	d := &l.DeadLetter
	shown := func(name, text string) { out = textField(out, name, strings.ToValidUTF8(text, "\uFFFD")) }
	moment := func(name string, at time.Time) {
		if !at.IsZero() && tellable(at) {
			out = append(at.UTC().AppendFormat(append(appendKey(out, name), '"'), "2006-01-02T15:04:05.999Z07:00"), '"')
		}
	}

	out = append(out, '{')
	shown("uuid", l.UUID)
	shown("reason", string(d.Reason))
	shown("error", d.Error)
	shown("error_type", d.ErrorType)
	shown("queue", d.Queue)
	shown("topic", d.Topic)
	shown("handler", d.Handler)
	shown("host", d.Host)
	out = appendInt(appendKey(out, "calls"), d.Calls)
	out = appendInt(appendKey(out, "replays"), d.Replays)
	moment("first_failure", d.FirstFailure)
	moment("last_failure", d.LastFailure)
	moment("since", d.Since)
	moment("deadline", d.Deadline)
	shown("exchange", d.Exchange)
	shown("routing_key", d.RoutingKey)
	shown("expiration", d.Expiration)
	shown("user_id", d.UserID)
	shown("removed", d.Removed)

	if len(d.History) > 0 {
		out = append(appendKey(out, "history"), '[')
		for i, a := range d.History {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, '{')
			out = appendInt(appendKey(out, "number"), a.Number)
			moment("at", a.At)
			shown("error", a.Error)
			shown("error_type", a.Type)
			shown("reason", string(a.Reason))
			out = append(out, '}')
		}
		out = append(out, ']')
	}
	if len(l.Edits) > 0 {
		out = append(appendKey(out, "edits"), encodeEdits(l.Edits)...)
	}

	return append(out, '}')
}
