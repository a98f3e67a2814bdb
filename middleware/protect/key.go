package protect

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/retry"
)

// KeyByAttempt makes keys for Watermill's own Deduplicator, inside of the retry middleware, where
// its repository has to be kept: add that with [ByAttempt], as the retry middleware refuses others.
// A message has the key of the hasher when it is fresh, and another with each further call. So
// duplicates are dropped, and retries, immediate tries, postponed messages and replays are not.
//
// That Deduplicator takes a message for handled before its handler is called. One that the broker
// delivers again, after a lost connection or the end of a process in the middle of a call, has the
// same key: within the window, it is dropped, and lost. [Deduplicator] does not do that.
func KeyByAttempt(hasher wmmiddleware.MessageHasher) wmmiddleware.MessageHasher {
	return func(msg *message.Message) (string, error) {
		key, err := hasher(msg)
		if err != nil {
			return "", err
		}
		// Calls count over all lives of a message; a dead letter that no handler was called with
		// has none.
		if a, ok := retry.AttemptFromContext(msg.Context()); ok && a.Calls+a.Replays > 0 {
			key = fmt.Sprintf("%s/%d/%d", key, a.Calls, a.Replays)
		}

		return key, nil
	}
}

// KeyByUUID gives a message its UUID as its key. It is the default of a [Deduplicator] and of a
// [Transactional]. A message has the same UUID in each retry, redelivery and replay, and two
// messages that differ in nothing else have two. A message without a UUID has no key until it has
// failed: then the retrier gives it one, or its AMQP message id. Until then it is handled without
// protection; publishers that are not Watermill's should set a message id.
func KeyByUUID(msg *message.Message) (string, error) { return msg.UUID, nil }
