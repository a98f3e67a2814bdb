package wire_test

import (
	"encoding/json"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

const id = "0123456789abcdefghijkl" // as long as a short UUID

func blanks(n int) string { return strings.Repeat(" ", n) }

func merged(tables ...map[string]any) map[string]any {
	out := map[string]any{}
	for _, table := range tables {
		maps.Copy(out, table)
	}

	return out
}

// anyText draws strings of all sorts: plain, invalid, such that JSON escapes, and far too long.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		part := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"", "x", "<", "\x00", "\xff", "\xe2\x82", "世", "\u2028", "…", "\U0001F600"}),
		).Draw(t, "part")

		return strings.Repeat(part, rapid.SampledFrom([]int{1, 1, 1, 2, 100, 255, 3000}).Draw(t, "times"))
	})
}

// name draws valid text of at most limit bytes, which passes unchanged.
func name(limit int) *rapid.Generator[string] {
	return rapid.Map(rapid.String(), func(s string) string {
		if len(s) > limit {
			return ""
		}

		return s
	})
}

func anyTime() *rapid.Generator[time.Time] {
	return rapid.Map(rapid.Int64Range(0, 253402300799999), func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}

		return time.UnixMilli(ms).UTC()
	})
}

func anyReason() *rapid.Generator[retry.Reason] {
	return rapid.SampledFrom(append(retry.Reasons(), ""))
}

// anyState draws a state with text from the given generator wherever foreign text can get to. Names
// of queues and delays were checked long before.
func anyState(text *rapid.Generator[string], historyBytes int) *rapid.Generator[wire.State] {
	return rapid.Custom(func(t *rapid.T) wire.State {
		s := wire.State{
			Count:        rapid.IntRange(-1, 1000).Draw(t, "count"),
			Attempts:     rapid.IntRange(0, 1<<31-2).Draw(t, "attempts"),
			Replays:      rapid.IntRange(0, 1<<31-2).Draw(t, "replays"),
			Queue:        rapid.SampledFrom([]string{queue, strings.Repeat("q", 255)}).Draw(t, "queue"),
			Topic:        text.Draw(t, "topic"),
			Handler:      text.Draw(t, "handler"),
			Host:         text.Draw(t, "host"),
			UUID:         text.Draw(t, "uuid"),
			FirstFailure: anyTime().Draw(t, "first failure"),
			LastFailure:  anyTime().Draw(t, "last failure"),
			Deadline:     anyTime().Draw(t, "deadline"),
			Reason:       anyReason().Draw(t, "reason"),
			Error:        text.Draw(t, "error"),
			ErrorType:    text.Draw(t, "error type"),
			Subscriber:   text.Draw(t, "subscriber"),
			Trace:        rapid.SampledFrom([]string{"", traceparent}).Draw(t, "trace"),
		}
		if s.Count != header.CountDead {
			s.Delay = rapid.SampledFrom([]string{"30s", "315360000000ms"}).Draw(t, "delay")
		}
		if rapid.Bool().Draw(t, "arrived") {
			s.Arrival = wire.NewArrival(
				text.Draw(t, "exchange"), text.Draw(t, "routing key"), text.Draw(t, "expiration"), text.Draw(t, "user"),
				text.Draw(t, "cc"),
			)
		}
		for i := range rapid.IntRange(0, 14).Draw(t, "failures") {
			s.History = wire.Append(s.History, retry.FailedCall{
				Number: i + 1, At: anyTime().Draw(t, "at"), Reason: anyReason().Draw(t, "why"),
				Error: cut(text.Draw(t, "what"), historyBytes), Type: cut(text.Draw(t, "type"), historyBytes),
			})
		}

		return s
	})
}

func cut(s string, limit int) string {
	if len(s) > limit {
		return ""
	}

	return s
}

func table(headers map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range headers {
		out[key] = value
	}

	return out
}

