package store_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/storetest"
)

func memory(t *testing.T, c store.MemoryConfig) *store.Memory {
	t.Helper()
	m, err := store.NewMemory(c)
	require.NoError(t, err)

	return m
}

func TestMemoryInbox(t *testing.T) {
	t.Parallel()
	m := memory(t, store.MemoryConfig{})
	storetest.Inbox(t, func(*testing.T) store.Inbox { return m })
}

func TestMemoryValues(t *testing.T) {
	t.Parallel()
	m := memory(t, store.MemoryConfig{})
	storetest.Values(t, func(*testing.T) store.Values { return m })
}

func handle(t *testing.T, m *store.Memory, handler, key string) store.State {
	t.Helper()
	claim, err := m.Begin(t.Context(), handler, key, time.Minute)
	require.NoError(t, err)
	if claim.State() == store.New {
		require.NoError(t, claim.Commit(t.Context()))
	}

	return claim.State()
}

func TestMemoryRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []store.MemoryConfig{{}, {Retention: time.Minute}} {
			m := memory(t, c)
			retention := c.Retention
			if retention == 0 {
				retention = time.Hour
			}
			require.Equal(t, store.New, handle(t, m, "h", "key"))
			<-time.After(retention - 1)
			assert.Equal(t, store.Done, handle(t, m, "h", "key"))
			<-time.After(1)
			assert.Equal(t, store.New, handle(t, m, "h", "key"))
		}
	})
}

func TestMemoryMaxKeys(t *testing.T) {
	m := memory(t, store.MemoryConfig{MaxKeys: 2})
	calls := 0
	for _, key := range []string{"a", "b", "a", "b", "c", "b", "c", "a"} { // c pushes a out
		if handle(t, m, "h", key) == store.New {
			calls++
		}
	}
	assert.Equal(t, 4, calls)
	assert.Equal(t, store.New, handle(t, m, "other", "b"), "each handler has its own")
	assert.Equal(t, store.Done, handle(t, m, "h", "a"))
}

// Claims that nobody ends, and values that nobody changes, do not fill the memory.
func TestMemoryForgetsExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t, store.MemoryConfig{})
		const n = 10_000
		for i := range n {
			claim, err := m.Begin(t.Context(), "h", strconv.Itoa(i), time.Second)
			require.NoError(t, err)
			require.Equal(t, store.New, claim.State())
			require.NoError(t, m.Update(t.Context(), strconv.Itoa(i), time.Second,
				func(time.Time, []byte) ([]byte, error) { return []byte("a"), nil }))
			<-time.After(time.Millisecond)
		}
		claims, values := m.Size()
		assert.Less(t, claims, n/2)
		assert.Less(t, values, n/2)
	})
}

func TestMemoryConfig(t *testing.T) {
	_, err := store.NewMemory(store.MemoryConfig{Retention: time.Microsecond, MaxKeys: -1})
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	var paths []string
	for _, err := range joined.Unwrap() {
		var f *config.FieldError
		require.ErrorAs(t, err, &f)
		paths = append(paths, f.Path)
	}
	assert.Equal(t, []string{"MemoryConfig.Retention", "MemoryConfig.MaxKeys"}, paths)
}
