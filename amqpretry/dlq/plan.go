package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
)

// Kind is what a plan does with dead letters.
type Kind string

const (
	// Replay sends dead letters back to the queue that has failed them, where they begin a new
	// life: at the first attempt, without deadline, with the history of before. They go straight to
	// the queue, so that no other subscriber sees them again. Dead letters of the same run are
	// never replayed again.
	Replay Kind = "replay"
	// Move moves dead letters to another queue, as they are: a dead letter stays one, with its
	// headers.
	Move Kind = "move"
	// Purge deletes dead letters, one by one and no other: what comes meanwhile stays. With an undo
	// file each is deleted only when that has it. For retention that file is the archive.
	Purge Kind = "purge"
	// Park writes a note on dead letters, so that replays leave them where they are: see
	// Plan.IncludeParked. Each is published into its queue again, and acknowledged when the broker
	// has confirmed that, so it is at the end of the queue then.
	Park Kind = "park"
	// Unpark makes replays take parked dead letters again, until the next ParkAfter is reached: the
	// next replay forgets the note.
	Unpark Kind = "unpark"

	// Cancel deletes messages that wait, as Purge deletes dead letters. This kind and the following
	// are for Waits.
	Cancel Kind = "cancel"
	// SendNow ends the wait: the message goes to its target at once, with its attempts, its history
	// and its deadline. A retry queue dead-letters it by itself, as it does when the delay is over.
	// Of a message in a ladder a copy goes to the landing queue of the target.
	SendNow Kind = "send"
	// Postpone lets messages wait until a later time, by a copy.
	Postpone Kind = "postpone"
)

func (k Kind) forWaits() bool { return k == Cancel || k == SendNow || k == Postpone }

// Plan says what a run does with which dead letters, and how carefully. Queue.Plan counts first
// what it would do; Queue.Run does it.
type Plan struct {
	// Kind is what is done with them.
	Kind Kind `json:"kind"`
	// Filter selects the messages. The zero value selects all.
	Filter Filter `json:"-"`
	// To is the queue to which the messages go. For a replay empty means the main queue, which has
	// failed them. A retry queue or a landing queue, as Config.Names names them, is refused:
	// messages go from there to a main queue.
	To string `json:"to,omitempty"`
	// Until is when a Postpone ends the wait. A message that is due later stays.
	Until time.Time `json:"until,omitzero"`
	// ToOrigin replays each message to the queue in which it failed, by its headers: ours, those of
	// the broker and of other libraries. It empties a dead-letter queue of several main queues.
	// Origins are the queues to which messages may go. A run must have some; without them,
	// Queue.Plan counts all that are there, in Report.Origins. Limit and Rate are for all together.
	ToOrigin bool     `json:"-"`
	Origins  []string `json:"-"`
	// Limit is how many at most; 0 means all that match.
	Limit int `json:"limit,omitempty"`
	// Rate is how many a second at most; 0 means as fast as the broker confirms them.
	Rate float64 `json:"rate,omitempty"`
	// Canary goes first in a replay. The zero Canary means none.
	Canary
	// Foreign ones are replayed as well: dead letters whose headers say that another queue has
	// failed them.
	Foreign bool `json:"foreign,omitempty"`
	// IncludeParked replays parked ones as well: see DeadLetter.IsParked. A filter that names UUIDs
	// or fingerprints, or asks for Parked, includes them anyway.
	IncludeParked bool `json:"include_parked,omitempty"`
	// Note is why they are parked or unparked, at most 500 bytes. To park, there must be one.
	Note string `json:"note,omitempty"`
	// AllowDrop sends messages although the target would drop some of them: see DropError.
	AllowDrop bool `json:"allow_drop,omitempty"`
	// Edit changes a message before it is replayed: its body, its properties, and its own headers,
	// which are all that it gets to see of them. An error leaves the message where it is. Nil means
	// none.
	Edit func(*amqp091.Publishing) error `json:"-"`
	// Change is made to each message after Edit. Nil means none.
	Change *Change `json:"edit,omitempty"`
	// By is who edits, parks or unparks, for the history: the default is the user and host of the
	// process.
	By string `json:"-"`
	// Undo gets every message as it was, in the format of Export, before it is taken out. If it has
	// a method Sync() error, as files have, that is called before as well. Nil means none.
	Undo io.Writer `json:"-"`
	// Progress is told of every step, from one goroutine. Nil means nobody.
	Progress func(Progress) `json:"-"`
	// Settled is called once with the report and the error of a run that has begun, when no message
	// is on its way any more. Giving the others back in order may take long after that: see
	// Config.OnOrder. Nil means nobody.
	Settled func(Report, error) `json:"-"`
	// Counted is what Queue.Plan has counted. Nil before.
	Counted *Report `json:"-"`
}