func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyState(name(255), 60).Draw(t, "state")
		want.Count = rapid.IntRange(1, 1000).Draw(t, "retry")
		want.Delay = "30s"

		got, kind := wire.Read(table(want.Headers(id)), wire.Reading{
			Queue: want.Queue, MaxRetries: 1000, Death: "waited", IsRetryQueue: func(name, delay string) bool {
				return name == "waited" && delay == "30s"
			},
		})

		want.Subscriber = "" // for Watermill's tools only
		require.Equal(t, wire.Retry, kind)
		require.Equal(t, want, got)
	})
}

func TestHeadersOfTheDead(t *testing.T) {
	s := wire.State{
		Count: header.CountDead, Delay: "30s", Attempts: 6, Queue: queue, Topic: "t", Handler: "h", Subscriber: "s",
		Reason: retry.ReasonExhausted, Error: "boom", ErrorType: "*errors.errorString",
		LastFailure: time.Date(2026, 1, 2, 4, 4, 5, 678_900_000, time.FixedZone("", 3600)),
	}
	assert.Equal(t, map[string]string{
		"amqpretry-v": "1", "amqpretry-id": "i", "amqpretry-count": "-1", "amqpretry-attempts": "6",
		"amqpretry-queue": queue,
		"amqpretry-topic": "t", "amqpretry-handler": "h", "amqpretry-reason": "exhausted", "amqpretry-error": "boom",
		"amqpretry-error-type": "*errors.errorString", "amqpretry-last-failure": "2026-01-02T03:04:05.678Z",
		"reason_poisoned": "boom", "topic_poisoned": "t", "handler_poisoned": "h", "subscriber_poisoned": "s",
	}, s.Headers("i"), "no delay: every copy matches one binding")

	s.Error, s.ErrorType = "", ""
	headers := s.Headers("i")
	assert.Equal(t, "exhausted", headers["reason_poisoned"], "a dead letter without an error says at least this")
	assert.NotContains(t, headers, "amqpretry-error")
}

func TestHeadersOfARetry(t *testing.T) {
	s := wire.State{Count: 2, Delay: "30s", Attempts: 2, Replays: 1, Queue: queue, Arrival: wire.NewArrival("", "", "",
		"", "")}
	assert.Equal(t, map[string]string{
		"amqpretry-v": "1", "amqpretry-id": "i", "amqpretry-count": "2", "amqpretry-delay": "30s",
		"amqpretry-attempts": "2",
		"amqpretry-queue":    queue, "amqpretry-replays": "1", "amqpretry-exchange": "", "amqpretry-routing-key": "",
	}, s.Headers("i"), "the default exchange has an empty name, which is worth knowing")
}

// encodedSize is what a table entry takes: a short string as key, a type, a long string.
func encodedSize(headers map[string]string) int {
	size := 0
	for key, value := range headers {
		size += 1 + len(key) + 1 + 4 + len(value)
	}

	return size
}

func checkBounds(t require.TestingT, headers map[string]string) {
	for key, value := range headers {
		limit := wire.MaxNameBytes
		switch key {
		case header.Error, header.PoisonReason:
			limit = 2 << 10
		case header.ErrorType:
			limit = 256
		case header.History:
			limit = 6 << 10
		case header.CC, header.Opt:
			limit = 1 << 10
		case header.Edits:
			limit = 2 << 10
		case header.Trace:
			limit = 55
		case header.Parked:
			limit = 1 << 10
		case header.Canary:
			limit = wire.MaxCanaryBytes
		}
		require.True(t, utf8.ValidString(value), key)
		require.LessOrEqual(t, len(value), limit, key)
	}

	require.LessOrEqual(t, encodedSize(headers), 16<<10)
}

func TestHeadersAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := anyState(anyText(), 1<<20).Draw(t, "state")
		checkBounds(t, state.Headers(id))
	})
}

