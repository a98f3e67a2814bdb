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

// recordJSON is a line of an export. The members up to Failure are for people and for tools that
// select by them.
type recordJSON struct {
	Version    int            `json:"v"`
	Queue      any            `json:"queue,omitempty"`
	Taken      *takenJSON     `json:"taken,omitempty"`
	Position   *int           `json:"position,omitempty"`
	Failure    failureJSON    `json:"failure"`
	Unreadable string         `json:"unreadable,omitempty"`
	CameBy     map[string]any `json:"came_by"`
	Properties propertiesJSON `json:"properties"`
	Headers    map[string]any `json:"headers,omitzero"` // without the member, the message has no headers
	Body       any            `json:"body,omitempty"`
	BodyBase64 []byte         `json:"body_base64,omitempty"`
}

// encodeRecord returns the line of an export: the exact message, and a summary of its failure.
func encodeRecord(l *DeadLetter, queue string, taken Taken) ([]byte, error) {
	if l.Unreadable != "" {
		return nil, errUnreadable
	}
	line, err := newRecordJSON(l)
	if err != nil {
		return nil, err
	}
	line.Queue = optionalText(queue)
	if taken != (Taken{}) {
		line.Taken = newTakenJSON(taken)
	}

	return encodeJSON(line)
}

// MarshalJSON returns the line of an export, with the position instead of the queue.
func (l DeadLetter) MarshalJSON() ([]byte, error) {
	line, err := newRecordJSON(&l)
	if err != nil {
		return nil, err
	}
	line.Position = &l.Position

	return encodeJSON(line)
}

func newRecordJSON(l *DeadLetter) (*recordJSON, error) {
	m := &l.Message
	line := &recordJSON{
		Version:    recordVersion,
		Failure:    newFailureJSON(l),
		Unreadable: l.Unreadable,
		CameBy: map[string]any{
			"exchange": textJSON(l.CameBy.Exchange), "routing_key": textJSON(l.CameBy.RoutingKey),
		},
		Properties: newPropertiesJSON(m),
	}
	if m.Headers != nil {
		var err error
		if line.Headers, err = tableJSON(m.Headers); err != nil {
			return nil, within(".headers", err)
		}
	}
	if utf8.Valid(m.Body) && m.Body != nil {
		line.Body = string(m.Body)
	} else {
		line.BodyBase64 = m.Body
	}

	return line, nil
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
	value, err := decodeJSON(line, "failure", "position")
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
	if bytes.HasPrefix(line, []byte(`{"v":1,`)) && json.Valid(line) { // as encodeRecord writes it
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
