package dlq

import (
	"bufio"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stream without a line feed takes no more memory than the bound.
func TestReadLine(t *testing.T) {
	t.Parallel()
	in := bufio.NewReaderSize(strings.NewReader(strings.Repeat("x", 99)+"\n"+strings.Repeat("y", 100)+"\n"+"end"), 16)
	line, err := readLine(in, 100)
	require.NoError(t, err)
	assert.Len(t, line, 100)
	_, err = readLine(in, 100)
	require.ErrorIs(t, err, errLongLine)

	in = bufio.NewReaderSize(strings.NewReader("a\nend"), 16)
	for _, want := range []struct {
		line string
		err  error
	}{{"a\n", nil}, {"end", io.EOF}, {"", io.EOF}} {
		line, err = readLine(in, 100)
		assert.Equal(t, want.line, string(line))
		assert.Equal(t, want.err, err)
	}

	endless := rand.New(rand.NewChaCha8([32]byte{}))
	_, err = readLine(bufio.NewReader(&without{endless}), 1<<20)
	require.ErrorIs(t, err, errLongLine)
}

// without gives no line feeds.
type without struct{ *rand.Rand }

func (w *without) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a' + byte(w.IntN(26))
	}

	return len(p), nil
}

// Wherever whoever wrote a line was killed, what is there of it is its beginning; what is wrong
// otherwise is not.
func TestCut(t *testing.T) {
	t.Parallel()
	line, err := encodeRecord(&DeadLetter{Message: amqp091.Publishing{
		Body: []byte("Straße \"\\\x01 \U0001f600"), Headers: amqp091.Table{"n": int64(-12), "yes": true, "no": nil,
			"half": 1.5e-7, "list": []any{"a", int32(1)}},
	}}, "orders.dlq", Taken{By: "replay", To: "orders", Run: "r", At: time.Unix(1e9, 0)})
	require.NoError(t, err)
	for n := 1; n < len(line); n++ {
		assert.True(t, cut(line[:n]), "%s", line[:n])
		assert.True(t, cut(append([]byte(" \t"), line[:n]...)), "%s", line[:n])
	}
	for _, wrong := range []string{
		string(line), `{"v":2}`, `{}`, `{"v":1,}`, `{"v":1 "body":`, `{v:1`, `{"v":tru?`, `{"v":"` + "\x01", `{"v":1}}`,
		`{"v":1} {`,
		"garbage", "[1", `"text`, "tru", "1", "\x1f\x8b\x08", "\x00", "\ufeff{",
	} {
		assert.False(t, cut([]byte(wrong)), "%q", wrong)
	}
}

// xs are no end of them.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}

	return len(p), nil
}

// A line of 300 MB is refused with the memory of the longest line that is allowed, not with several
// times as much.
func TestLongLineIsBoundedWhileItIsRead(t *testing.T) {
	const longest, line = 192 << 20, 300 << 20
	var before, after runtime.MemStats
	in := bufio.NewReaderSize(io.LimitReader(xs{}, line), 64<<10)
	runtime.ReadMemStats(&before)
	_, err := readLine(in, longest)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, errLongLine)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(longest+16<<20), "all that was ever allocated")
}