// All at their bounds at once, which chance does not find.
func TestLargestHeaders(t *testing.T) {
	for _, c := range []string{"x", "<", "世", "\xff世", "\U0001F600"} {
		long := strings.Repeat(c, 3000)
		now := time.Now()
		s := wire.State{
			Count: header.CountDead, Attempts: 1<<31 - 1, Replays: 1<<31 - 1, Queue: strings.Repeat("q", 255),
			Topic: long, Handler: long,
			Host: long, Arrival: wire.NewArrival(long, long, long, long, long), UUID: long, FirstFailure: now,
			LastFailure: now,
			Deadline:    now, Reason: retry.ReasonPostponedTooLong, Error: long, ErrorType: long, Subscriber: long,
			Trace: traceparent,
		}
		for range 20 {
			s.History = wire.Append(s.History, retry.FailedCall{Number: 1, At: now, Error: long, Type: long,
				Reason: s.Reason})
		}

		headers := s.Headers(id)
		checkBounds(t, headers)
		assert.Greater(t, encodedSize(headers), 10<<10, "as much as may be is kept of %q", c)
	}
}

func TestHistoryKeepsTheFirstAndTheLastNine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		failures := rapid.IntRange(0, 40).Draw(t, "failures")

		var history []retry.FailedCall
		for n := range failures {
			history = wire.Append(history, retry.FailedCall{Number: n + 1})
		}

		var want []int
		for n := 1; n <= failures; n++ {
			if n == 1 || n > failures-9 {
				want = append(want, n)
			}
		}
		require.Equal(t, want, numbers(history))

		s := wire.State{Count: header.CountDead, Queue: queue, History: history}
		read, _ := wire.Read(table(s.Headers(id)), reading(""))
		require.Equal(t, want, numbers(read.History))
	})
}

func TestAppendLeavesItsArgumentAlone(t *testing.T) {
	history := make([]retry.FailedCall, 1, 8)
	a := wire.Append(history, retry.FailedCall{Number: 1})
	b := wire.Append(history, retry.FailedCall{Number: 2})

	assert.Equal(t, []int{0, 1}, numbers(a))
	assert.Equal(t, []int{0, 2}, numbers(b))
}

func TestAppendBoundsTexts(t *testing.T) {
	history := wire.Append(nil, retry.FailedCall{Error: strings.Repeat("x", 300), Type: strings.Repeat("y", 300)})
	assert.Equal(t, strings.Repeat("x", 253)+"…", history[0].Error)
	assert.Equal(t, strings.Repeat("y", 253)+"…", history[0].Type)
}

// Escaping multiplies some texts by six: the first attempt and the newest ones that fit are kept.
func TestHistoryThatDoesNotFit(t *testing.T) {
	s := wire.State{Queue: queue}
	for n := range 10 {
		s.History = append(s.History, retry.FailedCall{Number: n + 1, Error: strings.Repeat("<", 256)})
	}

	text := s.Headers(id)[header.History]
	assert.Less(t, len(text), 6<<10)

	var entries []struct{ N int }
	require.NoError(t, json.Unmarshal([]byte(text), &entries))
	require.Len(t, entries, 3, "each takes over 1,536 bytes, and a fourth would be too much")
	assert.Equal(t, []int{1, 9, 10}, []int{entries[0].N, entries[1].N, entries[2].N})

	const around = len(`[{"n":1,"at":"","error":""}]`)
	s.History = []retry.FailedCall{{Number: 1, Error: strings.Repeat("x", 6<<10-around)}}
	assert.Len(t, s.Headers(id)[header.History], 6<<10, "this just fits")

	s.History[0].Error += "x"
	assert.NotContains(t, s.Headers(id), header.History, "not even the first fits")
}

func numbers(history []retry.FailedCall) []int {
	var out []int
	for _, a := range history {
		out = append(out, a.Number)
	}

	return out
}

func TestShrinkNeverGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := anyState(anyText(), 1<<20).Draw(t, "state")

		size := encodedSize(state.Headers(id))
		require.Equal(t, size, encodedSize(state.Shrink(0).Headers(id)), "step 0 gives nothing up")

		for step := 1; step <= wire.ShrinkSteps; step++ {
			next := encodedSize(state.Shrink(step).Headers(id))
			require.LessOrEqual(t, next, size, "step %d", step)
			size = next
		}
	})
}

