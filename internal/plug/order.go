package plug

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware"
)

// NoMiddlewareError reports a handler that is fed by a subscriber of the plug, and has no retry middleware.
type NoMiddlewareError struct{ Handler, Topic string }

func (e *NoMiddlewareError) Error() string {
	return fmt.Sprintf("cannot retry messages of handler %q: it has no retry middleware; "+
		"add it to the router before all others (router.AddMiddleware(plug.Middleware))", e.Handler)
}

// CheckRouter is a plugin for routers, which they run when they start: router.AddPlugin(plug.CheckRouter).
func (p *Plug) CheckRouter(router *message.Router) error {
	found, ok := routes(router)
	if !ok {
		p.options.Logger.Info("Cannot check the middlewares of the router: this version of Watermill is not known; "+
			"they are checked with the first messages", nil)
	}
	slices.SortFunc(found, func(a, b route) int { return cmp.Compare(a.handler, b.handler) })

	var refused []error
	for _, r := range found {
		for _, mistake := range p.mistakes(r) {
			var order *middleware.OrderError
			if p.options.MiddlewareOrder != middleware.OrderLog && (!errors.As(mistake, &order) || order.Refused()) {
				refused = append(refused, mistake)
				continue
			}
			p.options.Logger.Error("Wrong order of middlewares", mistake, watermill.LogFields{"handler_name": r.handler, "topic": r.topic})
		}
	}

	return errors.Join(refused...)
}

// mistakes are those of one handler, if it is fed by this plug.
func (p *Plug) mistakes(r route) []error {
	from := p.origin(r.subscriber)
	if from == elsewhere || p.options.Policies.For(r.topic).Mode == config.ModeOff {
		return nil
	}
	if p.forgotten(r) {
		return []error{&NoMiddlewareError{Handler: r.handler, Topic: r.topic}}
	}

	var found []error
	for _, e := range middleware.CheckOrder(r.middlewares, from == stock) {
		e.Handler, e.Topic = r.handler, r.topic
		found = append(found, e)
	}

	return found
}

// forgotten tells whether a handler certainly has no retry middleware: one that we do not know may have it inside, and somebody
// may have put it around the handler by hand.
func (p *Plug) forgotten(r route) bool {
	for _, name := range r.middlewares {
		if middleware.IsRetry(name) || !middleware.IsKnown(name) {
			return false
		}
	}

	return !p.wrapped.Load() && !middleware.IsRetry(r.function)
}
