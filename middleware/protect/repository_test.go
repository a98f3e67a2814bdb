package protect_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/storetest"
)

func repositoryOf(t *testing.T) wmmiddleware.ExpiringKeyRepository {
	t.Helper()
	repository, err := wmmiddleware.NewMapExpiringKeyRepository(time.Hour)
	require.NoError(t, err)

	return repository
}

func inboxOf(t *testing.T, r wmmiddleware.ExpiringKeyRepository) store.Inbox {
	t.Helper()
	inbox, err := protect.InboxOf(r, time.Hour)
	require.NoError(t, err)

	return inbox
}

// In one process it is an inbox as others.
func TestInboxOfRepository(t *testing.T) {
	inbox := inboxOf(t, repositoryOf(t))
	storetest.Inbox(t, func(*testing.T) store.Inbox { return inbox })
}

// asked is a repository that fails at first, and counts.
type asked struct {
	wmmiddleware.ExpiringKeyRepository
	calls atomic.Int32
}

func (a *asked) IsDuplicate(ctx context.Context, key string) (bool, error) {
	switch a.calls.Add(1) {
	case 1:
		return false, errDown
	case 2:
		panic("boom")
	}

	return a.ExpiringKeyRepository.IsDuplicate(ctx, key)
}

// A failed message is retried; the repository is asked once. Another instance takes what was begun for handled.
func TestInboxOfRepositoryLimits(t *testing.T) {
	r := &asked{ExpiringKeyRepository: repositoryOf(t)}
	inbox := inboxOf(t, r)
	h := &handler{err: errBoom}
	guarded := instance(t, inbox, h.handle)
	for range 2 {
		err := call(guarded, fresh())
		var e *protect.StoreError
		require.ErrorAs(t, err, &e)
	}
	assert.Zero(t, h.calls)
	for range 3 {
		require.ErrorIs(t, call(guarded, fresh()), errBoom)
	}
	assert.EqualValues(t, 3, r.calls.Load())
	other := &handler{}
	require.NoError(t, call(instance(t, inboxOf(t, r), other.handle), fresh()))
	assert.Zero(t, other.calls, "lost, as documented")
	h.err = nil
	require.NoError(t, routed(guarded, fresh()))
	assert.Equal(t, 4, h.calls)
	_, err := protect.InboxOf(r, -1)
	assert.Error(t, err)
}

// Watermill's Deduplicator with an inbox as its repository.
func TestKeyRepository(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		repository := func(handler string) wmmiddleware.ExpiringKeyRepository {
			return protect.KeyRepository(s, handler)
		}
		h := &handler{}
		for range 3 {
			guarded := protect.ByAttempt(wmmiddleware.Deduplicator{Repository: repository("a")})(h.handle)
			require.NoError(t, call(guarded, fresh()))
		}
		assert.Equal(t, 1, h.calls)
		duplicate, err := repository("b").IsDuplicate(t.Context(), "key")
		require.NoError(t, err)
		assert.False(t, duplicate)
		s.set(errDown, false)
		_, err = repository("b").IsDuplicate(t.Context(), "key")
		require.ErrorIs(t, err, errDown)
		s.set(nil, false)
		duplicate, err = repository("b").IsDuplicate(t.Context(), "key")
		require.NoError(t, err)
		assert.True(t, duplicate)
		wait(time.Hour)
		duplicate, err = repository("b").IsDuplicate(t.Context(), "key")
		require.NoError(t, err)
		assert.False(t, duplicate)
	})
}
