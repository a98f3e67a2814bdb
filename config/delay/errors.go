package delay

import (
	"fmt"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config/publish"
)

// MetadataError says that the delay in a message's metadata cannot be read. No message of the call was published.
type MetadataError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Key of the metadata, and its value.
	Key, Value string
	// Wanted is what the value must be.
	Wanted string
	Err    error
}

func (e *MetadataError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: its metadata %s is %q; it must be %s: see "+
		"Watermill's components/delay", e.UUID, e.Topic, e.Key, e.Value, e.Wanted)
}

func (e *MetadataError) Unwrap() error { return e.Err }

// TooLongError says that a message is to be delayed for longer than the ladder can. No message of the call was published.
type TooLongError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Delay of the message, and the longest of the ladder.
	Delay, Longest time.Duration
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: its delay of %s is too long; it must be at most %s, or "+
		"Options.Ladder must have a larger Unit or more Levels", e.UUID, e.Topic, e.Delay, e.Longest)
}

// TooLargeError says that the headers of a message do not fit into what the broker or its consumers take, whatever its
// payload is. No message of the call was published.
type TooLargeError = publish.TooLargeError

// RefusedError says that the broker refuses a message for good. The message was not published. The other messages of the
// call that have a delay were, but for those that other errors name.
type RefusedError = publish.RefusedError

// NoQueueError says that no queue would get a message: the topic's queue does not exist, or for a message that is due
// at once, nothing is bound to the topic's exchange. The message was not published.
type NoQueueError struct {
	// Topic to which the message was to be published.
	Topic string
	// Exchange of the topic. Empty for the default exchange, whose routing keys are queues.
	Exchange string
	// Key is the routing key: the name of the queue if the exchange is the default one.
	Key string
	// UUIDs of the messages.
	UUIDs []string
	// Err is the broker's answer.
	Err error
}

func (e *NoQueueError) Error() string {
	missing := fmt.Sprintf("the queue %q does not exist", e.Key)
	if e.Exchange != "" {
		missing = fmt.Sprintf("no queue is bound to the exchange %q for the routing key %q", e.Exchange, e.Key)
	}

	return fmt.Sprintf("cannot publish %s to topic %q: %s; subscribe to the topic once, or call SubscribeInitialize, "+
		"before you publish", named(e.UUIDs), e.Topic, missing)
}

func (e *NoQueueError) Unwrap() error { return e.Err }

// UnconfirmedError says that the broker has not confirmed messages within [Options.PublishTimeout], or refuses them for
// good. It is also returned when their contexts end, or the publisher is closed, before that.
//
// The broker may have each of them or not: publish them again, and expect duplicates. It has all other messages of the
// call that have a delay. Messages without a delay were not published.
type UnconfirmedError struct {
	// Topic to which the messages were to be published.
	Topic string
	// UUIDs of the messages that were not confirmed, and the number of delayed messages in the call.
	UUIDs []string
	Of    int
	// Final says that another attempt fails as well until somebody has removed the reason: a permission or a provisioned
	// queue is missing, or an object differs.
	Final bool
	// Err is the last reason.
	Err error
}

func (e *UnconfirmedError) Error() string {
	then := "publish them again"
	if e.Final {
		then = "remove the reason, and publish them again"
	}

	return fmt.Sprintf("cannot publish to topic %q: the broker has not confirmed %s, of %d: %v; %s",
		e.Topic, named(e.UUIDs), e.Of, e.Err, then)
}

func (e *UnconfirmedError) Unwrap() error { return e.Err }

// mostNamed bounds the UUIDs in a text.
const mostNamed = 10

func named(uuids []string) string {
	quoted := make([]string, 0, min(len(uuids), mostNamed))
	for _, uuid := range uuids[:cap(quoted)] {
		quoted = append(quoted, fmt.Sprintf("%q", uuid))
	}
	text := "message "
	if len(uuids) > 1 {
		text = fmt.Sprintf("%d messages ", len(uuids))
	}
	text += strings.Join(quoted, ", ")
	if len(uuids) > mostNamed {
		text += fmt.Sprintf(" and %d more", len(uuids)-mostNamed)
	}

	return text
}
