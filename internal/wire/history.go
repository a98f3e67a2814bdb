package wire

import (
	"encoding/json"
	"slices"
	"strings"

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

// attemptJSON fixes the spelling on the wire, apart from the Go names.
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
	out := make([]attemptJSON, len(history))
	for i, a := range history {
		out[i] = attemptJSON{a.Number, formatTime(a.At), a.Error, a.Type, a.Reason}
	}

	text, err := json.Marshal(out)
	if err != nil {
		return "" // cannot happen: strings and ints only
	}

	return string(text)
}

// decodeHistory reads what encodeHistory wrote; anything else is no history, never an error.
func decodeHistory(text string) []retry.FailedCall {
	if text == "" || len(text) > MaxHistoryBytes {
		return nil
	}

	var in []attemptJSON
	if json.Unmarshal([]byte(text), &in) != nil {
		return nil
	}

	var history []retry.FailedCall
	for _, a := range in {
		history = Append(history, retry.FailedCall{Number: a.Number, At: parseTime(a.At), Error: a.Error, Type: a.Type,
			Reason: a.Reason})
	}

	return history
}
