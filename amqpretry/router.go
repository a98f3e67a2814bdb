package amqpretry

import (
	"reflect"
	"runtime"

	"github.com/ThreeDotsLabs/watermill/message"
)

// route is one handler of a router, with all of its middlewares.
type route struct {
	handler, topic string
	subscriber     reflect.Value // what the interface holds
	function       string        // the handler's own
	middlewares    []string      // names of their functions, outermost first
	started        bool          // subscribed already
}

// routes reads the handlers of a router. Watermill has no function for that, so it reads unexported
// fields. It is false where this version of Watermill has others.
//
// Upstream: a router does not show its handlers with their middlewares; no issue known, read in its
// source; watermill 1.5; TestCheckRouter, TestCheckRouterKnowsWhoWrapsByHand; remove when Router
// has a method for it.
func routes(router *message.Router) (found []route, ok bool) {
	defer func() {
		if recover() != nil { // reflect's: a field is missing, or of another kind
			found, ok = nil, false
		}
	}()

	r := reflect.ValueOf(router).Elem()
	middlewares := r.FieldByName("middlewares")
	for handlers := r.FieldByName("handlers").MapRange(); handlers.Next(); {
		h := handlers.Value().Elem()
		next := route{
			handler: h.FieldByName("name").String(), topic: h.FieldByName("subscribeTopic").String(),
			subscriber: h.FieldByName("subscriber").Elem(), function: nameOf(h.FieldByName("handlerFunc")),
			started: h.FieldByName("started").Bool(),
		}
		for i := range middlewares.Len() {
			m := middlewares.Index(i)
			if m.FieldByName("IsRouterLevel").Bool() || m.FieldByName("HandlerName").String() == next.handler {
				next.middlewares = append(next.middlewares, nameOf(m.FieldByName("Handler")))
			}
		}
		found = append(found, next)
	}

	return found, true
}

func nameOf(function reflect.Value) string {
	if f := runtime.FuncForPC(function.Pointer()); f != nil {
		return f.Name()
	}

	return ""
}

// origin says where the messages of a route come from.
type origin int

const (
	elsewhere origin = iota // not from this retrier: nothing is known of it
	own                     // the retrier's own subscriber
	stock                   // a stock subscriber with the retrier's config
)

// origin looks at the subscriber of a route. group is empty unless that is one of a group.
//
// Upstream: a subscriber does not show its config; no issue known, read in its source;
// watermill-amqp 2.1 and 3.1; TestCheckRouter, TestWrongOrderOfMiddlewaresIsReported; remove when
// Subscriber has a method for it.
func (r *Retrier) origin(subscriber reflect.Value) (o origin, group string) {
	defer func() {
		if recover() != nil {
			o = elsewhere
		}
	}()

	if subscriber.Kind() != reflect.Pointer {
		return elsewhere, ""
	}
	if subscriber.Type() == reflect.TypeFor[*Subscriber]() {
		if s := (*Subscriber)(subscriber.UnsafePointer()); s.retrier == r && !s.deadLetters {
			return own, s.group
		}

		return elsewhere, ""
	}
	// All versions of watermill-amqp keep the config, which has the retrier's marshaler.
	m := subscriber.Elem().FieldByName("config").FieldByName("Marshaler").Elem()
	if m.Type() == reflect.TypeFor[*marshaler]() && (*marshaler)(m.UnsafePointer()).retrier == r {
		return stock, ""
	}

	return elsewhere, ""
}
