package codec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Marshaler is watermill-amqp's, which is the same in all of its versions.
type Marshaler interface {
	Marshal(msg *message.Message) (amqp091.Publishing, error)
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)
}

// Publish marshals a message with the user's marshaler and strips our headers: a handler or a
// publisher that passes foreign metadata on must not make a fresh message look like a retry.
func Publish(m Marshaler, msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.Marshal(msg)
	if err != nil {
		return p, err
	}

	for key := range p.Headers {
		if isUnpublished(key) {
			p.Headers = maps.Clone(p.Headers) // the marshaler may have given the same one to others
			maps.DeleteFunc(p.Headers, func(key string, _ any) bool { return isUnpublished(key) })

			break
		}
	}

	return p, nil
}

// isUnpublished tells headers that nobody publishes. CC, BCC and x-opt-* are the publisher's to
// use; what else is the broker's own it would believe, up to 3.10.
//
// Upstream: x-death of a publisher is believed.
func isUnpublished(key string) bool {
	return header.IsOwn(key) || header.IsBroker(key) && key != header.BrokerCC && key != header.BrokerBCC &&
		!header.IsOpt(key)
}

// Decode makes a message of a delivery with the user's marshaler, which sees string headers only
// and neither ours nor the broker's but for x-opt-*: most marshalers know nothing else. It works on
// a copy, so that what goes into a retry is what arrived, whatever the marshaler or the handler
// does. An error means that the marshaler rejected the message, or panicked.
//
// Upstream: a header that is no text makes a message unreadable; ThreeDotsLabs/watermill#65;
// watermill-amqp 2.1 and 3.1; TestDecodeShowsTheMarshalerPlainHeaders,
// TestDecodeWithWatermillsMarshaler, TestP8_StockInstancesCannotReadWhatOthersReturn; remove when
// the default marshaler reads all headers.
func Decode(m Marshaler, d *amqp091.Delivery) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			msg, err = nil, fmt.Errorf("marshaler panicked: %v", r)
		}
	}()

	plainDelivery := *d
	plainDelivery.Body = slices.Clone(d.Body)
	plainDelivery.Headers = plainHeaders(d.Headers)

	msg, err = m.Unmarshal(plainDelivery)
	if err == nil && msg == nil {
		err = errors.New("marshaler gave neither a message nor an error")
	}

	return msg, err
}

// MarkRedelivered says in a message's metadata whether the broker has delivered it before, under
// the key that watermill-amqp has for it. What is there under that key has been passed on from
// another message.
func MarkRedelivered(msg *message.Message, key string, redelivered bool) {
	switch {
	case key == "":
	case !redelivered:
		delete(msg.Metadata, key)
	case msg.Metadata == nil: // a marshaler of the user's own
		msg.Metadata = message.Metadata{key: "true"}
	default:
		msg.Metadata[key] = "true"
	}
}

// Undecoded is what a message that nobody can decode looks like to those who want to see it all the
// same.
func Undecoded(d *amqp091.Delivery) *message.Message {
	msg := message.NewMessage("", slices.Clone(d.Body))
	for key, value := range plainHeaders(d.Headers) {
		msg.Metadata[key], _ = value.(string)
	}

	return msg
}

func plainHeaders(headers amqp091.Table) amqp091.Table {
	out := make(amqp091.Table, len(headers))
	for key, text := range wire.Opt(headers, HeaderText) {
		out[key] = text
	}
	for key, value := range headers {
		if header.IsOwn(key) || header.IsBroker(key) {
			continue
		}
		if _, isText := value.(string); !isText { // else the same interface will do, without an allocation
			value = HeaderText(value)
		}
		out[key] = value
	}

	return out
}

// UUIDHeader is where Watermill's publishers put the UUID of a message, if they are not told
// another.
const UUIDHeader = "_watermill_message_uuid"

// Identify gives a message that came without a Watermill UUID one that stays the same over all of
// its attempts.
func Identify(s wire.State, d *amqp091.Delivery, nameless bool) wire.State {
	if nameless && s.UUID == "" {
		s.UUID = d.MessageId
		if s.UUID == "" {
			s.UUID = watermill.NewUUID()
		}
	}

	return s
}

// Identity is what a message goes by in all of its attempts: empty for one that no copy was made
// of, if its publisher gave it no id.
func Identity(headers amqp091.Table, messageID string) string {
	for _, key := range []string{UUIDHeader, header.UUID} {
		if uuid := HeaderText(headers[key]); uuid != "" {
			return uuid
		}
	}

	return messageID
}

// MessageUUID is what a message without a UUID of its own goes by: empty before its first failure,
// if it has no message id.
func MessageUUID(s wire.State, d *amqp091.Delivery) string {
	if s.UUID != "" {
		return s.UUID
	}

	return d.MessageId
}
