package dlq

import (
	"cmp"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// DeadLetter is one message in a dead-letter queue.
type DeadLetter struct {
	// Position is its place in the queue when the browse began, of those that could be seen; 1 is
	// the oldest.
	Position int
	// UUID is Watermill's, else the one that this library has given it, else its message id; empty
	// if it has none. Copies of one message have the same.
	UUID string
	// DeadLetter is what it tells of its failure.
	retry.DeadLetter
	// Edits are what was changed before replays, the oldest first.
	Edits []Edit

	// Message has the body, the properties and all headers, ours and the broker's included, with
	// their AMQP types.
	Message amqp091.Publishing
	// CameBy is the exchange and the routing key by which it came into the dead-letter queue.
	CameBy Route
	// Unreadable names headers that amqp091-go cannot read: Message is without them. Such a dead
	// letter can be counted and shown, and nothing else: a copy of it would not be the message.
	Unreadable string
	// Wait is set of a message that waits, and nil of a dead letter: see Client.Waits.
	Wait *Wait
}

// Route is an exchange and a routing key.
// Exchange and RoutingKey are those that the message was published with.
type Route struct{ Exchange, RoutingKey string }

// Edit is what was changed before a replay. Its JSON is also that on the wire.
type Edit struct {
	// At is when, By who as far as that is known (user@host).
	At time.Time `json:"at"`
	By string    `json:"by,omitempty"`
	// Size and SHA256 (hexadecimal) are of the body before it was changed; empty if it was not.
	Size   int    `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Body is the body before, if it is text and there was room for it. The undo file of the replay
	// has the whole message.
	Body string `json:"body,omitempty"`
	// Headers are those that were changed or removed, as they were, as text; added ones are here as
	// nil.
	Headers map[string]*string `json:"headers,omitempty"`
	// Properties are those that were changed, as they were, as text, by their names in an export;
	// empty if there was none.
	Properties map[string]string `json:"properties,omitempty"`
}

// newDeadLetter reads what a delivery from the dead-letter queue of a main queue tells. unreadable
// names the headers that it came without.
func newDeadLetter(d *amqp091.Delivery, unreadable, mainQueue, uuidHeader string, position int) DeadLetter {
	text := func(key string) string {
		s, _ := d.Headers[key].(string)
		return s
	}
	dead, uuid := codec.DeadLetter(d, cmp.Or(mainQueue, text(header.Queue)))

	return DeadLetter{
		Position:   position,
		UUID:       cmp.Or(text(uuidHeader), uuid, d.MessageId),
		DeadLetter: timed(dead),
		Edits:      readEdits(text(header.Edits)),
		Message: amqp091.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
			DeliveryMode: d.DeliveryMode,
			Priority:     d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
			MessageId: d.MessageId,
			Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
		},
		CameBy:     Route{d.Exchange, d.RoutingKey},
		Unreadable: unreadable,
	}
}

// timed forgets times that RFC 3339, and so JSON, cannot tell: they are forged.
func timed(l retry.DeadLetter) retry.DeadLetter {
	l.FirstFailure, l.LastFailure = sane(l.FirstFailure), sane(l.LastFailure)
	l.Since, l.Deadline = sane(l.Since), sane(l.Deadline)
	if slices.ContainsFunc(l.History, func(a retry.FailedCall) bool { return !tellable(a.At) }) {
		l.History = slices.Clone(l.History)
		for i := range l.History {
			l.History[i].At = sane(l.History[i].At)
		}
	}

	return l
}

func sane(t time.Time) time.Time {
	if !tellable(t) {
		return time.Time{}
	}

	return t
}

// The seconds of the years that RFC 3339 has. Year() will not do: it is wrong for times that are
// far away.
const (
	firstSecond = -62167219200 // 0000-01-01T00:00:00Z
	lastSecond  = 253402300799 // 9999-12-31T23:59:59Z
)

func tellable(t time.Time) bool { return t.Unix() >= firstSecond && t.Unix() <= lastSecond }
