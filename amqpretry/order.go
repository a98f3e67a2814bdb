package amqpretry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/order"
	"github.com/amqpretry/watermill-retry/middleware"
)

// CheckRouter is a plugin for routers: router.AddPlugin(retrier.CheckRouter). It looks at the
// handlers that are fed by this retrier, when the router starts and before it subscribes.
//
// Router.Run fails with a *middleware.OrderError where another middleware is in a place where
// messages are lost, spin, or are not retried, and with a *middleware.NoMiddlewareError where the
// retry middleware is missing; with middleware.OrderLog both are only logged.
//
// It also logs names of Options.Groups for which no subscriber was made before.
//
// Where nothing is wrong, it then declares the topologies of all these topics, 8 at a time, so that
// Subscribe, which the router calls for one topic after the other, finds them declared: see
// Subscriber.Prepare. That is for the retrier's own subscribers. An error is left to the topic's
// own Subscribe. It does not wait for a connection that is lost, and when the broker has answered
// no declaration for 15 seconds it gives up.
//
// Middlewares that it does not know are no mistake. It reads fields of the router that are not
// Watermill's API: with a version that has others it checks nothing. Without the plugin, and for
// handlers that are added later, the retry middleware itself checks its neighbours: see
// Options.MiddlewareOrder.
func (r *Retrier) CheckRouter(router *message.Router) error {
	found, ok := routes(router)
	if !ok {
		r.options.Logger.Info("Cannot check the router's middlewares before it starts: unknown version of Watermill; "+
			"checking them with the first messages", nil)
	}
	slices.SortFunc(found, func(a, b route) int { return cmp.Compare(a.handler, b.handler) })

	for _, name := range r.unusedGroups() {
		r.options.Logger.Error("Policies of a group have no effect", fmt.Errorf("%s: no subscriber of this retrier "+
			"belongs to this group; use the name that you pass to Retrier.Group", groupPath(name)), nil)
	}
	var refused []error
	for _, h := range found {
		for _, mistake := range r.mistakes(h) {
			var wrong *middleware.OrderError
			if r.options.MiddlewareOrder != middleware.OrderLog && (!errors.As(mistake, &wrong) || wrong.Severe) {
				refused = append(refused, mistake)
				continue
			}
			r.options.Logger.Error("A middleware is in the wrong place", mistake,
				watermill.LogFields{"handler_name": h.handler, "topic": h.topic})
		}
	}

	if len(refused) == 0 {
		r.prepareRoutes(found)
	}

	return errors.Join(refused...)
}

// mistakes are those of one handler, if it is fed by this retrier.
func (r *Retrier) mistakes(h route) []error {
	from, group := r.origin(h.subscriber)
	if from == elsewhere || r.options.policiesOf(group).For(h.topic).Mode == config.ModeOff {
		return nil
	}
	if r.forgotten(h) {
		return []error{&middleware.NoMiddlewareError{Handler: h.handler, Topic: h.topic}}
	}

	var found []error
	for _, m := range order.Check(h.middlewares, from == stock) {
		found = append(found, &middleware.OrderError{
			Handler: h.handler, Topic: h.topic, Middleware: m.Middleware, Problem: m.Problem, Remedy: m.Remedy,
			Severe: m.Level >= order.Wrong,
		})
	}

	return found
}

// forgotten tells whether a handler certainly has no retry middleware: one that we do not know may
// have it inside, and somebody may have put it around the handler by hand.
func (r *Retrier) forgotten(h route) bool {
	for _, name := range h.middlewares {
		if order.IsRetry(name) || !order.IsKnown(name) {
			return false
		}
	}

	return !r.wrapped.Load() && !order.IsRetry(h.function)
}