// Validate reports everything that cannot be right, as joined *[config.FieldError]s.
func (p Plan) Validate() error {
	errs := []error{p.Filter.Validate(), checkRun("Plan", p.Limit, p.Rate), p.Change.Validate()}
	check := func(ok bool, field, wanted, found string) {
		if !ok {
			errs = append(errs, &config.FieldError{Path: "Plan." + field, Wanted: wanted, Found: found})
		}
	}

	check(p.Kind.forWaits() || slices.Contains([]Kind{Replay, Move, Purge, Park, Unpark}, p.Kind), "Kind",
		"replay, move, purge, park or unpark, or cancel, send or postpone for messages that wait",
		quoted(string(p.Kind)))
	check(p.To == "" || p.Kind == Replay || p.Kind == Move, "To", "empty for a "+string(p.Kind), quoted(p.To))
	check(p.Until.IsZero() == (p.Kind != Postpone), "Until", "a time for a postpone, else none", p.Until.String())
	check(p.To != "" || p.Kind != Move, "To", "the queue to which the messages go", quoted(p.To))
	check(len(p.To) <= longestName, "To", "at most 255 bytes", itoa(len(p.To)))
	check(p.Messages == 0 || p.Messages > 0 && p.Kind == Replay, "Canary.Messages", "0 (none), or with a replay more",
		itoa(p.Messages))
	check(p.Watch >= 0, "Canary.Watch", "0 (15 minutes) or more", p.Watch.String())
	check(p.Tolerate == 0 || p.Tolerate > 0 && p.Tolerate < p.Messages, "Canary.Tolerate",
		fmt.Sprintf("0 or more, and fewer than Canary.Messages (%d)", p.Messages), itoa(p.Tolerate))
	check(p.Change == nil && p.Edit == nil || p.Kind == Replay, "Change", "nil, or with a replay", "a change")
	p.checkParking(check)
	p.checkOrigins(check)

	return errors.Join(errs...)
}

// Most is how many messages the run of a plan is about that was counted.
func (p Plan) Most() int {
	n, _ := p.Counted.most(p.Limit)

	return n
}

// Plan counts what a plan would do, and changes nothing. The plan that it returns has that in
// Counted, and its filter selects exactly the messages that were counted: neither those that come
// later, nor those that take their places.
func (q *Queue) Plan(ctx context.Context, plan Plan) (Plan, error) {
	return count(plan, func(dry Plan) (Report, error) { return q.run(ctx, dry, true) })
}

// PlanOf is Plan for dead letters that Read has given before: it asks for the target, and does not
// read the queue again. read is the Stat of that Read.
func (q *Queue) PlanOf(ctx context.Context, plan Plan, read Stat, deadLetters iter.Seq2[*DeadLetter, error]) (Plan,
	error) {
	return count(plan, func(dry Plan) (Report, error) {
		p, r, err := q.pass(ctx, dry, true)
		if err != nil {
			return p.report, err
		}
		defer r.end(q.client)
		d := p.drain(0)
		report := Report{Left: []Left{}, Hidden: read.Hidden, Consumers: read.Consumers, Target: r.target}
		report.Total = read.Ready
		for l, err := range deadLetters {
			if err = cmp.Or(err, context.Cause(ctx)); err != nil {
				return report, err
			}
			report.Seen = l.Position
			if d.filter.Matches(l, p.began) {
				if message, goes := d.prepare(&report, readBefore(q, l), r.frame); goes {
					report.goes(message.Body)
				}
			}
			tell(dry.Progress, report.Progress)
		}
		report.Seen = read.Ready // the others were read, and do not match

		return p.whole(report, nil), nil
	})
}

