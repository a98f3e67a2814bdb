package protect

import (
	"context"
	"time"

	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// KeyRepository makes a repository of Watermill's Deduplicator of an inbox. The handler is the name that the inbox knows
// the keys by; a Deduplicator for several handlers needs a repository for each, or it takes messages away from them.
//
// Such a repository takes a key for a duplicate from the first time that it was asked. It can be told neither that the
// handler has failed nor that it has succeeded: use it for publishers, or with [ByAttempt]. A [Deduplicator] with the
// inbox loses nothing.
func KeyRepository(inbox store.Inbox, handler string) wmmiddleware.ExpiringKeyRepository {
	return keyRepository{inbox, handler}
}

type keyRepository struct {
	inbox   store.Inbox
	handler string
}

// IsDuplicate claims a key and ends the claim at once.
func (r keyRepository) IsDuplicate(ctx context.Context, key string) (bool, error) {
	claim, err := r.inbox.Begin(ctx, r.handler, key, defaultLease)
	if err != nil || claim.State() != store.New {
		return err == nil, err
	}
	if err := claim.Commit(ctx); err != nil {
		_ = claim.Release(context.WithoutCancel(ctx)) // the error makes a retry, which must not be a duplicate
		return false, err
	}

	return false, nil
}

// InboxOf makes an inbox of a repository of Watermill's Deduplicator. A repository can only be asked whether it has seen
// a key, and has seen it from then on. So this inbox knows by itself, in the memory of this process, which messages are
// in flight and which have failed, and asks the repository once for each key. Its limits:
//
//   - A message that was in flight when its process died counts as handled, and so does one that has failed here and is
//     retried in another instance: it is lost. Use it where one instance handles a message to its end and losing a
//     message is better than handling it twice. Other stores lose none.
//   - A failed message that is retried later than retention after it was seen first is asked for again, and counts as
//     handled. Retention is at least as long as the longest time that messages are retried for.
//   - In another instance a message that is in flight counts as handled.
func InboxOf(repository wmmiddleware.ExpiringKeyRepository, retention time.Duration) (store.Inbox, error) {
	calls, err := store.NewMemory(store.MemoryConfig{Retention: retention})
	if err != nil {
		return nil, err
	}
	seen, err := store.NewMemory(store.MemoryConfig{Retention: retention})
	if err != nil {
		return nil, err
	}

	return &repositoryInbox{repository, calls, seen}, nil
}

type repositoryInbox struct {
	repository wmmiddleware.ExpiringKeyRepository
	calls      *store.Memory
	seen       *store.Memory // Done are keys that the repository was asked for
}

// Begin implements [store.Inbox].
func (i *repositoryInbox) Begin(ctx context.Context, handler, key string, lease time.Duration) (store.Claim, error) {
	claim, err := i.calls.Begin(ctx, handler, key, lease)
	if err != nil || claim.State() != store.New {
		return claim, err
	}
	asked := false // and with an answer
	defer func() {
		if !asked {
			_ = claim.Release(context.WithoutCancel(ctx))
		}
	}()

	// Whoever has the claim of calls is alone with the key.
	first, err := i.seen.Begin(ctx, handler, key, lease)
	if err != nil {
		return nil, err
	}
	if first.State() == store.Done {
		asked = true
		return claim, nil
	}
	defer func() {
		if !asked {
			_ = first.Release(context.WithoutCancel(ctx))
		}
	}()
	duplicate, err := i.repository.IsDuplicate(ctx, joined(handler, key))
	if err != nil {
		return nil, err
	}
	asked = true
	ctx = context.WithoutCancel(ctx) // it was asked, and cannot be asked again
	if !duplicate {
		if err := first.Commit(ctx); err != nil {
			return nil, err
		}

		return claim, nil
	}
	if err := claim.Commit(ctx); err != nil {
		return nil, err
	}

	return i.calls.Begin(ctx, handler, key, lease)
}
