package protect

import (
	"context"
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/retry"
)

// handlerIn is what a store knows the handler of a message by: the name of the service, the queue
// and the handler's name. With the queue, two services that get the same messages from queues of
// their own do not take them away from each other, even without a name.
func handlerIn(ctx context.Context, service string) string {
	queue := message.SubscribeTopicFromCtx(ctx)
	if attempt, ok := retry.AttemptFromContext(ctx); ok {
		queue = attempt.Queue
	}

	return joined(service, queue, message.HandlerNameFromCtx(ctx))
}

// joined makes one name of several, which no other names make.
func joined(names ...string) string {
	text := ""
	for i, name := range names {
		if i > 0 {
			text += "/"
		}
		text += url.PathEscape(name)
	}

	return text
}
