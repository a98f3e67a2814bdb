package dlq

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// ParkAfter is how many replays park a dead letter: one that has come back as often most likely
// comes back again.
const ParkAfter = 3

// mostNote is how many bytes a note may have.
const mostNote = 500

// Parking is who has parked or unparked a dead letter, when and why. Its JSON is also that on the
// wire.
type Parking struct {
	// At is when, By who as far as that is known (user@host), Note why.
	At   time.Time `json:"at"`
	By   string    `json:"by,omitempty"`
	Note string    `json:"note,omitempty"`
	// Unparked ends the parking, also of a dead letter that its replays have parked.
	Unparked bool `json:"unparked,omitempty"`
}

// Parking returns what somebody has noted on a dead letter who has parked or unparked it; nil if
// nobody has since its last replay.
func (l *DeadLetter) Parking() *Parking {
	text, _ := l.Message.Headers[header.Parked].(string)
	if text == "" || len(text) > wire.MaxParkedBytes {
		return nil
	}
	var p Parking
	if json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	if p.At = sane(p.At.UTC()); p.At.IsZero() { // whoever can publish can write it
		return nil
	}

	return &p
}

// IsParked reports whether a replay leaves a dead letter where it is, unless it names it: see
// Plan.IncludeParked. Somebody has parked it, or it has come back from ParkAfter replays.
func (l *DeadLetter) IsParked() bool {
	if p := l.Parking(); p != nil {
		return !p.Unparked
	}

	return l.Replays >= ParkAfter
}

// marks tells the kinds that write a note on messages, and leave them in their queue.
func (k Kind) marks() bool { return k == Park || k == Unpark }

// names tells a filter that names messages or their cause, be they parked or not.
func (f Filter) names() bool {
	return len(f.UUIDs)+len(f.Fingerprints) > 0 || f.Parked != nil && *f.Parked
}

// parking makes up what a plan means for parked messages, before its filter becomes another one.
func (p Plan) parking() Plan {
	p.IncludeParked = p.IncludeParked || p.Filter.names()
	if parked := true; p.Kind == Unpark && p.Filter.Parked == nil {
		p.Filter.Parked = &parked
	}

	return p
}

// leavesParked tells a parked message that a replay leaves. Most messages need not be read for it.
func (p *passage) leavesParked(f *found) bool {
	headers := f.delivery.Headers
	if p.plan.IncludeParked || headers[header.Parked] == nil && headers[header.Replays] == nil {
		return false
	}

	return f.deadLetter().IsParked()
}

// mark is the note of a run that parks or unparks. It gives up the end of a note that takes too
// much room as JSON.
func (p *passage) mark() string {
	note := Parking{At: p.began.UTC().Truncate(time.Millisecond), By: fit(p.by()), Note: p.plan.Note,
		Unparked: p.plan.Kind == Unpark}
	text, _ := encodeJSON(note) // texts, and a time of now
	for len(text) > wire.MaxParkedBytes {
		note.By, note.Note = wire.Text(note.By, len(note.By)/2), wire.Text(note.Note, len(note.Note)/2)
		text, _ = encodeJSON(note)
	}

	return string(text)
}

// marked is a copy of a dead letter with the note of the run.
func (p *passage) marked(note string) func(f *found, frame int) (amqp091.Publishing, LeftReason) {
	const around = 6 // bytes of a header besides its name and its text
	return func(f *found, frame int) (amqp091.Publishing, LeftReason) {
		if frame > 0 {
			frame -= len(header.Parked) + len(note) + around
		}
		message, fits := codec.MovedOf(&f.delivery, p.queue.mainQueue, frame)
		if message.Headers == nil {
			message.Headers = amqp091.Table{}
		}
		message.Headers[header.Parked] = note

		return fitting(message, fits)
	}
}

// logMarked logs who has parked or unparked how many messages, and why.
func (p *passage) logMarked(r Report) {
	if p.plan.Kind.marks() && r.Done > 0 && !p.dryRun {
		p.queue.client.config.Logger.Info("Dead letters: "+string(p.plan.Kind), watermill.LogFields{
			"queue": p.queue.name, "messages": r.Done, "by": p.by(), "note": p.plan.Note})
	}
}

// checkParking checks what only Park and Unpark have.
func (p Plan) checkParking(check func(ok bool, field, wanted, found string)) {
	const size = "text of at most 500 bytes"
	check(len(p.Note) <= mostNote && utf8.ValidString(p.Note), "Note", size, strconv.Itoa(len(p.Note))+" bytes")
	check(p.Note != "" || p.Kind != Park, "Note", "why they are parked", `""`)
	check(p.Note == "" || p.Kind.marks(), "Note", "empty, or with park or unpark", quoted(p.Note))
	check(p.Undo == nil || !p.Kind.marks(), "Undo", "nil for park and unpark, which each undo the other", "a writer")
}
