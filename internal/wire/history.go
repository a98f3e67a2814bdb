package wire

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// The history keeps the first failure, which tells the cause, and the last ones, which tell the
// present.
const (
	historyFirst      = 1
	historyLast       = 9
	historyErrorBytes = 256
)

// attemptJSON is how an attempt is read; appendAttempt writes it.
type attemptJSON struct {
	Number int          `json:"n"`
	At     string       `json:"at"`
	Error  string       `json:"error,omitempty"`
	Type   string       `json:"type,omitempty"`
	Reason retry.Reason `json:"reason,omitempty"`
}

// Append returns history with a further attempt, bounded to the first and the last nine.
func Append(history []retry.FailedCall, a retry.FailedCall) []retry.FailedCall {
	a.Error = Text(a.Error, historyErrorBytes)
	a.Type = Text(a.Type, MaxErrorTypeBytes)

	return trim(append(slices.Clone(history), a), historyLast)
}

func trim(history []retry.FailedCall, last int) []retry.FailedCall {
	if len(history) <= historyFirst+last {
		return history
	}

	return slices.Concat(history[:historyFirst], history[len(history)-last:])
}

// encodeHistory drops attempts behind the first until the text fits its bound: escaping can
// multiply an error text by six.
func encodeHistory(history []retry.FailedCall) string {
	for last := historyLast; len(history) > 0; last-- {
		history = trim(history, max(last, 0))

		text := marshalHistory(history)
		if len(text) <= MaxHistoryBytes {
			return text
		}
		if last <= 0 {
			break
		}
	}

	return ""
}

// HasCrashed reports whether the headers carry a history in which the message has crashed its
// consumers. It does not decode it: it is asked of every delivery.
func HasCrashed(headers map[string]any) bool {
	text, _ := headers[header.History].(string)

	// in an error text the quotes are escaped
	return strings.Contains(text, `"reason":"`+string(retry.ReasonCrashed)+`"`)
}

func marshalHistory(history []retry.FailedCall) string {
	text := make([]byte, 0, 192*len(history))
	for i := range history {
		text = appendAttempt(append(text, "[,"[min(i, 1)]), &history[i])
	}

	return string(append(text, ']'))
}

func appendAttempt(to []byte, a *retry.FailedCall) []byte {
	to = strconv.AppendInt(append(to, `{"n":`...), int64(a.Number), 10)
	to = append(appendTime(append(to, `,"at":"`...), a.At), '"')
	for _, field := range [...]struct{ key, value string }{
		{`,"error":`, a.Error}, {`,"type":`, a.Type}, {`,"reason":`, string(a.Reason)},
	} {
		if field.value != "" {
			to = appendQuoted(append(to, field.key...), field.value)
		}
	}

	return append(to, '}')
}

// appendQuoted appends a text as encoding/json writes it. Most of them need no escape.
func appendQuoted(to []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, _ := json.Marshal(text) // a string has no error
			return append(to, quoted...)
		}
	}

	return append(append(append(to, '"'), text...), '"')
}

// decodeHistory reads what encodeHistory wrote; anything else is no history, never an error.
func decodeHistory(text string) []retry.FailedCall {
	if text == "" || len(text) > MaxHistoryBytes {
		return nil
	}
	history, ok := scanHistory(text)
	if ok {
		return history
	}

	var in []attemptJSON
	if json.Unmarshal([]byte(text), &in) != nil {
		return nil
	}
	for _, a := range in {
		history = append(history, a.call())
	}

	return trim(history, historyLast)
}

func (a attemptJSON) call() retry.FailedCall {
	return retry.FailedCall{Number: a.Number, At: ParseTime(a.At), Error: Text(a.Error, historyErrorBytes),
		Type: Text(a.Type, MaxErrorTypeBytes), Reason: a.Reason}
}

// scanHistory reads the spelling of marshalHistory, in a tenth of the time that encoding/json
// needs. It is false for any other one, whether that is a history or not.
func scanHistory(text string) ([]retry.FailedCall, bool) {
	s := scanner{rest: text}
	history := slices.Grow([]retry.FailedCall(nil), min(strings.Count(text, `{"n":`), historyFirst+historyLast))
	for more := s.skip("["); more; more = s.skip(",") {
		var a attemptJSON
		s.must(`{"n":`)
		a.Number = s.integer()
		s.must(`,"at":`)
		a.At = s.text()
		if s.skip(`,"error":`) {
			a.Error = s.text()
		}
		if s.skip(`,"type":`) {
			a.Type = s.text()
		}
		if s.skip(`,"reason":`) {
			a.Reason = retry.Reason(s.text())
		}
		if s.must("}"); s.failed {
			return nil, false
		}
		history = append(history, a.call())
	}

	return trim(history, historyLast), s.rest == "]"
}

// scanner reads JSON of a known spelling.
type scanner struct {
	rest   string
	failed bool
}

func (s *scanner) skip(prefix string) (there bool) {
	s.rest, there = strings.CutPrefix(s.rest, prefix)
	return there
}

func (s *scanner) must(prefix string) { s.failed = !s.skip(prefix) || s.failed }

func (s *scanner) integer() int {
	digits := s.rest[:max(0, strings.IndexByte(s.rest, ','))]
	n, err := strconv.Atoi(digits)
	s.failed = s.failed || err != nil || strconv.Itoa(n) != digits
	s.rest = s.rest[len(digits):]

	return n
}

func (s *scanner) text() (text string) {
	s.must(`"`)
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			text, s.rest = s.rest[:i], s.rest[i+1:]
			return text
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return s.unquoted()
		}
	}
	s.failed = true

	return ""
}

// unquoted reads the rest of a string that is not only plain ASCII.
func (s *scanner) unquoted() (text string) {
	end := 0
	for end < len(s.rest) && s.rest[end] != '"' {
		if s.rest[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s.rest) || json.Unmarshal([]byte(`"`+s.rest[:end+1]), &text) != nil {
		s.failed = true
		return ""
	}
	s.rest = s.rest[end+1:]

	return text
}
