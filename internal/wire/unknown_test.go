package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a later version has added survives an instance of this one, within bounds.
func TestUnknownKeys(t *testing.T) {
	headers := map[string]any{"x": "not ours", header.Prefix + "tomorrow": "abc", header.Prefix + "number": int64(1),
		header.Prefix + "zzz": strings.Repeat("z", MaxUnknownBytes)}
	for key, value := range (State{Queue: "q", Count: 1, Delay: "1s"}).Headers("id") {
		headers[key] = value
	}
	reading := Reading{Queue: "q", MaxRetries: 3, Death: "q.retry.1s", IsRetryQueue: func(string, string) bool {
		return true
	}}

	s, kind := Read(headers, reading)
	assert.Equal(t, Retry, kind)
	assert.Equal(t, map[string]string{header.Prefix + "tomorrow": "abc"}, s.Unknown, "text only, and no more than "+
		"there is room for")
	assert.Equal(t, "abc", s.Headers("id")[header.Prefix+"tomorrow"])
	assert.NotContains(t, s.Shrink(1).Headers("id"), header.Prefix+"tomorrow")

	reading.Queue = "another"
	s, _ = Read(headers, reading)
	assert.Nil(t, s.Unknown, "a fresh message has none of ours")
}

func TestAllKeysAreKnown(t *testing.T) {
	s := State{
		Count: 1, Delay: "1s", Attempts: 1, Replays: 1, Queue: "q", Topic: "t", Handler: "h", Host: "h",
		Arrival: NewArrival("e", "k", "1", "u", "cc"), UUID: "u",
		FirstFailure: ParseTime("2026-01-01T00:00:00Z"), LastFailure: ParseTime("2026-01-01T00:00:00Z"),
		Since:    ParseTime("2026-01-01T00:00:00Z"),
		Deadline: ParseTime("2026-01-01T00:00:00Z"), NotBefore: ParseTime("2026-01-01T00:00:00Z"),
		Due:    ParseTime("2026-01-01T00:00:00Z"),
		Reason: retry.ReasonExpired, Error: "e", ErrorType: "t",
		History: []retry.FailedCall{{Number: 1}}, Replay: "r", Canary: "1 r q.dlq.lock", Edits: "[]", Parked: "{}",
		Handled: "h",
		Trace:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	s.Arrival.Opt, s.Arrival.Priority = "{}", 9
	full := s.Headers("id")
	for key := range full {
		assert.True(t, header.Known[key], key)
	}
	assert.Len(t, full, len(header.Known)-1, "all but the one that is added to what is too large")
}
