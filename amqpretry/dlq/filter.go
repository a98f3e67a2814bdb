package dlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/fingerprint"
	"github.com/amqpretry/watermill-retry/retry"
)

// Filter says which dead letters. The zero Filter matches all. A dead letter must match every field
// that is set; of a list, one element is enough.
type Filter struct {
	// Reasons, such as retry.ReasonExhausted; Topics and Handlers as the dead letter has them;
	// ErrorTypes as %T prints them, or as another library has written them; UUIDs. Of all but the
	// last, the empty text stands for dead letters that do not tell.
	Reasons    []retry.Reason
	Topics     []string
	Handlers   []string
	ErrorTypes []string
	UUIDs      []string
	// Fingerprints are IDs: see Fingerprint.
	Fingerprints []string
	// ErrorContains is a part of the error text, in its case; ErrorMatches an expression that finds
	// something in it.
	ErrorContains string
	ErrorMatches  *regexp.Regexp
	// Text is a part of the error text, of a header's value or of the body, in any case.
	Text string
	// OlderThan and NewerThan are about the time since the last failure. A dead letter that does
	// not tell it is neither: see Untimed.
	OlderThan time.Duration
	NewerThan time.Duration
	// DueWithin and DueAfter are about the time until Wait.End of a message that waits. Dead
	// letters are neither.
	DueWithin, DueAfter time.Duration
	// MinCalls and MaxCalls are handler calls, MinReplays and MaxReplays replays; 0 means no bound.
	MinCalls, MaxCalls     int
	MinReplays, MaxReplays int
	// NeverReplayed are those without any replay.
	NeverReplayed bool
	// Parked are those that are parked, or that are not: see DeadLetter.IsParked. Nil means both.
	Parked *bool
	// Headers are values, as text, of headers of the message, ours included: numbers in decimal,
	// times as RFC 3339, bytes as they are or in base64 where they are no text, arrays and tables
	// as JSON.
	Headers map[string]string
	// Fields are values, as text, of fields of a JSON body.
	Fields []Field
	// Where is anything else. Nil means nothing else.
	Where func(*DeadLetter) bool
}

// Field is a value in a JSON body.
type Field struct {
	// Path as gjson has it: customer.id, items.0.sku, items.#(sku=="A1"). Of an array, such as that
	// of items.#.sku, one element is enough.
	Path string
	// Value as text: what is in the quotes, a number as it is written, true, false or null.
	Value string
}

// ParseField reads path=value. It cuts at the first = that is not within a query of the path, as in
// items.#(sku=="A1").price=5.
func ParseField(text string) (Field, bool) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"' && depth > 0:
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '=' && depth <= 0:
			return Field{Path: text[:i], Value: text[i+1:]}, i > 0
		}
	}

	return Field{}, false
}

// Validate reports everything that cannot be right, as joined *[config.FieldError]s.
func (f Filter) Validate() error {
	var all []error
	check := func(ok bool, field, wanted, found string) {
		if !ok {
			all = append(all, &config.FieldError{Path: "Filter." + field, Wanted: wanted, Found: found})
		}
	}

	for i, reason := range f.Reasons {
		check(reason == "" || slices.Contains(retry.Reasons(), reason),
			fmt.Sprintf("Reasons[%d]", i), "one of "+reasons(), strconv.Quote(string(reason)))
	}
	for i, uuid := range f.UUIDs {
		check(uuid != "", fmt.Sprintf("UUIDs[%d]", i), "a UUID", `""`)
	}
	for i, id := range f.Fingerprints {
		check(fingerprint.IsID(id), fmt.Sprintf("Fingerprints[%d]", i), "12 hexadecimal digits in lower case, as `stat "+
			"--by fingerprint` prints them", strconv.Quote(id))
	}

	const positive = "0 (no bound) or more"
	check(f.OlderThan >= 0, "OlderThan", positive, f.OlderThan.String())
	check(f.NewerThan >= 0, "NewerThan", positive, f.NewerThan.String())
	check(f.DueWithin >= 0, "DueWithin", positive, f.DueWithin.String())
	check(f.DueAfter >= 0, "DueAfter", positive, f.DueAfter.String())
	check(f.DueWithin == 0 || f.DueAfter < f.DueWithin, "DueAfter", fmt.Sprintf("less than DueWithin (%v)",
		f.DueWithin), f.DueAfter.String())
	check(f.NewerThan <= 0 || f.OlderThan < f.NewerThan, "OlderThan",
		fmt.Sprintf("less than NewerThan (%v), as nothing is older than that and newer", f.NewerThan),
		f.OlderThan.String())

	bounds := func(name string, least, most int) {
		check(least >= 0, "Min"+name, positive, strconv.Itoa(least))
		check(most >= 0, "Max"+name, positive, strconv.Itoa(most))
		check(most <= 0 || least <= most, "Min"+name, fmt.Sprintf("at most Max%s (%d)", name, most),
			strconv.Itoa(least))
	}
	bounds("Calls", f.MinCalls, f.MaxCalls)
	bounds("Replays", f.MinReplays, f.MaxReplays)
	check(!f.NeverReplayed || f.MinReplays <= 0, "MinReplays", "0 with NeverReplayed", strconv.Itoa(f.MinReplays))

	_, nameless := f.Headers[""]
	check(!nameless, `Headers[""]`, "the name of a header", `""`)
	for i, field := range f.Fields {
		check(field.Path != "", fmt.Sprintf("Fields[%d].Path", i), "the path of a field, such as customer.id", `""`)
	}

	return errors.Join(all...)
}

