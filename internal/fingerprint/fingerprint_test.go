package fingerprint

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestPattern(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"":                          "",
		"connection refused":        "connection refused",
		"order 17 not found":        "order <n> not found",
		"order17: 3 of 20 items":    "order<n>: <n> of <n> items",
		"took 1.5s, -12 left, 10%":  "took <n>s, -<n> left, <n>%",
		"dial tcp 10.0.0.7:443: no": "dial tcp <n>:<n>: no",
		"version 1.2.3. The end":    "version <n>. The end",
		"at 2026-11-22T05:12:00Z":   "at <n>-<n>-<n>T<n>:<n>:<n>Z",
		"user 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b10 unknown":   "user <uuid> unknown",
		"4F6C8A52-9D0E-4B2B-A1DE-7A8A3F1C2B10":                "<uuid>",
		"x 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b100":             "x <hex>-<n>d<n>e-<n>b<n>b-a<n>de-<hex>",
		"at 0xc000123abc, 0x1f, sum 9f86d081884c7d65":         "at <hex>, <hex>, sum <hex>",
		"the deadbeef, 20261122, facade, 0x":                  "the deadbeef, <n>, facade, <n>x",
		"event 01J8ZKQ4S3W7E5V9X2C6B8N1M0 is old":             "event <id> is old",
		"job 7hNbGdRQqpUxLMtcKPyfeC failed":                   "job <id> failed",
		"a_function_with_many_words_2 and http2internalerror": "a_function_with_many_words_<n> and <id>",
		`no field "customer" in {"a": "b\"c"}`:                `no field "…" in {"…": "…"}`,
		"bad value 'x y' for `z`":                             `bad value "…" for "…"`,
		"can't read the user's file":                          "can't read the user's file",
		"rock 'n roll":                                        "rock 'n roll",
		`parsing "a text that was cut`:                        `parsing "…"`,
		`a 5" disk`:                                           `a <n>" disk`,
		"two\n\tlines  and\r\nmore ":                          "two lines and more",
		"не найден заказ 42":                                  "не найден заказ <n>",
		"٣ orders":                                            "<n> orders",
		"bad \xff\xfe bytes":                                  "bad bytes",
	} {
		assert.Equal(t, want, patternOf(text), text)
	}
	assert.Equal(t, strings.Repeat("é", 250), patternOf(strings.Repeat("é", 300)), "500 bytes, at a character")
	assert.Equal(t, strings.Repeat("a", 499), patternOf(strings.Repeat("a", 499)+"é"))
}

// However the text looks: valid, short, and the same for all numbers.
func TestPattern_OfAnything(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab0x1.- \"'`\\é…\n\x00")), 0, 1200, -1).Draw(t, "text")
		p := patternOf(text)
		assert.True(t, utf8.ValidString(p))
		assert.LessOrEqual(t, len(p), mostPattern)
		assert.Equal(t, strings.TrimSpace(p), p)
		quoted := strings.ContainsAny(text, "\"'`")
		words := strings.ContainsAny(text, "abx")
		assert.True(t, quoted || words || len(p) >= mostPattern ||
			p == patternOf(strings.ReplaceAll(text, "1", "11")), "%q", text)
	})
}

// A hostile text of the largest frame takes no time: it is a millisecond, and were it quadratic a
// minute.
func TestPattern_IsLinear(t *testing.T) {
	t.Parallel()

	for _, text := range []string{
		strings.Repeat(" '", 64<<10), strings.Repeat(" `'", 40<<10), strings.Repeat("\\\" ", 40<<10),
		strings.Repeat("1.", 64<<10), strings.Repeat(" ", 128<<10), strings.Repeat("0x", 64<<10),
		strings.Repeat("\xff", 128<<10),
	} {
		began := time.Now()
		_ = patternOf(text)
		assert.Less(t, time.Since(began), 5*time.Second)
	}
}

func BenchmarkOf(b *testing.B) {
	for name, text := range map[string]string{
		"short": `cannot bill order 17: dial tcp 10.0.0.7:443: connect: connection refused`,
		"long":  strings.Repeat("no field 17 in the answer. ", 2048/27),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				Of("*net.OpError", "bill", text, "exhausted")
			}
		})
	}
}
