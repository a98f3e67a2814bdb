package protect

import (
	"math"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// ByAttempt returns the middleware of Watermill's Deduplicator with keys that tell attempts apart:
// see [KeyByAttempt], which it puts around the KeyFactory. It belongs inside of the retry
// middleware.
//
// A Deduplicator that is added by itself loses retries, so a router with the retry middleware
// refuses it. It cannot tell which KeyFactory that has; this one it knows.
//
//go:noinline
func ByAttempt(deduplicator wmmiddleware.Deduplicator) message.HandlerMiddleware {
	if deduplicator.KeyFactory == nil {
		deduplicator.KeyFactory = wmmiddleware.NewMessageHasherAdler32(math.MaxInt64) // Watermill's default
	}
	deduplicator.KeyFactory = KeyByAttempt(deduplicator.KeyFactory)

	// Inlined, it would have the name of its caller, by which the check of the order does not know
	// it.
	return func(h message.HandlerFunc) message.HandlerFunc {
		inner := deduplicator.Middleware(h)

		return func(msg *message.Message) ([]*message.Message, error) { return inner(msg) }
	}
}
