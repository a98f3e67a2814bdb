package connection

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// written is a connection that keeps what is written to it.
type written struct {
	net.Conn

	mu     sync.Mutex
	bytes  []byte
	writes int
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.bytes = append(w.bytes, b...)
	w.writes++

	return len(b), nil
}

// Whatever callers do at the same time: when all have let go, everything is written, once, and in
// the order of each.
func TestHeldWritesEverything(t *testing.T) {
	const callers, messages = 64, 200
	w := &written{}
	h := &held{Conn: w}
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range messages {
				h.hold()
				n, err := h.Write([]byte{byte(caller), byte(i)})
				assert.Equal(t, 2, n)
				assert.NoError(t, err)
				h.release()
			}
		})
	}
	all.Wait()
	require.Len(t, w.bytes, 2*callers*messages)
	next := map[byte]byte{}
	for i := 0; i < len(w.bytes); i += 2 {
		require.Equal(t, next[w.bytes[i]], w.bytes[i+1])
		next[w.bytes[i]]++
	}
	t.Logf("%d messages in %d writes", callers*messages, w.writes)
}

func TestHeldWritesWhenAllHaveLetGo(t *testing.T) {
	w := &written{}
	h := &held{Conn: w}
	h.hold()
	h.hold()
	_, _ = h.Write([]byte("a"))
	h.release()
	assert.Empty(t, w.bytes)
	_, _ = h.Write([]byte("b"))
	h.release()
	assert.Equal(t, "ab", string(w.bytes))
	assert.Equal(t, 1, w.writes)
	_, _ = h.Write([]byte("c"))
	assert.Equal(t, 2, w.writes, "held by nobody")
}

// A heartbeat that waits would end the connection.
func TestHeldLetsHeartbeatsThrough(t *testing.T) {
	w := &written{}
	h := &held{Conn: w}
	h.hold()
	_, _ = h.Write([]byte("a"))
	assert.Empty(t, w.bytes)
	_, _ = h.Write([]byte("\x08\x00\x00\x00\x00\x00\x00\xce"))
	assert.Equal(t, "a\x08\x00\x00\x00\x00\x00\x00\xce", string(w.bytes))
}
