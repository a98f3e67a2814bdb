package codec

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// mostHeaders are how many headers of its own a copy may have, so that whoever gets it can read it
// with ours (at most 32, 4 of Watermill, and as many unknown ones as fit into 512 bytes) and those
// that the broker adds.
const mostHeaders = maxEntries - 80

// CopyRequest is a failed delivery with what its copy is to carry.
type CopyRequest struct {
	Delivery *amqp091.Delivery
	State    wire.State
	// Wait is how long the copy waits, where that is shorter than its delay; else 0.
	Wait time.Duration
	// Replay drops Watermill's poison keys, which an earlier death has left.
	Replay bool
	// LowerPriority tells that the copy waits with a lower priority than its own, if that is above
	// header.MaxWaitingPriority.
	LowerPriority bool
	// Lost are the names of headers that the delivery came without: see LostHeaders. Its copy is a
	// dead letter.
	Lost string
}

// CopyOf makes what is published in place of a delivery: the delivery as it arrived, with our
// headers. A header frame of more than limit bytes is made to fit: first by what is least valuable
// of ours; where the message's own headers leave no room, or are too many, it becomes a dead letter
// without the largest of them. So does a delivery that came without some. It gives the state that
// was published: the verdict may have changed to too-large.
func CopyOf(o *CopyRequest, limit int) (amqp091.Publishing, wire.State) {
	d, state := o.Delivery, withArrival(o.Delivery, o.State)

	p := republished(d)
	p.Priority = max(d.Priority, state.Arrival.Priority)
	if state.Arrival.Priority = 0; o.LowerPriority && state.Count != header.CountDead {
		state.Arrival.Priority = p.Priority
	}
	p.Headers = wire.Strip(d.Headers, o.Replay)
	id := rand.Text() // Watermill's short UUIDs take two thirds of the allocations of a whole copy

	room := wire.MaxOwnBytes
	if limit > 0 {
		room = min(room, limit-headerFrameSize(p))
	}

	var fields [wire.MostFields]wire.Field
	written := state
	own, fits := shrink(fields[:0], &written, id, room)
	if !fits || len(p.Headers) > mostHeaders || o.Lost != "" {
		state.Count, state.Delay, state.Reason, state.Canary = header.CountDead, "", retry.ReasonTooLarge, ""
		state.Arrival.Priority = 0 // it has its own priority again
		written = state
		own = removeLargest(p.Headers, &written, id, room, o.Lost)
	}
	for _, field := range own {
		p.Headers[field.Key] = field.Value
	}
	if o.Wait > 0 && state.Count != header.CountDead {
		p.Expiration = strconv.FormatInt(o.Wait.Milliseconds(), 10)
	}

	return p, written
}

// republished is a delivery without headers and without what the broker would act on again.
func republished(d *amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    d.DeliveryMode,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         ReplyTo(d.ReplyTo),
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}

const directReply = "amq.rabbitmq.reply-to"

// ReplyTo is where the answer to a message is to go that is published over a connection of ours.
// RabbitMQ refuses one that says "to whom I am": it has put the asker's address in its place where
// a message came the usual way, but not in one that came by another protocol.
func ReplyTo(replyTo string) string {
	if replyTo == directReply {
		return ""
	}

	return replyTo
}

// Returns is what the broker adds to the headers of messages that come back from their waits.
// amqp091-go gives up the whole connection when a frame arrives that is larger than negotiated, so
// what is published must leave room for it.
//
// Upstream: a content header that is larger than a frame ends the connection;
// rabbitmq/rabbitmq-server#921, rabbitmq/amqp091-go#369; RabbitMQ 3.10 to 4.3, amqp091-go 1.13 to
// 1.16; TestCopyNeverExceedsTheFrame, TestHostile_EveryHeaderSize, TestReturns; remove when headers
// may be as large as bodies.
type Returns struct {
	ladder    *topology.Ladder // nil for retry queues, in one of which a message waits
	once, hop int              // bytes: for each message, and for each queue that it waits in
}

// NewReturns returns the sizes under a plan.
func NewReturns(plan topology.Plan) Returns {
	longest := plan.Queue
	for _, q := range plan.Queues {
		longest = longer(longest, q.Name)
	}
	if plan.Ladder != nil {
		return NewLadderReturns(plan.Ladder, topology.Target{Key: plan.Queue}, longest)
	}

	return returns(plan.RetryExchange, plan.Queue, longest)
}

// NewLadderReturns returns the sizes of messages that come through a ladder to a target, whose
// landing queue and main queue have names no longer than longest.
func NewLadderReturns(ladder *topology.Ladder, target topology.Target, longest string) Returns {
	exchange, key := ladder.Address(target, 0, &amqp091.Publishing{})
	shared := ladder.Shared()
	for _, x := range shared.Exchanges {
		exchange = longer(exchange, x.Name)
	}
	for _, q := range shared.Queues {
		longest = longer(longest, q.Name)
	}
	r := returns(exchange, key, longest)
	r.ladder = ladder

	return r
}

