package middleware

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
)

// The subscribers of which a message without a delivery is a mistake, by the names that the router
// gives them.
const (
	stockSubscriber = "amqp.Subscriber"
	ownSubscriber   = "amqpretry.Subscriber"
)

var (
	errForeignSubscriber = errors.New("cannot retry messages of this handler: its subscriber does not belong to this " +
		"retrier, so RabbitMQ redelivers failures without a count or a delay; use retrier.NewSubscriber() or " +
		"amqp.NewSubscriber(retrier.Config(), logger); for a handler without retries, add the middleware only to " +
		"the other handlers (handler.AddMiddleware)")
	errCopied = errors.New("cannot retry messages of this handler: a decorator or middleware passes on copies " +
		"without their context, so RabbitMQ redelivers failures without a count or a delay; " +
		"pass on the message itself, or copy it with message.CopyWithContext")
)

// foreign is what a handler gets that is not handled here.
type foreign struct {
	only *engine.Engine // whose messages are; nil: all that have one
	once sync.Once
}

// passOn hands on a message, and tells of the first one of each handler.
func (f *foreign) passOn(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	// Afterwards, because the middleware of another retrier may be inside: it knows its messages,
	// and they are no mistake.
	defer f.once.Do(func() { f.report(msg) })

	return h(msg)
}

func (f *foreign) report(msg *message.Message) {
	ctx := msg.Context()
	fields := watermill.LogFields{
		"topic":           message.SubscribeTopicFromCtx(ctx),
		"handler_name":    message.HandlerNameFromCtx(ctx),
		"subscriber_name": message.SubscriberNameFromCtx(ctx),
	}

	log := loggerOf(f.only)
	const text = "Message was not received through this retrier, it is passed on untouched"
	switch subscriber := message.SubscriberNameFromCtx(ctx); {
	case engine.DeliveryOf(msg) != nil:
		log.Debug(text+": it is another retrier's", fields)
	case subscriber == stockSubscriber:
		log.Error(text, errForeignSubscriber, fields)
	case subscriber == ownSubscriber:
		log.Error(text, errCopied, fields)
	default:
		log.Info(text+": it was received by another Pub/Sub, or was copied on its way", fields)
	}
}

// loggerOf is the logger of an engine, and the usual one where it is none's.
func loggerOf(e *engine.Engine) watermill.LoggerAdapter {
	if e == nil {
		e = &engine.Engine{}
	}

	return e.Log()
}
