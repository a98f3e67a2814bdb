package cli

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

func TestSafe(t *testing.T) {
	for text, safe := range map[string]string{
		"":                        "",
		"orders.dlq é 日本 🙂":       "orders.dlq é 日本 🙂",
		"\x1b]0;title\x07":        `\x1b]0;title\x07`,
		"a\nb\r\tc\x00\x7f":       `a\nb\r\tc\x00\x7f`,
		"\u009b31m":               `\u009b31m`, // C1: begins a sequence on some terminals
		"\u202egpj.exe\u2066":     `\u202egpj.exe\u2066`,
		"zero\u200bwidth\ufeff":   `zero\u200bwidth\ufeff`,
		"line\u2028sep":           `line\u2028sep`,
		"\xff\xfe":                `\xff\xfe`,
		"\xc2\x9b and a cut \xe2": `\u009b and a cut \xe2`,
		"\U000e0041":              `\U000e0041`, // tags
	} {
		assert.Equal(t, safe, Safe(text))
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range Safe(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))) {
			if !unicode.IsGraphic(r) || r == '\u2028' || r == '\u2029' {
				t.Fatalf("%q", r)
			}
		}
	})
}

func TestTable(t *testing.T) {
	w := newWorld(nil)
	require.NoError(t, w.Table([]string{"queue", "messages"}, [][]string{{"orders", "1"}, {"a\tb\n\x1b[2J", "22"},
		{"", ""}}))
	assert.Equal(t, "QUEUE          MESSAGES\norders         1\na\\tb\\n\\x1b[2J  22\n\n", w.out.String())
}

func TestTableOnATerminal(t *testing.T) {
	w := newWorld(nil)
	w.Width = 10
	require.NoError(t, w.Table([]string{"a", "b"}, [][]string{{"ééééé", "12345"}, {"日", "x"}}))
	assert.Equal(t, "A      B\nééééé  12…\n日      x\n", w.out.String())
}

func TestNote(t *testing.T) {
	w := newWorld(nil)
	w.Note("see %s\x1b", "http://user:s3cret@host")
	assert.Equal(t, "see http://...@host\\x1b\n", w.err.String())
}

func TestProgress(t *testing.T) {
	w := newWorld(nil)
	bar := w.Progress("replaying", 100)
	bar.Set(50)
	bar.Close()
	assert.Empty(t, w.err.String(), "it is not a terminal")

	w = newWorld(nil)
	w.ErrIsTerminal = true
	bar = w.Progress("replaying \x1b", 0)
	bar.SetTotal(100)
	bar.Set(50)
	bar.SetTotal(200)
	await.Until(t, func() bool { // it draws now and then
		bar.Set(100)
		return strings.Contains(w.err.String(), "100/200")
	})
	assert.Contains(t, w.err.String(), "msg/")
	bar.Close()
	bar.Close()
	bar.Set(150) // it is over
	assert.Contains(t, w.err.String(), `replaying \x1b`)
	assert.NotContains(t, w.err.String(), "150")
	assert.Empty(t, w.out.String())

	w.JSON = true
	w.err.Reset()
	w.Progress("x", 1).Set(1)
	assert.Empty(t, w.err.String())
}
