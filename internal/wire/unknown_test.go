package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What a later version has added survives an instance of this one, within bounds.
func TestUnknownKeys(t *testing.T) {
	headers := map[string]any{"x": "not ours", Prefix + "trace": "abc", Prefix + "number": int64(1), Prefix + "zzz": strings.Repeat("z", MaxUnknownBytes)}
	for key, value := range (State{Queue: "q", Count: 1, Delay: "1s"}).Headers("id") {
		headers[key] = value
	}
	reading := Reading{Queue: "q", MaxRetries: 3, Death: "q.retry.1s", IsRetryQueue: func(string, string) bool { return true }}

	s, kind := Read(headers, reading)
	assert.Equal(t, Retry, kind)
	assert.Equal(t, map[string]string{Prefix + "trace": "abc"}, s.Unknown, "text only, and no more than there is room for")
	assert.Equal(t, "abc", s.Headers("id")[Prefix+"trace"])
	assert.NotContains(t, s.Shrink(1).Headers("id"), Prefix+"trace")

	reading.Queue = "another"
	s, _ = Read(headers, reading)
	assert.Nil(t, s.Unknown, "a fresh message has none of ours")
}

func TestAllKeysAreKnown(t *testing.T) {
	s := State{
		Count: 1, Delay: "1s", Attempts: 1, Replays: 1, Queue: "q", Topic: "t", Handler: "h", Host: "h", Arrival: NewArrival("e", "k", "1", "u", "cc"), UUID: "u",
		FirstFailure: parseTime("2026-01-01T00:00:00Z"), LastFailure: parseTime("2026-01-01T00:00:00Z"), Since: parseTime("2026-01-01T00:00:00Z"),
		Deadline: parseTime("2026-01-01T00:00:00Z"), NotBefore: parseTime("2026-01-01T00:00:00Z"), Reason: ReasonExpired, Error: "e", ErrorType: "t",
		History: []Attempt{{Number: 1}}, Replay: "r", Canary: "1 r q.dlq.lock", Edits: "[]", Handled: "h",
	}
	s.Arrival.Opt = "{}"
	full := s.Headers("id")
	for key := range full {
		assert.True(t, known[key], key)
	}
	assert.Len(t, full, len(known)-1, "all but the one that is added to what is too large")
}
