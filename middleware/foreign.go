package middleware

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// The subscribers of which a message without a delivery is a mistake, by the names that the router gives them.
const (
	stockSubscriber = "amqp.Subscriber"
	ownSubscriber   = "amqpretry.Subscriber"
)

var (
	errForeignSubscriber = errors.New("cannot retry messages of this handler: its subscriber was not made with this plug, so its failures " +
		"are redelivered without count or delay; use plug.NewSubscriber(), or amqp.NewSubscriber(plug.Config(), logger), " +
		"or, if it is to have no retries, add the middleware to the other handlers only (handler.AddMiddleware)")
	errCopied = errors.New("cannot retry messages of this handler: they are copies, which have lost the delivery of the plug's subscriber, " +
		"so their failures are redelivered without count or delay; " +
		"hand on the message itself, or copy it with its context (message.CopyWithContext)")
)

// passOn hands on a message that is not this plug's, and tells of the first one of each handler.
func (p Poison) passOn(h message.HandlerFunc, msg *message.Message, once *sync.Once) ([]*message.Message, error) {
	// Afterwards, because the middleware of another plug may be inside: it knows its messages, and they are no mistake.
	defer once.Do(func() { p.reportForeign(msg) })

	return h(msg)
}

func (p Poison) reportForeign(msg *message.Message) {
	ctx := msg.Context()
	fields := watermill.LogFields{
		"topic":           message.SubscribeTopicFromCtx(ctx),
		"handler_name":    message.HandlerNameFromCtx(ctx),
		"subscriber_name": message.SubscriberNameFromCtx(ctx),
	}

	const text = "Message was not received through this plug, it is passed on untouched"
	switch subscriber := message.SubscriberNameFromCtx(ctx); {
	case deliveryOf(msg) != nil:
		p.logger().Debug(text+": it is another plug's", fields)
	case subscriber == stockSubscriber:
		p.logger().Error(text, errForeignSubscriber, fields)
	case subscriber == ownSubscriber:
		p.logger().Error(text, errCopied, fields)
	default:
		p.logger().Info(text+": it was received by another Pub/Sub, or was copied on its way", fields)
	}
}
