package middleware

import (
	"fmt"
)

// NoMiddlewareError reports a handler that is fed by a subscriber of the retrier, and has no retry middleware.
// Handler is the name of the handler, Topic the one that it consumes.
type NoMiddlewareError struct{ Handler, Topic string }

func (e *NoMiddlewareError) Error() string {
	return fmt.Sprintf("cannot retry messages of handler %q: it has no retry middleware; "+
		"add it to the router before all others (router.AddMiddleware(retrier.Middleware))", e.Handler)
}