// readBefore is a dead letter as a scan finds it.
func readBefore(q *Queue, l *DeadLetter) *found {
	m := &l.Message
	d := amqp091.Delivery{Headers: m.Headers, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
		DeliveryMode: m.DeliveryMode, Priority: m.Priority, CorrelationId: m.CorrelationId, ReplyTo: m.ReplyTo,
		Expiration: m.Expiration, MessageId: m.MessageId, Timestamp: m.Timestamp, Type: m.Type, UserId: m.UserId,
		AppId: m.AppId, Body: m.Body, Exchange: l.CameBy.Exchange, RoutingKey: l.CameBy.RoutingKey}

	return &found{arrived: arrived{delivery: d}, queue: q, position: l.Position, unreadable: l.Unreadable, read: l}
}

// count makes a plan of what a dry run of it says.
func count(plan Plan, dryRun func(Plan) (Report, error)) (Plan, error) {
	plan = plan.parking()
	wanted, now, untimed := plan.Filter, time.Now(), 0
	var counted []uint64
	dry := plan
	dry.Undo, dry.Settled, dry.Limit = nil, nil, 0 // all that match, whatever the limit
	dry.Filter = Filter{Where: func(l *DeadLetter) bool {
		matches := wanted.Matches(l, now)
		switch {
		case matches:
			counted = append(counted, identity(l))
		case wanted.Untimed(l):
			untimed++
		}

		return matches
	}}
	err := errors.Join(wanted.Validate(), checkRun("Plan", plan.Limit, 0))
	report := Report{Left: []Left{}}
	if err == nil {
		report, err = dryRun(dry)
	}
	report.weigh(plan.Limit)
	report.UntimedLeftOut = untimed
	plan.Counted, plan.Filter = &report, onlyCounted(counted, wanted)

	return plan, err
}

// onlyCounted selects what was counted with a filter. It says the same as often as it is asked, as
// a run with a canary goes through the queue twice.
func onlyCounted(counted []uint64, wanted Filter) Filter {
	slices.Sort(counted)

	return Filter{Where: func(l *DeadLetter) bool {
		_, was := slices.BinarySearch(counted, identity(l))

		return was && (wanted.Where == nil || wanted.Where(l))
	}}
}

// Check returns a *[DropError] if the target would lose some of the messages that were counted, and
// the plan does not allow that.
func (p Plan) Check() error {
	if p.AllowDrop {
		return nil
	}

	return cmp.Or(p.Counted.Target.Check(p.Counted.most(p.Limit)), checkDrops(p.Counted.Origins))
}

// Run does what a plan says. It can be interrupted at any moment and run again: what was not done
// is where it was. Of what is on its way when the process is killed, up to 256 messages, some may
// then be both in the dead-letter queue and in the target.
//
// A plan that was counted does no more than was counted. With a Canary, that many go first, and the
// others only when those were handled.
func (q *Queue) Run(ctx context.Context, plan Plan) (Report, error) { return q.run(ctx, plan, false) }

// limit is how many a run takes at most.
func (p Plan) limit() int {
	if p.Counted != nil && p.Counted.Can() > 0 {
		return p.Most()
	}

	return p.Limit
}

// asCounted is a report of a run that has ended when all was done that was counted: what lies
// behind that is known from then.
func (p Plan) asCounted(r Report, err error) Report {
	if p.Counted != nil {
		r.UntimedLeftOut = p.Counted.UntimedLeftOut
	}
	if err != nil || p.Counted == nil || r.Done < p.limit() || r.Done == p.Limit {
		return r
	}
	r.Matched = max(r.Matched, p.Counted.Matched)
	if p.Counted.LeftBehind() > r.LeftBehind() {
		r.Left, r.EditError, r.EditErrors = p.Counted.Left, p.Counted.EditError, p.Counted.EditErrors
	}

	return r
}

// seed of all hashes of messages: they are compared within one process.
var seed = maphash.MakeSeed()

// identity tells dead letters from each other: by their UUID, when and how often they have failed,
// and their body. Two with the same are copies of one message. It takes 8 bytes.
func identity(l *DeadLetter) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, [4]any{l.UUID, l.LastFailure.UnixMilli(), l.Replays, l.Calls})
	_, _ = h.Write(l.Message.Body)

	return h.Sum64()
}
