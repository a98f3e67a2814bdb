package dlq

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// encodeRecord returns the line of an export.
func encodeRecord(l *DeadLetter, queue string, taken Taken) ([]byte, error) {
	var e encoder
	err := e.line(l, queue, taken)

	return e.out, err
}

// TestRecordIsAsEncodingJSONWritesIt compares lines that follow one another in the same buffer.
func TestRecordIsAsEncodingJSONWritesIt(t *testing.T) {
	var all encoder
	rapid.Check(t, func(t *rapid.T) {
		l := deadLetters().Draw(t, "dead letter")
		queue, taken := text(maxShort).Draw(t, "queue"), Taken{}
		if rapid.Bool().Draw(t, "taken") {
			taken = Taken{By: text(20).Draw(t, "by"), To: text(20).Draw(t, "to"), Run: text(20).Draw(t, "run"),
				At: time.Unix(rapid.Int64Range(firstSecond, lastSecond).Draw(t, "taken at"), 5)}
		}
		if len(all.out) > mostPending {
			all.out = all.out[:0]
		}
		before := len(all.out)
		want, err := referenceRecord(&l, queue, taken)
		require.NoError(t, err)
		require.NoError(t, all.line(&l, queue, taken))
		require.Equal(t, string(want), string(all.out[before:]))
		require.Empty(t, all.members)

		l.Unreadable = text(20).Draw(t, "unreadable")
		reference, err := newRecordJSON(&l)
		require.NoError(t, err)
		reference.Position = &l.Position
		want, err = referenceJSON(reference)
		require.NoError(t, err)
		got, err := l.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

// A line that fails leaves nothing behind: what follows it in the file is whole.
func TestRecordThatFailsAppendsNothing(t *testing.T) {
	e := encoder{out: []byte("before\n")}
	nested := amqp091.Table{"a": "b", "c": amqp091.Table{"d": struct{}{}}}
	for _, l := range []DeadLetter{
		{Unreadable: "a"},
		{Message: amqp091.Publishing{Headers: nested}},
		{DeadLetter: retry.DeadLetter{Since: time.Unix(1, 0).In(time.FixedZone("far", 24*60*60))}},
	} {
		require.Error(t, e.line(&l, "orders.dlq", Taken{}))
		require.Equal(t, "before\n", string(e.out))
		require.Empty(t, e.members)
	}
}

// deadLetters are whatever a program may put into one.
func deadLetters() *rapid.Generator[DeadLetter] {
	return rapid.Custom(func(t *rapid.T) DeadLetter {
		short := func(name string) string { return text(40).Draw(t, name) }
		at := func(name string) time.Time {
			if rapid.Bool().Draw(t, "no "+name) {
				return time.Time{}
			}
			zone := time.FixedZone("", rapid.IntRange(-23*60, 23*60).Draw(t, "zone")*60)
			return moment().Draw(t, name).Add(rapid.SampledFrom([]time.Duration{0, 1, 678e6}).Draw(t, "part")).In(zone)
		}
		l := DeadLetter{
			Position: rapid.Int().Draw(t, "position"), UUID: short("uuid"), Message: publishing().Draw(t, "message"),
			CameBy: Route{short("exchange"), short("key")},
			DeadLetter: retry.DeadLetter{
				Reason: retry.Reason(short("reason")), Error: short("error"), ErrorType: short("type"),
				Queue: short("queue"), Topic: short("topic"), Handler: short("handler"), Host: short("host"),
				Calls: rapid.Int().Draw(t, "calls"), Replays: rapid.Int().Draw(t, "replays"),
				FirstFailure: at("first failure"), LastFailure: at("last failure"), Since: at("since"),
				Deadline: at("deadline"), Exchange: short("exchange"), RoutingKey: short("routing key"),
				Expiration: short("expiration"), UserID: short("user"), Trace: short("trace"),
				Removed: short("removed"),
			},
		}
		if rapid.Bool().Draw(t, "parked") {
			l.Message.Headers = amqp091.Table{header.Parked: `{"at":"2026-01-02T03:04:05Z","note":"<\u009b>"}`}
		}
		for range rapid.IntRange(0, 3).Draw(t, "calls") {
			l.History = append(l.History, retry.FailedCall{Number: rapid.Int().Draw(t, "number"), At: at("at"),
				Error: short("error"), Type: short("type"), Reason: retry.Reason(short("reason"))})
		}
		for range rapid.IntRange(0, 2).Draw(t, "edits") {
			was := short("was")
			l.Edits = append(l.Edits, Edit{At: time.Unix(5, 0).UTC(), By: short("by"), Body: short("body"),
				Headers:    map[string]*string{short("header"): &was, short("removed"): nil},
				Properties: map[string]string{short("property"): was}})
		}

		return l
	})
}

// Below is the line of an export as encoding/json writes it from Go values. The conversions of its
// structs do not compile when a dead letter gets a field that the format does not have.

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

// referenceRecord returns the line of an export: the exact message, and a summary of its failure.
func referenceRecord(l *DeadLetter, queue string, taken Taken) ([]byte, error) {
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

	return referenceJSON(line)
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

// referenceJSON returns value as JSON that is safe to print in a terminal.
func referenceJSON(value any) ([]byte, error) {
	var out terminalSafe
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)

	return bytes.TrimSuffix(out, []byte("\n")), err
}

// terminalSafe collects JSON and escapes the characters that control a terminal or reverse the
// order of a text. JSON has them in strings only.
type terminalSafe []byte

func (t *terminalSafe) Write(data []byte) (int, error) {
	out, written := slices.Grow(*t, len(data)), 0
	for i := 0; i < len(data); {
		if data[i] < 0x7f { // most lines are ASCII: decoding each character would take two fifths of the time
			i++
			continue
		}
		r, size := utf8.DecodeRune(data[i:])
		if controlsTerminal(r) {
			out = fmt.Appendf(append(out, data[written:i]...), `\u%04x`, r)
			written = i + size
		}
		i += size
	}
	*t = append(out, data[written:]...)

	return len(data), nil
}

type typedJSON struct {
	Type   string `json:"type"`
	Value  any    `json:"value,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// valueJSON returns what encoding/json writes for a value that amqp091-go read.
func valueJSON(value any) (any, error) {
	switch v := value.(type) {
	case string:
		return textJSON(v), nil
	case nil:
		return typedJSON{Type: "void"}, nil
	case int64:
		if v < -exact || v > exact {
			return typedJSON{Type: "int64", Value: strconv.FormatInt(v, 10)}, nil
		}

		return typedJSON{Type: "int64", Value: v}, nil
	case bool, int8, int16, int32, uint8, uint16, uint32:
		return typedJSON{Type: fmt.Sprintf("%T", v), Value: v}, nil
	case float32:
		nan := fmt.Sprintf("NaN:%08x", math.Float32bits(v))
		return typedJSON{Type: "float32", Value: floatJSON(v, float64(v), nan)}, nil
	case float64:
		nan := fmt.Sprintf("NaN:%016x", math.Float64bits(v))
		return typedJSON{Type: "float64", Value: floatJSON(v, v, nan)}, nil
	case amqp091.Decimal:
		return typedJSON{Type: "decimal", Value: codec.HeaderText(v)}, nil
	case time.Time:
		return typedJSON{Type: "time", Value: timeText(v)}, nil
	case []byte:
		if !utf8.Valid(v) {
			return typedJSON{Type: "bytes", Base64: v}, nil
		}

		return typedJSON{Type: "bytes", Value: string(v)}, nil
	case []any:
		array := make([]any, len(v))
		for i := range v {
			var err error
			if array[i], err = valueJSON(v[i]); err != nil {
				return nil, within(element(i), err)
			}
		}

		return typedJSON{Type: "array", Value: array}, nil
	case amqp091.Table:
		table, err := tableJSON(v)
		return typedJSON{Type: "table", Value: table}, err
	}

	return nil, &RecordError{Wanted: "a value as amqp091-go reads it", Found: fmt.Sprintf("a %T", value)}
}

func tableJSON(table amqp091.Table) (map[string]any, error) {
	object := make(map[string]any, len(table))
	for key, value := range table {
		name := key
		if !utf8.ValidString(key) || strings.HasPrefix(key, keyBase64) {
			name = keyBase64 + base64.StdEncoding.EncodeToString([]byte(key))
		}
		var err error
		if object[name], err = valueJSON(value); err != nil {
			return nil, within(member(key), err)
		}
	}

	return object, nil
}

func textJSON(s string) any {
	if !utf8.ValidString(s) {
		return typedJSON{Type: "string", Base64: []byte(s)}
	}

	return s
}

// optionalText returns nil for an empty string, which encoding/json omits.
func optionalText(s string) any {
	if s == "" {
		return nil
	}

	return textJSON(s)
}

// floatJSON returns v, the float f, or a text if it is -0 or no JSON number. The text of a NaN is
// nan, which has its bits, if it is not Go's NaN.
func floatJSON(v any, f float64, nan string) any {
	switch {
	case math.IsNaN(f) && nan != "NaN:7fc00000" && nan != "NaN:7ff8000000000001":
		return nan
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case f == 0 && math.Signbit(f):
		return "-0"
	}

	return v
}

// propertiesJSON has the properties of a message in the order in which they are written.
type propertiesJSON struct {
	ContentType     any    `json:"content_type,omitempty"`
	ContentEncoding any    `json:"content_encoding,omitempty"`
	DeliveryMode    uint8  `json:"delivery_mode,omitempty"`
	Priority        uint8  `json:"priority,omitempty"`
	CorrelationID   any    `json:"correlation_id,omitempty"`
	ReplyTo         any    `json:"reply_to,omitempty"`
	Expiration      any    `json:"expiration,omitempty"`
	MessageID       any    `json:"message_id,omitempty"`
	Timestamp       string `json:"timestamp,omitempty"`
	Type            any    `json:"type,omitempty"`
	UserID          any    `json:"user_id,omitempty"`
	AppID           any    `json:"app_id,omitempty"`
}

func newPropertiesJSON(p *amqp091.Publishing) propertiesJSON {
	written := propertiesJSON{
		ContentType: optionalText(p.ContentType), ContentEncoding: optionalText(p.ContentEncoding),
		DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationID: optionalText(p.CorrelationId),
		ReplyTo: optionalText(p.ReplyTo), Expiration: optionalText(p.Expiration), MessageID: optionalText(p.MessageId),
		Type: optionalText(p.Type), UserID: optionalText(p.UserId), AppID: optionalText(p.AppId),
	}
	if !p.Timestamp.IsZero() {
		written.Timestamp = timeText(p.Timestamp)
	}

	return written
}

// failureJSON summarizes the headers for people and for tools that select by it. An import ignores
// it.
type failureJSON struct {
	UUID string `json:"uuid,omitempty"`
	deadLetterJSON
	History []callJSON `json:"history,omitempty"`
	Edits   []Edit     `json:"edits,omitempty"`
	Parked  bool       `json:"parked,omitempty"`
	Parking *Parking   `json:"parking,omitempty"`
}

// deadLetterJSON has the fields of retry.DeadLetter.
type deadLetterJSON struct {
	Reason       retry.Reason       `json:"reason,omitempty"`
	Error        string             `json:"error,omitempty"`
	ErrorType    string             `json:"error_type,omitempty"`
	Queue        string             `json:"queue,omitempty"`
	Topic        string             `json:"topic,omitempty"`
	Handler      string             `json:"handler,omitempty"`
	Host         string             `json:"host,omitempty"`
	Calls        int                `json:"calls"`
	Replays      int                `json:"replays"`
	FirstFailure time.Time          `json:"first_failure,omitzero"`
	LastFailure  time.Time          `json:"last_failure,omitzero"`
	History      []retry.FailedCall `json:"-"`
	Since        time.Time          `json:"since,omitzero"`
	Deadline     time.Time          `json:"deadline,omitzero"`
	Exchange     string             `json:"exchange,omitempty"`
	RoutingKey   string             `json:"routing_key,omitempty"`
	Expiration   string             `json:"expiration,omitempty"`
	UserID       string             `json:"user_id,omitempty"`
	Trace        string             `json:"trace,omitempty"`
	Removed      string             `json:"removed,omitempty"`
}

// callJSON has the fields of retry.FailedCall.
type callJSON struct {
	Number int          `json:"number"`
	At     time.Time    `json:"at,omitzero"`
	Error  string       `json:"error,omitempty"`
	Type   string       `json:"error_type,omitempty"`
	Reason retry.Reason `json:"reason,omitempty"`
}

func newFailureJSON(l *DeadLetter) failureJSON {
	failure := failureJSON{UUID: l.UUID, deadLetterJSON: deadLetterJSON(timed(l.DeadLetter)), Edits: l.Edits,
		Parked: l.IsParked(), Parking: l.Parking()}
	for _, a := range failure.deadLetterJSON.History {
		failure.History = append(failure.History, callJSON(a))
	}

	return failure
}

type takenJSON struct {
	By  any    `json:"by"`
	To  any    `json:"to,omitempty"`
	Run any    `json:"run,omitempty"`
	At  string `json:"at"`
}

func newTakenJSON(t Taken) *takenJSON {
	return &takenJSON{textJSON(t.By), optionalText(t.To), optionalText(t.Run), t.At.UTC().Format(time.RFC3339)}
}
