package dlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Target is what a run knows of the queue to which it sends messages. It asks before it sends the
// first one.
type Target struct {
	// Queue is its name, Type is classic, quorum or stream; empty if it is unknown.
	Queue string `json:"queue"`
	Type  string `json:"type,omitempty"`
	// Ready is the number of messages that wait for a consumer, Consumers the number of its
	// consumers.
	Ready     int `json:"ready"`
	Consumers int `json:"consumers"`
	// MaxLength and MaxLengthBytes limit the ready messages, Overflow says what a full queue does:
	// drop-head, reject-publish or reject-publish-dlx. MessageTTL, in milliseconds, limits the time
	// that a message waits. Nil means no limit.
	MaxLength      *int64 `json:"max_length,omitempty"`
	MaxLengthBytes *int64 `json:"max_length_bytes,omitempty"`
	Overflow       string `json:"overflow,omitempty"`
	MessageTTL     *int64 `json:"message_ttl,omitempty"`
	// DeadLetters tells that the queue has a dead-letter exchange, for what it drops.
	DeadLetters bool `json:"dead_letters"`
	// Unknown says why limits may be missing here; empty if all are known.
	Unknown string `json:"unknown,omitempty"`

	bytes  int64 // that are ready, as far as somebody tells
	handle bool  // what is sent there is to be handled
}

// target asks the broker about the queue to which a run sends messages.
func (c *Client) target(ctx context.Context, link *connection.Link, name string) (*Target, error) {
	found, err := inspect(c.asker(link), "target", name)
	if err != nil {
		return nil, err
	}
	t := &Target{Queue: name, Ready: found.Messages, Consumers: found.Consumers}
	q, seen, err := c.describe(ctx, link, name, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}, 0)
	var (
		access   *topology.AccessError
		conflict *topology.ConflictError
	)
	switch {
	case errors.As(err, &access), errors.As(err, &conflict):
		t.Unknown = "its limits cannot be read: grant configure on it, or configure the management API"
		return t, nil
	case err != nil:
		return nil, err
	case !seen:
		t.Unknown = "limits set by a policy of the broker are visible only with the management API"
	}
	t.read(q)

	return t, nil
}

func (t *Target) read(q httpapi.Queue) {
	arguments := q.InForce()
	limit := func(argument string) *int64 {
		n, ok := header.Integer(arguments[argument])
		if !ok || n < 0 {
			return nil
		}
		return &n
	}
	t.Type = q.Type
	t.MaxLength, t.MaxLengthBytes = limit(amqp091.QueueMaxLenArg), limit(amqp091.QueueMaxLenBytesArg)
	t.MessageTTL = limit(amqp091.QueueMessageTTLArg)
	_, t.DeadLetters = arguments["x-dead-letter-exchange"]
	if t.MaxLength != nil || t.MaxLengthBytes != nil {
		t.Overflow, _ = arguments[amqp091.QueueOverflowArg].(string)
		if t.Overflow == "" || t.Type == amqp091.QueueTypeQuorum && t.Overflow == "reject-publish-dlx" {
			t.Overflow = "drop-head"
		}
	}
	if q.ReadyBytes != nil {
		t.bytes = *q.ReadyBytes
	}
}

// limited tells whether some number of messages would not stay in the queue.
func (t *Target) limited() bool {
	return t != nil && (t.MaxLength != nil || t.MaxLengthBytes != nil || t.expires())
}

// Excess returns how many messages would not stay in the queue if n messages with so many bytes in
// all were sent while nobody consumes: the queue has no room for them, or they expire. Messages
// that are in the queue now are counted too, as a full queue drops the oldest first.
func (t *Target) Excess(n int, bytes int64) int {
	if t == nil || n == 0 || t.Type == "stream" {
		return 0
	}
	all, excess := t.Ready+n, 0
	if t.expires() {
		return all
	}
	if t.MaxLength != nil {
		excess = all - int(min(*t.MaxLength, int64(all)))
	}
	if t.MaxLengthBytes != nil && bytes > 0 {
		average := float64(bytes) / float64(n)
		tooMuch := float64(t.bytes + bytes - *t.MaxLengthBytes)
		excess = max(excess, min(all, int((tooMuch+average-1)/average)))
	}

	return excess
}

