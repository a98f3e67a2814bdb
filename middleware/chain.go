package middleware

import (
	"reflect"
	"runtime"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// chain checks the order of middlewares in one handler, as far as the retry middleware can see it by itself: what is right inside
// of it when the router builds the chain, and what is outside of it on the stack of the first message.
type chain struct {
	*Poison
	inside *OrderError // right inside; nil if there is nothing wrong
	stock  bool        // that is a mistake on stock subscribers only

	once    sync.Once
	refusal *OrderError // set with the first message; nil if messages may be handled
}

// refuser is a delivery whose subscription can be stopped.
type refuser interface {
	// Refuse stops the subscription; the message goes back to its queue. It is false if the message was acknowledged already.
	Refuse(err error) bool
}

func (p *Poison) chain(h message.HandlerFunc) *chain {
	c := &chain{Poison: p}
	if f := runtime.FuncForPC(reflect.ValueOf(h).Pointer()); f != nil {
		c.inside, c.stock = find(f.Name(), false), onStockOnly(f.Name())
	}
	if c.inside != nil && !c.stock {
		c.report(c.inside)
	}

	return c
}

// refuse tells whether a message may not be handled.
func (c *chain) refuse(msg *message.Message, d Delivery) error {
	own, isOwn := d.(refuser)
	c.once.Do(func() { c.first(msg, isOwn) })
	if c.refusal == nil || !isOwn || !own.Refuse(c.refusal) {
		return nil
	}

	return c.refusal
}

func (c *chain) first(msg *message.Message, isOwn bool) {
	found := outerOrder(callers())
	for _, e := range found {
		e.Handler, e.Topic = message.HandlerNameFromCtx(msg.Context()), message.SubscribeTopicFromCtx(msg.Context())
		c.report(e)
	}
	if c.inside != nil && c.stock {
		if isOwn {
			c.inside = nil
		} else {
			c.report(c.inside)
		}
	}
	if c.inside != nil {
		found = append(found, c.inside)
	}
	for _, e := range found {
		if e.level == levelLoses && c.Order != OrderLog {
			c.refusal = e
		}
	}
}

func (c *chain) report(e *OrderError) {
	var fields watermill.LogFields
	if e.Handler != "" {
		fields = watermill.LogFields{"handler_name": e.Handler, "topic": e.Topic}
	}
	c.logger().Error("Wrong order of middlewares", e, fields)
}

// outerOrder finds the mistakes in a stack of function names, innermost first, as far as the router.
func outerOrder(stack []string) []*OrderError {
	var (
		found []*OrderError
		seen  = map[string]bool{}
	)
	for _, name := range stack {
		if name == routerName {
			return found
		}
		if e := find(name, true); e != nil && !seen[e.Middleware] {
			seen[e.Middleware] = true
			found = append(found, e)
		}
	}

	return found
}

func callers() []string {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])

	var names []string
	for {
		frame, more := frames.Next()
		names = append(names, frame.Function)
		if !more {
			return names
		}
	}
}
