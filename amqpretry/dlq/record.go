package dlq

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
)

// recordVersion is the format of a line of an export. It changes with what an older reader would misread.
const recordVersion = 1

// record is what is in a line of an export.
type record struct {
	Message amqp091.Publishing
	CameBy  Route
	// Queue it was exported from.
	Queue string
	Taken Taken // zero of an export
}

// The members of a record. Those up to failure, and position, are for people to read and for tools to select by.
var recordFields = []string{
	"v", "queue", "taken", "position", "failure", "unreadable", "came_by", "properties", "headers", "body", "body_base64",
}

// errUnreadable is the refusal of a line that would not be the message.
var errUnreadable = errors.New("the message has headers that cannot be read: a line without them would not be the message")

// encodeRecord makes the line of an export: everything of a message, exactly, and what it tells of its failure.
func encodeRecord(l *DeadLetter, queue string, taken Taken) ([]byte, error) {
	if l.Unreadable != "" {
		return nil, errUnreadable
	}
	out := textField(newRecord(l), "queue", queue)
	if taken != (Taken{}) {
		out = appendTaken(out, taken)
	}

	return appendRecord(out, l)
}

// MarshalJSON gives what an export has in a line, with the position instead of the queue.
func (l DeadLetter) MarshalJSON() ([]byte, error) {
	out := appendKey(newRecord(&l), "position")
	return appendRecord(appendInt(out, l.Position), &l)
}

func newRecord(l *DeadLetter) []byte {
	out := make([]byte, 0, 3<<10+len(l.Message.Body)+len(l.Message.Body)/3)
	return appendInt(appendKey(append(out, '{'), "v"), recordVersion)
}

func appendRecord(out []byte, l *DeadLetter) ([]byte, error) {
	out = appendFailure(appendKey(out, "failure"), l)
	out = textField(out, "unreadable", l.Unreadable)

	out = append(appendKey(out, "came_by"), '{')
	out = appendString(appendKey(out, "exchange"), l.CameBy.Exchange)
	out = append(appendString(appendKey(out, "routing_key"), l.CameBy.RoutingKey), '}')

	m := &l.Message
	out = appendProperties(appendKey(out, "properties"), m)
	if m.Headers != nil {
		var err error
		if out, err = appendTable(appendKey(out, "headers"), m.Headers); err != nil {
			return nil, within(".headers", err)
		}
	}
	if m.Body != nil {
		out = appendBody(out, m.Body)
	}

	return append(out, '}'), nil
}

func appendBody(out, body []byte) []byte {
	if text, ok := appendText(appendKey(out, "body"), body); ok {
		return text
	}

	return appendBase64(out, "body_base64", body)
}

// decodeRecord reads such a line, also one that other tools have written again (jq). What it says is all that counts:
// the headers, not what was read from them.
func decodeRecord(line []byte) (record, error) {
	text := string(line) // all strings of the message are parts of this one
	if !utf8.ValidString(text) {
		return record{}, &RecordError{Wanted: "UTF-8", Found: "other bytes"}
	}
	if err := checkVersion(text); err != nil {
		return record{}, err
	}

	var read record
	m := &read.Message
	r := &jsonReader{data: text}
	err := r.fields(recordFields, func(name string) (err error) {
		switch name {
		case "queue":
			read.Queue, err = r.string()
		case "taken":
			read.Taken, err = r.taken()
		case "unreadable":
			err = errUnreadable
		case "came_by":
			read.CameBy, err = r.route()
		case "properties":
			err = r.properties(m)
		case "headers":
			m.Headers, err = r.table()
		case "body", "body_base64":
			if m.Body != nil {
				return &RecordError{Wanted: "the only body", Found: "body and body_base64"}
			}
			m.Body, err = r.body(name)
		default:
			err = r.skip()
		}

		return err
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return record{}, err
	}

	return read, nil
}

// checkVersion comes first, as another version may have other members.
func checkVersion(line string) error {
	if strings.HasPrefix(line, `{"v":1,`) {
		return nil
	}

	const wanted = "1, the version of the format that is known here"
	found := false
	r := &jsonReader{data: line}
	err := r.container('{', '}', "an object", func() error {
		key, err := r.key()
		if err != nil {
			return err
		}
		if key != "v" {
			return r.skip()
		}
		found = true
		r.next()
		from := r.at
		if err := r.skip(); err != nil {
			return err
		}
		if text := r.data[from:r.at]; text != strconv.Itoa(recordVersion) {
			return &RecordError{".v", wanted, excerpt(text)}
		}

		return nil
	})
	if err == nil && !found {
		err = &RecordError{".v", wanted, "nothing"}
	}

	return err
}

var routeFields = []string{"exchange", "routing_key"}

func (r *jsonReader) route() (route Route, err error) {
	err = r.fields(routeFields, func(name string) (err error) {
		if name == "exchange" {
			route.Exchange, err = r.short()
		} else {
			route.RoutingKey, err = r.short()
		}

		return err
	})

	return route, err
}

func (r *jsonReader) body(name string) ([]byte, error) {
	if name == "body_base64" {
		return r.base64()
	}
	text, err := r.text()

	return []byte(text), err
}

func textField(out []byte, name, text string) []byte {
	if text == "" {
		return out
	}

	return appendString(appendKey(out, name), text)
}

func numberField(out []byte, name string, n int) []byte {
	if n == 0 {
		return out
	}

	return appendInt(appendKey(out, name), n)
}

func appendInt(out []byte, n int) []byte { return strconv.AppendInt(out, int64(n), 10) }
