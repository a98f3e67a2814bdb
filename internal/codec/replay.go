package codec

import (
	"cmp"
	"crypto/rand"
	"maps"
	"strconv"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// replayReserve is kept free in a header frame for what the broker adds when it hands the message
// out.
const replayReserve = 512

// Replay says what a dead letter of a main queue is to carry to its target. Without a MainQueue,
// the headers of the dead letter name it.
type Replay struct {
	MainQueue, Target, Run string
	// Edits are what was changed; empty if nothing was, ever.
	Edits string
	// Canary is whom to tell what becomes of it; empty for nobody.
	Canary string
}

// ReplayOf makes what is published to a queue in place of a dead letter of a main queue, so that it
// begins a new life there: the message as it is, with our headers of a dead letter, and without
// what the broker or a stock consumer would act on again. fits is false where the headers leave no
// room for ours in a frame of limit bytes.
func ReplayOf(d *amqp091.Delivery, r Replay, limit int) (p amqp091.Publishing, fits bool) {
	if isPlain(d) && d.Headers[header.Version] == header.FormatVersion &&
		d.Headers[header.Count] == strconv.Itoa(header.CountDead) {
		p = republished(d)
		p.Headers = replayHeaders(d.Headers, r)
		if limit <= 0 || headerFrameSize(p)+replayReserve <= limit {
			return p, true
		}
	}

	state := stateOfDead(d, cmp.Or(r.MainQueue, ownQueue(d), r.Target)).ForReplay(r.Target, r.Run, r.Canary)
	state.Edits = r.Edits

	p = republished(d)
	p.Headers = wire.Strip(d.Headers, true)
	if lowered := state.Arrival.Priority; lowered > p.Priority { // it has waited for an exact delay
		p.Priority, state.Arrival.Priority = lowered, 0
	}

	return withState(p, state, limit)
}

// replayHeaders changes what changes, and leaves the rest as it is: to read it all and write it
// again would take longer than to publish it.
func replayHeaders(headers amqp091.Table, r Replay) amqp091.Table {
	out := make(amqp091.Table, len(headers)+3)
	for key, value := range headers {
		switch {
		case header.IsPoison(key), key == header.Delay, key == header.Since, key == header.Deadline,
			key == header.NotBefore, key == header.Canary, key == header.Parked:
		default:
			out[key] = value
		}
	}
	out[header.ID], out[header.Queue], out[header.Replay] = rand.Text(), r.Target, r.Run
	if r.Edits != "" {
		out[header.Edits] = r.Edits
	}
	if r.Canary != "" {
		out[header.Canary] = r.Canary
	}

	return out
}

// MovedOf makes what is published in place of a dead letter that stays one. One of ours is the
// same, header by header; of others, what the broker knew of them is in our headers, as it must not
// be published again. Without a main queue, the headers of the dead letter name it.
func MovedOf(d *amqp091.Delivery, mainQueue string, limit int) (p amqp091.Publishing, fits bool) {
	if isPlain(d) || isOfAnotherVersion(d) {
		return AsTaken(d, limit)
	}
	p = republished(d)
	p.Headers = wire.Strip(d.Headers, false)

	return withState(p, stateOfDead(d, cmp.Or(mainQueue, ownQueue(d))), limit)
}

// AsTaken makes what puts a message back that was no dead letter: it has the same headers, ours
// among them. Only what the broker would act on again, or refuse, is left out.
func AsTaken(d *amqp091.Delivery, limit int) (p amqp091.Publishing, fits bool) {
	p = republished(d)
	p.Headers = maps.Clone(d.Headers)
	maps.DeleteFunc(p.Headers, func(key string, _ any) bool { return header.IsBroker(key) })

	return p, limit <= 0 || headerFrameSize(p)+replayReserve <= limit
}

// ownQueue is the main queue that the headers of a message name; empty without one.
func ownQueue(d *amqp091.Delivery) string { return text(d.Headers, header.Queue) }

// isPlain tells whether everything of a dead letter can be published again as it is.
func isPlain(d *amqp091.Delivery) bool {
	for key := range d.Headers {
		if header.IsBroker(key) {
			return false
		}
	}

	return d.Expiration == "" && d.UserId == ""
}

// isOfAnotherVersion tells a dead letter whose headers are not to be read here: they go on as they
// are.
func isOfAnotherVersion(d *amqp091.Delivery) bool {
	version, ours := d.Headers[header.Version].(string)

	return ours && version != header.FormatVersion
}

func withState(p amqp091.Publishing, state wire.State, limit int) (_ amqp091.Publishing, fits bool) {
	room := wire.MaxOwnBytes
	if limit > 0 {
		room = min(room, limit-headerFrameSize(p)-replayReserve)
	}
	if state.Removed != "" {
		room -= headerSize(header.Removed, state.Removed)
	}
	own, fits := shrink(nil, &state, rand.Text(), room)
	if state.Removed != "" {
		own = append(own, wire.Field{Key: header.Removed, Value: state.Removed})
	}
	for _, field := range own {
		if _, there := p.Headers[field.Key]; !there || !header.IsPoison(field.Key) {
			// those of Watermill's own poison queue stay as they are
			p.Headers[field.Key] = field.Value
		}
	}

	return p, fits && len(p.Headers) < mostHeaders
}

// stateOfDead is what is known of a dead letter, whoever has made it.
func stateOfDead(d *amqp091.Delivery, mainQueue string) wire.State {
	letter, s := deadLetter(d, mainQueue)
	s.Count, s.Delay = header.CountDead, ""
	s.Queue = cmp.Or(s.Queue, letter.Queue)

	s.Reason, s.LastFailure = letter.Reason, letter.LastFailure
	if !s.Arrival.Known() {
		exchange, key := letter.Exchange, letter.RoutingKey
		if exchange == "" && key == "" { // nobody knows; what it is now consumed by is not it
			key = mainQueue
		}
		s.Arrival = wire.NewArrival(exchange, key, cmp.Or(letter.Expiration, d.Expiration),
			cmp.Or(letter.UserID, d.UserId), encodeCC(d.Headers))
	}
	s.Arrival.Opt = wire.EncodeOpt(wire.Opt(d.Headers, HeaderText))

	return s
}
