// Package exampletest runs an example and compares its output.
package exampletest

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// Output runs an example on a broker and wants its lines. Lines about one message, those with the
// same text before their first colon, must come in their order; lines about different messages may
// come in any.
func Output(t *testing.T, run func(ctx context.Context, uri string, out io.Writer) error, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out Buffer
	require.NoError(t, run(ctx, brokertest.URI(t), &out))
	require.NoError(t, ctx.Err(), "the example did not end by itself:\n%s", &out)
	assert.Equal(t, byMessage(want), byMessage(out.String()), "the example printed\n%s", &out)
}

func byMessage(output string) map[string][]string {
	lines := map[string][]string{}
	for line := range strings.Lines(output) {
		message, _, _ := strings.Cut(line, ":")
		lines[message] = append(lines[message], line)
	}

	return lines
}

// Buffer takes the output of many goroutines.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.String()
}