// loses tells whether messages that do not stay in the queue are lost. Else the broker dead-letters
// or rejects them.
func (t *Target) loses() bool {
	return !t.DeadLetters && (t.expires() || t.Overflow == "drop-head")
}

// Warnings say what would become of n messages with so many bytes in all, beyond being handled.
func (t *Target) Warnings(n int, bytes int64) []string {
	if t == nil || n == 0 {
		return nil
	}
	var all []string
	if t.handle && t.Consumers == 0 {
		all = append(all, fmt.Sprintf("%s has no consumer", t.Queue))
	}
	if t.Type == "stream" {
		all = append(all, fmt.Sprintf("%s is a stream: its consumers do not remove messages", t.Queue))
	}
	if excess := t.Excess(n, bytes); excess > 0 {
		all = append(all, t.excess(excess, n))
	} else if t.MessageTTL != nil {
		all = append(all, fmt.Sprintf("messages that wait in %s for longer than %s %s", t.Queue, t.ttl(), t.fate()))
	}

	return all
}

func (t *Target) excess(excess, n int) string {
	var limits []string
	for _, limit := range []struct {
		name string
		n    *int64
	}{{"max-length", t.MaxLength}, {"max-length-bytes", t.MaxLengthBytes}} {
		if limit.n != nil {
			limits = append(limits, fmt.Sprintf("%s %d, overflow %s", limit.name, *limit.n, t.Overflow))
		}
	}
	if t.MessageTTL != nil {
		limits = append(limits, "message TTL "+t.ttl())
	}
	already := ""
	if t.Ready > 0 {
		already = fmt.Sprintf(", %d in it already", t.Ready)
	}
	what := "drop"
	switch {
	case !t.expires() && (t.Overflow == "reject-publish" || t.Overflow == "reject-publish-dlx"):
		what = "reject"
	case t.DeadLetters:
		what = "dead-letter again"
	}

	return fmt.Sprintf("%s would %s %d of %d messages (%s%s)", t.Queue, what, excess, t.Ready+n,
		strings.Join(limits, ", "), already)
}

// expires tells that messages stay in the queue until they are too old: nobody takes them.
func (t *Target) expires() bool { return t.MessageTTL != nil && t.Consumers == 0 }

func (t *Target) ttl() string { return (time.Duration(*t.MessageTTL) * time.Millisecond).String() }

// fate is what becomes of messages that expire.
func (t *Target) fate() string {
	if t.DeadLetters {
		return "are dead-lettered again"
	}
	return "are lost"
}

// Check returns a *[DropError] if the target would lose some of n messages with so many bytes in
// all.
func (t *Target) Check(n int, bytes int64) error {
	if excess := t.Excess(n, bytes); excess > 0 && t.loses() {
		return &DropError{Target: *t, Dropped: excess, why: t.excess(excess, n)}
	}
	return nil
}

// DropError refuses a run because its target would drop messages. A replay or a move has sent
// nothing then, and an import only messages for which there was room.
type DropError struct {
	// Target is the queue, Dropped how many messages it would drop.
	Target  Target
	Dropped int
	why     string
}

func (e *DropError) Error() string {
	return fmt.Sprintf("cannot send to queue %q: %s; raise its limit, send fewer messages, or allow it (AllowDrop, "+
		"--allow-drop)", e.Target.Queue, e.why)
}

// missing returns how many of the messages that a run has sent are not in its target, although
// nobody has consumed them: a limit that the run could not see has dropped them. The broker may say
// 0 for a quorum queue that is busy.
func (t *Target) missing(a asker, sent int) int {
	if t == nil || t.Consumers > 0 || sent == 0 || t.Type == "stream" {
		return 0
	}
	now := 0
	for range 3 {
		found, err := inspect(a, "target", t.Queue)
		if err != nil || found.Consumers > 0 {
			return 0
		}
		if now = found.Messages; now > 0 {
			break
		}
	}

	return max(0, t.Ready+sent-now)
}