func TestShrinkOrder(t *testing.T) {
	full := wire.State{
		Count: 2, Delay: "30s", Attempts: 2, Replays: 1, Queue: queue, Topic: "t", Handler: "h", Host: "o", UUID: "u",
		Subscriber: "s",
		Arrival:    wire.NewArrival("e", "r", "x", "i", "c"), Error: strings.Repeat("x", 1000), ErrorType: "E",
		FirstFailure: time.UnixMilli(1), LastFailure: time.UnixMilli(2), Deadline: time.UnixMilli(3),
		History: []retry.FailedCall{{Number: 1}, {Number: 2}, {Number: 3}, {Number: 4}}, Trace: traceparent,
	}

	want := full
	assert.Equal(t, want, full.Shrink(0))

	want.History = []retry.FailedCall{{Number: 1}, {Number: 4}}
	assert.Equal(t, want, full.Shrink(1))

	want.History, want.Trace = nil, ""
	assert.Equal(t, want, full.Shrink(2))

	want.Error = strings.Repeat("x", 253) + "…"
	assert.Equal(t, want, full.Shrink(3))

	want.Error, want.ErrorType, want.Topic, want.Handler, want.Host, want.Subscriber, want.Arrival.CC = "", "", "", "",
		"", "", ""
	assert.Equal(t, want.Headers("id"), full.Shrink(4).Headers("id"), "what the return needs is never given up")

	dead := full
	dead.Count = header.CountDead
	for key := range dead.Shrink(4).Headers("id") {
		assert.False(t, header.IsPoison(key), "%s repeats what was given up", key)
	}
	assert.True(t, full.Shrink(4).Arrival.Known())
	assert.Equal(t, []int{1, 2, 3, 4}, numbers(full.History), "the state itself is as it was")
}

func TestText(t *testing.T) {
	for name, test := range map[string]struct {
		in    string
		limit int
		want  string
	}{
		"empty":                    {"", 10, ""},
		"fits":                     {"0123456789", 10, "0123456789"},
		"one too long":             {"0123456789a", 10, "0123456…"},
		"much too long":            {strings.Repeat("x", 1<<20), 10, "xxxxxxx…"},
		"cut between characters":   {"012345世世", 10, "012345…"},
		"character at the end":     {"0123世世", 10, "0123世世"},
		"invalid byte":             {"a\xffb", 10, "a\uFFFDb"},
		"invalid bytes grow":       {"a\xffa\xffa\xffa\xff", 10, "a\uFFFDa…"},
		"half a character":         {"a\xe4\xb8", 10, "a\uFFFD"},
		"no room for the ellipsis": {"0123", 2, ""},
		"room for only the dots":   {"0123", 3, "…"},
		"no room at all":           {"0", 0, ""},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, wire.Text(test.in, test.limit)) })
	}
}

func TestTextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anyText().Draw(t, "text")
		limit := rapid.IntRange(0, 3000).Draw(t, "limit")

		out := wire.Text(in, limit)
		require.True(t, utf8.ValidString(out))
		require.LessOrEqual(t, len(out), limit)
		require.Equal(t, out, wire.Text(out, limit), "what fits is not touched again")

		switch {
		case !utf8.ValidString(in):
		case len(in) <= limit:
			require.Equal(t, in, out)
		case limit >= 3:
			kept, marked := strings.CutSuffix(out, "…")
			require.True(t, marked, "a cut shows")
			require.True(t, strings.HasPrefix(in, kept))
			require.GreaterOrEqual(t, len(kept), limit-6, "no more is cut than must be")
		}
	})
}

