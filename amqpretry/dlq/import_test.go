package dlq

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Wherever whoever wrote a line was killed, what is there of it is its beginning; what is wrong otherwise is not.
func TestCut(t *testing.T) {
	t.Parallel()
	line, err := encodeRecord(&Letter{Message: amqp091.Publishing{
		Body: []byte("Straße \"\\\x01 \U0001f600"), Headers: amqp091.Table{"n": int64(-12), "yes": true, "no": nil, "half": 1.5e-7, "list": []any{"a", int32(1)}},
	}}, "orders.dlq")
	require.NoError(t, err)
	for n := 1; n < len(line); n++ {
		assert.True(t, cut(line[:n]), "%s", line[:n])
		assert.True(t, cut(append([]byte(" \t"), line[:n]...)), "%s", line[:n])
	}
	for _, wrong := range []string{
		string(line), `{"v":2}`, `{}`, `{"v":1,}`, `{"v":1 "body":`, `{v:1`, `{"v":tru?`, `{"v":"` + "\x01", `{"v":1}}`, `{"v":1} {`,
		"garbage", "[1", `"text`, "tru", "1", "\x1f\x8b\x08", "\x00", "\ufeff{",
	} {
		assert.False(t, cut([]byte(wrong)), "%q", wrong)
	}
}
