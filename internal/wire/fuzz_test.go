package wire_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// FuzzLife is what headers of any type and text make of a message, by rounds of failing, waiting
// and coming back: it ends within the attempts of its policy, and what it carries stays within its
// bounds.
func FuzzLife(f *testing.F) {
	f.Add("1", "1", "30s", "3", `[{"n":1,"at":"2026-01-02T03:04:05.678Z","error":"x"}]`, "2026-01-02T03:04:05.678Z",
		"future", "x", byte(0), true)
	f.Add("1", "-1", "", "99999999999999999999", `[{}]`, "9999-12-31T23:59:59.999+14:00", "\xff", "\xff", byte(0),
		false)
	f.Add("1", "-9223372036854775808", "0s", "-1", `[`, "0000-01-01T00:00:00Z", "retire", "token", byte(5), true)
	f.Add("1", "NaN", "1s", "1e9", "null", "now", "", "\x00", byte(17), true)
	f.Add("1", "1000000000", "60s", "4294967295", "", "", "count ", "1", byte(9), false)
	f.Add("2", "٣", "\x00", "", `[{"n":1e999}]`, "1999-01-01T00:00:00Z", "v", strings.Repeat("x", 600), byte(13), true)

	f.Fuzz(func(t *testing.T, version, count, delay, number, history, at, suffix, text string, kind byte, waited bool) {
		const retries = 3
		headers := map[string]any{
			header.Version: version, header.Queue: queue, header.Count: anyValue(kind, count), header.Delay: delay,
			header.Attempts: number, header.Replays: number, header.History: history, header.Error: text,
			header.UUID:   text,
			header.Replay: text, header.Edits: text, header.Trace: anyValue(kind, text),
			header.Since: at, header.NotBefore: at, header.LastFailure: at,
			header.Exchange: text, header.Expiration: count,
			header.Prefix + suffix: text, "x-death": text,
		}
		death := ""
		if waited {
			death = queue + ".retry." + delay
		}
		fresh := wire.Reading{Queue: "another", MaxRetries: retries, IsRetryQueue: reading("").IsRetryQueue}
		state, got := wire.Read(headers, fresh)
		require.Equal(t, wire.Fresh, got, "another queue's")
		require.Zero(t, state)

		for round := 0; ; round++ {
			require.LessOrEqual(t, round, retries, "more attempts than the policy allows")
			state, kind := wire.Read(headers, reading(death))
			require.True(t, state.Count >= 0 && state.Count <= retries)
			if round > 0 {
				require.Equal(t, wire.Retry, kind, "it has waited: its count is believed")
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			state.SetAge(wire.Age{Expiration: count, Kind: kind, Longest: time.Hour, Now: now})
			require.False(t, state.Since.After(now))

			state.Queue = queue
			state.Attempts++
			if state.Count++; state.Count > retries {
				state.Count, state.Delay, state.Reason = header.CountDead, "", retry.ReasonExhausted
			} else {
				state.Delay = "30s"
			}
			next := state.Headers(id)
			known := maps.Clone(next)
			maps.DeleteFunc(known, func(key, _ string) bool {
				return !slices.Contains(append(allKeys, header.Since, header.NotBefore), key) && !header.IsPoison(key)
			})
			checkBounds(t, known)
			require.LessOrEqual(t, encodedSize(next)-encodedSize(known), wire.MaxUnknownBytes)
			for key := range next {
				require.True(t, utf8.ValidString(key))
			}
			require.NotContains(t, next, header.Retire, "no message carries it")
			if state.Count == header.CountDead {
				letter, ok := wire.ReadDead(table(next), queue)
				require.True(t, ok)
				require.Equal(t, retry.ReasonExhausted, letter.Reason)

				return
			}
			headers, death = table(next), queue+".retry.30s"
		}
	})
}

// FuzzHistory compares the history of a message with what encoding/json reads of its header.
func FuzzHistory(f *testing.F) {
	const one = `{"n":1,"at":"2026-01-02T03:04:05.678Z","error":"a \"b\" \u003c\u2028 é 😀","type":"*url.Error","reason":"panic"}`
	for _, text := range []string{
		``, `[]`, `null`, `[null]`, `[` + one + `]`, `[` + one + `,` + one + `]`, `[` + one + `[` + one + `]`,
		`[` + one + `,]`, `[` + one + `]]`, `[` + one + `]x`, ` [` + one + `]`, `[` + one, `[` + one + `,`, `,` + one,
		`[` + strings.Repeat(`{"n":7,"at":""},`, 30) + `{"n":8,"at":"x"}]`,
		`[{"n":1}]`, `[{"n":01,"at":""}]`, `[{"n":+1,"at":""}]`, `[{"n":-0,"at":""}]`, `[{"n":-5,"at":""}]`,
		`[{"n":1.5,"at":""}]`, `[{"n":99999999999999999999,"at":""}]`, `[{"n":,"at":""}]`, `[{"n":1,"at":"}]`,
		`[{"n":1,"at":"","type":"t","error":"e"}]`, `[{"n":1,"at":"","Error":"e","error":"f"}]`,
		`[{"n":1,"at":"\"}]`, `[{"n":1,"at":"","error":"\\"}]`, `[{"n":1,"at":"","error":"\x"}]`,
		"[{\"n\":1,\"at\":\"\",\"error\":\"\xff\xfe\"}]", "[{\"n\":1,\"at\":\"\",\"error\":\"a\nb\"}]",
		`[{"n":1,"at":"","error":"\ud800"}]`, `[{"n":1,"at":"","error":"` + strings.Repeat("é", 200) + `"}]`,
		`[{"n":1,"at":"","reason":"crashed"},{}]`,
	} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		var in []struct {
			N                       int
			At, Error, Type, Reason string
		}
		var want []retry.FailedCall
		if len(text) <= wire.MaxHistoryBytes && json.Unmarshal([]byte(text), &in) == nil {
			for _, a := range in {
				at, err := time.Parse(time.RFC3339, a.At)
				if err != nil {
					at = time.Time{}
				}
				want = wire.Append(want, retry.FailedCall{Number: a.N, At: at.UTC(), Error: a.Error, Type: a.Type,
					Reason: retry.Reason(a.Reason)})
			}
		}
		state, kind := wire.Read(with(own("1"), header.History, text), reading(queue+".retry.30s"))
		require.Equal(t, wire.Retry, kind)
		require.Equal(t, want, state.History)
	})
}

func BenchmarkHistory(b *testing.B) {
	const one = `{"n":1,"at":"2026-01-02T03:04:05.678Z","error":"dial \"tcp\"","type":"*url.Error"}`
	headers := map[string]any{header.Queue: queue, header.Version: "1", header.Count: "-1",
		header.History: `[` + one + `,` + one + `,` + one + `]`}
	b.ReportAllocs()
	for b.Loop() {
		wire.ReadDead(headers, queue)
	}
}