// anyValue makes a header value of any AMQP type, as amqp091 would decode it, of a string.
func anyValue(kind byte, s string) any {
	n, _ := strconv.ParseInt(s, 10, 64)

	switch kind % 20 {
	case 1:
		return []byte(s)
	case 2:
		return int8(n)
	case 3:
		return int16(n)
	case 4:
		return int32(n)
	case 5:
		return n
	case 6:
		return byte(n)
	case 7:
		return uint16(n)
	case 8:
		return uint32(n)
	case 9:
		return float32(n)
	case 10:
		return float64(n)
	case 11:
		return time.Unix(n, 0)
	case 12:
		return nil
	case 13:
		return []any{s, n}
	case 14:
		return map[string]any{s: n}
	case 15:
		return n > 0
	case 16:
		return math.NaN()
	case 17:
		return math.Inf(1)
	}

	return s
}

func FuzzRead(f *testing.F) {
	f.Add("1", "1", "30s", "3", `[{"n":1,"at":"2026-01-02T03:04:05.678Z","error":"x"}]`, "2026-01-02T03:04:05.678Z",
		"boom", byte(0))
	f.Add("1", "-1", "", "99999999999999999999", `[{}]`, "9999-12-31T23:59:59.999+14:00", "\xff", byte(0))
	f.Add("1", "-9223372036854775808", "0s", "-1", `[`, "0000-01-01T00:00:00Z", "", byte(5))
	f.Add("2", "1e9", "\x00", "", "null", "now", "", byte(13))
	f.Add("1", "4294967295", "30s", "1", "", "", "", byte(8))

	f.Fuzz(func(t *testing.T, version, count, delay, number, history, at, text string, kind byte) {
		headers := map[string]any{header.Version: version, header.Queue: queue, header.Count: anyValue(kind, count)}
		for _, key := range allKeys[3:] {
			if key != header.Queue {
				headers[key] = anyValue(kind>>4, text)
			}
		}
		headers[header.Delay] = delay
		headers[header.Attempts], headers[header.Replays] = number, number
		headers[header.FirstFailure] = at
		headers[header.History] = history

		for _, death := range []string{"", queue + ".retry." + delay} {
			state, got := wire.Read(headers, reading(death))

			switch got {
			case wire.Fresh, wire.UnknownVersion:
				require.Zero(t, state)
			case wire.Retry:
				require.NotEmpty(t, death, "only the broker's word makes a retry")
				require.Positive(t, state.Count)
			case wire.Replay:
				require.Positive(t, state.Replays)
				require.Empty(t, state.Deadline)
			case wire.Clamped:
			}
			require.GreaterOrEqual(t, state.Count, 0)
			require.LessOrEqual(t, state.Count, 3)
			require.GreaterOrEqual(t, state.Attempts, 0)
			require.GreaterOrEqual(t, state.Replays, 0)
			require.LessOrEqual(t, len(state.History), 10)

			state.Queue = queue
			checkBounds(t, state.Headers(id))
			state.Count, state.Reason = header.CountDead, retry.ReasonExhausted
			checkBounds(t, state.Headers(id))
		}
	})
}

// Only a dead letter is parked: whatever comes back from the dead-letter queue is not.
func TestReplaysAreNotParked(t *testing.T) {
	parked := wire.State{Count: header.CountDead, Queue: queue, Parked: "{}"}
	s, ours := wire.ReadDead(table(parked.Headers(id)), queue)
	assert.True(t, ours)
	assert.Equal(t, "{}", s.Parked)
	assert.Empty(t, s.ForReplay(queue, "run", "").Parked)
	assert.Empty(t, s.Shrink(wire.ShrinkSteps).Parked)
	s, kind := wire.Read(table(parked.Headers(id)), wire.Reading{Queue: queue})
	assert.Equal(t, wire.Replay, kind)
	assert.Empty(t, s.Parked, "moved back by hand")

	parked.Parked = strings.Repeat("x", wire.MaxParkedBytes+1)
	assert.Len(t, parked.Headers(id)[header.Parked], wire.MaxParkedBytes)
	forged := table(parked.Headers(id))
	forged[header.Parked] = parked.Parked
	s, _ = wire.ReadDead(forged, queue)
	assert.Empty(t, s.Parked)
}
