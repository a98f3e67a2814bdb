package dlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
)

// recordVersion is the version of the format of a line. A change that an older reader would misread
// increments it.
const recordVersion = 1

// errUnreadable refuses a line that would not be the whole message.
var errUnreadable = errors.New(
	"the message has headers that cannot be read: a line without them would not be the message")

// record is what a line of an export holds.
type record struct {
	Message amqp091.Publishing
	CameBy  Route
	// Queue is the dead-letter queue from which the message was exported.
	Queue string
	Taken Taken // zero in an export
}

// MarshalJSON returns the line of an export, with the position instead of the queue.
func (l DeadLetter) MarshalJSON() ([]byte, error) {
	var e encoder
	err := e.record(&l, "", Taken{}, &l.Position)

	return e.out, err
}

// line appends the line of an export: the exact message, and a summary of its failure. It appends
// nothing of a message that fails.
func (e *encoder) line(l *DeadLetter, queue string, taken Taken) error {
	if l.Unreadable != "" {
		return errUnreadable
	}
	before := len(e.out)
	err := e.record(l, queue, taken, nil)
	if err != nil {
		e.out = e.out[:before]
	}

	return err
}

// record writes the object of a line. The members up to failure are for people and for tools that
// select by them.
func (e *encoder) record(l *DeadLetter, queue string, taken Taken, position *int) error {
	m := &l.Message
	e.out = fmt.Appendf(e.out, `{"v":%d`, recordVersion)
	e.property("queue", queue)
	if taken != (Taken{}) {
		e.taken(taken)
	}
	if position != nil {
		e.name("position")
		e.out = strconv.AppendInt(e.out, int64(*position), 10)
	}
	if l.Wait != nil && position != nil {
		wait, err := json.Marshal(l.Wait)
		if err != nil {
			return err
		}
		e.name("wait")
		e.out = append(e.out, wait...)
	}
	if err := e.failure(l); err != nil {
		return err
	}
	e.member("unreadable", l.Unreadable)
	e.out = append(e.out, `,"came_by":{"exchange":`...)
	e.text(l.CameBy.Exchange)
	e.out = append(e.out, `,"routing_key":`...)
	e.text(l.CameBy.RoutingKey)
	e.out = append(e.out, '}')
	e.properties(m)
	if m.Headers != nil { // without the member, the message has no headers
		e.name("headers")
		if err := e.table(m.Headers); err != nil {
			return within(".headers", err)
		}
	}
	switch {
	case utf8.Valid(m.Body) && m.Body != nil:
		e.name("body")
		e.out = appendQuoted(e.out, m.Body)
	case len(m.Body) > 0:
		e.name("body_base64")
		e.base64(m.Body)
	}
	e.out = append(e.out, '}')

	return nil
}

// decodeRecord reads a line of an export, also after other tools (jq) have rewritten it. It takes
// the message from the properties, headers and body alone, not from the summary.
func decodeRecord(line []byte) (record, error) {
	if !utf8.Valid(line) {
		return record{}, &RecordError{Wanted: "UTF-8", Found: "other bytes"}
	}
	if err := checkVersion(line); err != nil {
		return record{}, err
	}
	value, err := decodeJSON(line, "failure", "position", "wait")
	if err != nil {
		return record{}, err
	}

	var read record
	m := &read.Message
	err = readObject(value, []field{
		{"v", nil},
		{"queue", into(&read.Queue, readText)},
		{"taken", into(&read.Taken, readTaken)},
		{"position", nil},
		{"wait", nil},
		{"failure", nil},
		{"unreadable", func(any) error { return errUnreadable }},
		{"came_by", into(&read.CameBy, readRoute)},
		{"properties", func(value any) error { return readProperties(value, m) }},
		{"headers", into(&m.Headers, readTable)},
		{"body", into(&m.Body, readBytes)},
		{"body_base64", func(value any) (err error) {
			if m.Body != nil {
				return &RecordError{Wanted: "the only body", Found: "body and body_base64"}
			}
			m.Body, err = readBase64(value)

			return err
		}},
	})
	if err != nil {
		return record{}, err
	}

	return read, nil
}

// checkVersion checks the syntax of the whole line, and the version before all other members, as
// another version may have others.
func checkVersion(line []byte) error {
	if bytes.HasPrefix(line, []byte(`{"v":1,`)) && json.Valid(line) { // as line writes it
		return nil
	}

	var head struct {
		Version json.RawMessage `json:"v"`
	}
	err := json.Unmarshal(line, &head)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return &RecordError{Wanted: "JSON", Found: fmt.Sprintf("%v at byte %d", syntax, syntax.Offset)}
	}
	if err != nil {
		return &RecordError{Wanted: "an object", Found: excerpt(string(line))}
	}

	const wanted = "1, the version of the format that is known here"
	switch version := string(head.Version); version {
	case strconv.Itoa(recordVersion):
		return nil
	case "":
		return &RecordError{".v", wanted, "nothing"}
	default:
		return &RecordError{".v", wanted, excerpt(version)}
	}
}

func readRoute(value any) (route Route, err error) {
	err = readObject(value, []field{
		{"exchange", into(&route.Exchange, readShort)},
		{"routing_key", into(&route.RoutingKey, readShort)},
	})

	return route, err
}