// returns has the sizes of the longest names on the way.
func returns(exchange, key, longest string) Returns {
	death := amqp091.Table{
		"count": int64(0), "exchange": exchange, "queue": longest, "reason": "expired",
		"time":         time.Time{},
		"routing-keys": []any{key}, "original-expiration": "315360000000",
	}
	once := amqp091.Table{header.Death: []any{}, header.DeliveryCount: int64(0), header.AcquiredCount: int64(0)}
	for _, which := range []string{"x-first-death-", "x-last-death-"} {
		once[which+"exchange"], once[which+"queue"], once[which+"reason"] = exchange, longest, "expired"
	}

	r := Returns{hop: headerSize("", []any{death}) - headerSize("", []any{})}
	for key, value := range once {
		r.once += headerSize(key, value)
	}

	return r
}

// Most is what is added at most, whatever the delay.
func (r Returns) Most() int { return r.Size(math.MaxInt64) }

// Size is what is added to a message with this delay.
func (r Returns) Size(delay time.Duration) int {
	hops := 1
	if r.ladder != nil {
		hops = r.ladder.Hops(delay)
	}

	return r.once + hops*r.hop
}

func longer(a, b string) string {
	if len(b) > len(a) {
		return b
	}

	return a
}

// withArrival records how a message first arrived, at its first failure. Copies of older versions
// may have x-opt-* headers still.
func withArrival(d *amqp091.Delivery, state wire.State) wire.State {
	if !state.Arrival.Known() {
		state.Arrival = wire.NewArrival(d.Exchange, d.RoutingKey, d.Expiration, d.UserId, encodeCC(d.Headers))
	}
	state.Arrival.Opt = wire.EncodeOpt(wire.Opt(d.Headers, HeaderText))

	return state
}

// encodeCC keeps the recipients of a message's CC header, which must not be republished.
func encodeCC(headers amqp091.Table) string {
	cc, ok := headers[header.BrokerCC]
	if !ok {
		return ""
	}

	text, err := json.Marshal(plain(cc))
	if err != nil {
		return ""
	}

	return string(text)
}

// shrink appends our headers at the first step of giving up at which they fit into the room that is
// left; if they never do, as small as they get. state becomes what they spell.
func shrink(to []wire.Field, state *wire.State, id string, room int) (own []wire.Field, fits bool) {
	for step := 0; step <= wire.ShrinkSteps; step++ {
		if step > 0 {
			*state = state.Shrink(step)
		}
		own = state.Fields(to, id)
		if fieldsSize(own) <= room {
			return own, true
		}
	}

	return own, false
}

func fieldsSize(own []wire.Field) int {
	size := 0
	for _, field := range own {
		size += headerSize(field.Key, nil) + 4 + len(field.Value)
	}

	return size
}

// leastSize is that of our headers as small as they get.
func leastSize(state wire.State, id string) int {
	state = state.Shrink(wire.ShrinkSteps)

	return fieldsSize(state.Fields(nil, id))
}

// removeLargest takes headers away, the largest first, until ours fit at their smallest with the
// names of what was removed; then it gives as much of ours as there is room for, which state
// becomes. lost are the names of what was not there from the start. Without any of the message's
// own headers ours fit into every frame that is not absurdly small (RabbitMQ's default is 128 KiB,
// AMQP's minimum 4 KiB).
func removeLargest(headers amqp091.Table, state *wire.State, id string, room int, lost string) []wire.Field {
	keys := make([]string, 0, len(headers))
	for key := range headers {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if d := headerSize(b, headers[b]) - headerSize(a, headers[a]); d != 0 {
			return d
		}

		return strings.Compare(a, b)
	})

	var (
		least = leastSize(*state, id)
		names = lost
	)
	for i, key := range keys {
		fits := least+headerSize(header.Removed, wire.Text(names, wire.MaxRemovedBytes)) <= room &&
			len(headers) <= mostHeaders
		if fits && (lost != "" || i > 0) {
			break
		}
		room += headerSize(key, headers[key])
		delete(headers, key)

		if len(names) <= wire.MaxRemovedBytes { // enough to be cut below
			names = joined(names, nameOf(key))
		}
	}

	if names != "" {
		names = wire.Text(names, min(wire.MaxRemovedBytes, max(0, room-least-headerSize(header.Removed, ""))))
	}
	own, _ := shrink(nil, state, id, min(room, wire.MaxOwnBytes)-headerSize(header.Removed, names))
	if names != "" {
		own = append(own, wire.Field{Key: header.Removed, Value: names})
	}

	return own
}

// nameOf is what a header goes by in a list of names.
func nameOf(key string) string { return cmp.Or(key, "(without a name)") }

func joined(names, name string) string {
	if names == "" {
		return name
	}

	return names + ", " + name
}
