package middleware

import (
	"reflect"
	"runtime"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/order"
)

// chain checks the order of middlewares in one handler, as far as the retry middleware can see it
// by itself: what is right inside of it when the router builds the chain, and what is outside of it
// on the stack of the first message.
type chain struct {
	only   *engine.Engine // whose messages are handled; nil: those of all
	inside *order.Mistake // right inside; nil if there is nothing wrong

	once    sync.Once
	refusal *OrderError // set with the first message; nil if messages may be handled
}

// refuser is a delivery whose subscription can be stopped.
type refuser interface {
	// Refuse stops the subscription; the message goes back to its queue. It is false if the message
	// was acknowledged already.
	Refuse(err error) bool
}

func newChain(h message.HandlerFunc, only *engine.Engine) *chain {
	c := &chain{only: only}
	if f := runtime.FuncForPC(reflect.ValueOf(h).Pointer()); f != nil {
		c.inside = order.Find(f.Name(), false)
	}
	if c.inside != nil && !c.inside.StockOnly {
		report(loggerOf(only), newOrderError(c.inside, "", ""))
	}

	return c
}

// refuse tells whether a message may not be handled.
func (c *chain) refuse(msg *message.Message, d engine.Delivery) error {
	own, isOwn := d.(refuser)
	c.once.Do(func() { c.first(msg, d.Engine(), isOwn) })
	if c.refusal == nil || !isOwn || !own.Refuse(c.refusal) {
		return nil
	}

	return c.refusal
}

// first looks at the chain with the first message.
func (c *chain) first(msg *message.Message, e *engine.Engine, isOwn bool) {
	handler, topic := message.HandlerNameFromCtx(msg.Context()), message.SubscribeTopicFromCtx(msg.Context())
	found := order.Outside(callers())
	for _, m := range found {
		report(e.Log(), newOrderError(m, handler, topic))
	}
	if c.inside != nil && (!c.inside.StockOnly || !isOwn) {
		found = append(found, c.inside)
		if c.inside.StockOnly {
			report(e.Log(), newOrderError(c.inside, handler, topic))
		}
	}
	for _, m := range found {
		if m.Level == order.Loses && !e.LogOrder {
			c.refusal = newOrderError(m, handler, topic)
		}
	}
}

func report(log watermill.LoggerAdapter, e *OrderError) {
	var fields watermill.LogFields
	if e.Handler != "" {
		fields = watermill.LogFields{"handler_name": e.Handler, "topic": e.Topic}
	}
	log.Error("A middleware is in the wrong place", e, fields)
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