func reasons() string {
	var names []string
	for _, reason := range retry.Reasons() {
		names = append(names, string(reason))
	}

	return strings.Join(names, ", ")
}

// Matches tells whether a dead letter is one of those, at that time.
func (f Filter) Matches(l *DeadLetter, now time.Time) bool {
	return oneOf(f.Reasons, l.Reason) && oneOf(f.Topics, l.Topic) && oneOf(f.Handlers, l.Handler) &&
		oneOf(f.ErrorTypes, l.ErrorType) && oneOf(f.UUIDs, l.UUID) &&
		strings.Contains(l.Error, f.ErrorContains) && (f.ErrorMatches == nil || f.ErrorMatches.MatchString(l.Error)) &&
		f.matchesAge(l.LastFailure, now) && f.matchesDue(l.Wait, now) &&
		between(l.Calls, f.MinCalls, f.MaxCalls) && between(l.Replays, f.MinReplays, f.MaxReplays) &&
		(!f.NeverReplayed || l.Replays == 0) && (f.Parked == nil || *f.Parked == l.IsParked()) &&
		(len(f.Fingerprints) == 0 || slices.Contains(f.Fingerprints, l.Fingerprint().ID)) &&
		f.matchesHeaders(l) && f.matchesBody(l.Message.Body) && f.matchesText(l) &&
		(f.Where == nil || f.Where(l))
}

// Untimed reports whether OlderThan and NewerThan leave out a dead letter only because it tells no
// time of failure: it matches every other field.
func (f Filter) Untimed(l *DeadLetter) bool {
	if !l.LastFailure.IsZero() || f.OlderThan == 0 && f.NewerThan == 0 {
		return false
	}
	f.OlderThan, f.NewerThan = 0, 0

	return f.Matches(l, time.Time{})
}

// matchesAll tells the zero Filter, for which no dead letter needs to be read.
func (f Filter) matchesAll() bool { return reflect.ValueOf(f).IsZero() }

func oneOf[T comparable](wanted []T, found T) bool {
	return len(wanted) == 0 || slices.Contains(wanted, found)
}

func between(n, least, most int) bool { return n >= least && (most == 0 || n <= most) }

func (f Filter) matchesAge(at, now time.Time) bool {
	if f.OlderThan == 0 && f.NewerThan == 0 {
		return true
	}
	age := now.Sub(at)

	return !at.IsZero() && (f.OlderThan == 0 || age > f.OlderThan) && (f.NewerThan == 0 || age < f.NewerThan)
}

func (f Filter) matchesDue(w *Wait, now time.Time) bool {
	if f.DueWithin == 0 && f.DueAfter == 0 {
		return true
	}

	return w != nil && (f.DueWithin == 0 || w.End().Sub(now) <= f.DueWithin) && w.End().Sub(now) >= f.DueAfter
}

func (f Filter) matchesHeaders(l *DeadLetter) bool {
	for name, wanted := range f.Headers {
		if value, ok := l.Message.Headers[name]; !ok || codec.HeaderText(value) != wanted {
			return false
		}
	}

	return true
}

func (f Filter) matchesText(l *DeadLetter) bool {
	if f.Text == "" {
		return true
	}
	wanted := strings.ToLower(f.Text)
	if strings.Contains(strings.ToLower(l.Error), wanted) ||
		bytes.Contains(bytes.ToLower(l.Message.Body), []byte(wanted)) {
		return true
	}
	for _, value := range l.Message.Headers {
		if strings.Contains(strings.ToLower(codec.HeaderText(value)), wanted) {
			return true
		}
	}

	return false
}

// matchesBody uses encoding/json to see whether the body is JSON: gjson's own check is recursive
// without a bound, and 16 MB of "[" would end the process.
func (f Filter) matchesBody(body []byte) bool {
	if len(f.Fields) == 0 {
		return true
	}
	if !json.Valid(body) {
		return false
	}
	for _, field := range f.Fields {
		if !field.matches(gjson.GetBytes(body, field.Path)) {
			return false
		}
	}

	return true
}

func (f Field) matches(found gjson.Result) bool {
	if found.IsArray() {
		return slices.ContainsFunc(found.Array(), f.isText)
	}

	return f.isText(found)
}

func (f Field) isText(found gjson.Result) bool {
	switch found.Type {
	case gjson.Null:
		return found.Exists() && f.Value == "null"
	case gjson.Number:
		return f.Value == found.Raw || f.Value == found.String() // 1.50 is 1.5 as well
	}

	return f.Value == found.String()
}
