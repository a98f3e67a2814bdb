package dlq

import (
	"cmp"
	"slices"
	"time"
)

// Report is what became of a run, or what a dry run has counted. A message that is not Done is
// where it was.
type Report struct {
	Progress
	// Left are those that matched and could not go, the most frequent cause first.
	Left []Left `json:"left"`
	// Hidden is how many messages of the dead-letter queue the broker holds back until their
	// x-opt-delivery-time (RabbitMQ 4.4 and later): no run sees them before. -1 where only the
	// management API could tell.
	Hidden int `json:"hidden"`
	// UntimedLeftOut is how many OlderThan and NewerThan of the filter leave out only because they
	// tell no time of failure. After a plan that was counted it is as counted.
	UntimedLeftOut int `json:"untimed_left_out,omitempty"`
	// Bytes are those of the bodies of the messages that were sent; in a dry run, that can be sent.
	Bytes int64 `json:"-"`
	// Target is the queue to which the messages go. Nil if they go nowhere.
	Target *Target `json:"target,omitempty"`
	// Origins are the queues that messages name, in a replay to them: that with the most first.
	Origins []Origin `json:"origins,omitempty"`
	// Warnings say what would become of the messages in the target; WouldDrop is how many would not
	// stay there.
	Warnings  []string `json:"warnings,omitempty"`
	WouldDrop int      `json:"would_drop,omitempty"`
	// Dropped are those of Done that are not in the target any more, although it had no consumer: a
	// limit has dropped them, or somebody has taken them. The undo file has them.
	Dropped int `json:"dropped,omitempty"`
	// Gone are messages that were counted and no longer waited: see Waits.Run.
	Gone int `json:"gone,omitempty"`
	// Consumers is how many consumers the dead-letter queue had when the run began. No run sees the
	// messages that they hold unacknowledged.
	Consumers int `json:"consumers"`
	// Unsettled counts the messages whose removal from the dead-letter queue is not confirmed,
	// after a run that failed or was interrupted. A replay or a move has sent them, so they may be
	// in both queues. A purge has them whole in Undo. At most 256.
	Unsettled int `json:"unsettled"`
	// Refused are those that such a run has sent, and the target has not taken, as it was full to
	// the end: they are in the dead-letter queue only, and may be in the undo file, at its end.
	Refused int `json:"refused"`
	// Truncated is true of an import whose last line has no end, as whoever wrote it was killed: it
	// was not imported, and the message of that line was not taken out of its queue either.
	Truncated bool `json:"truncated,omitempty"`
	// Run is in the header amqpretry-replay of every message that was replayed.
	Run string `json:"run,omitempty"`
	// Canary is what has become of those that went first; of those after them nobody asks.
	Canary CanaryReport `json:"-"`
	// EditError is the first error that Edit has given.
	EditError error `json:"-"`
	// Edited is how many of those that were sent, or can be, Edit or Change has changed.
	Edited int `json:"edited,omitempty"`
	// EditErrors are the errors of Edit, by their texts, in the order in which they came. Of more
	// than 20 different ones the others have no text.
	EditErrors []EditFailure `json:"edit_errors,omitempty"`
}

// EditFailure is how many messages Plan.Edit has refused with an error.
type EditFailure struct {
	// Why is the text of the error, UUID the first message, and Messages how many have it.
	Why      string `json:"why"`
	UUID     string `json:"uuid"`
	Messages int    `json:"messages"`
}

// mostEditErrors is how many different errors of Edit are told apart.
const mostEditErrors = 20

// refuse notes an error of Edit.
func (r *Report) refuse(l *DeadLetter, err error) {
	if r.EditError == nil {
		r.EditError = err
	}
	failure := EditFailure{Why: err.Error(), UUID: l.UUID}
	if len(r.EditErrors) >= mostEditErrors-1 {
		failure.Why = ""
	}
	i := slices.IndexFunc(r.EditErrors, func(e EditFailure) bool { return e.Why == err.Error() })
	if i < 0 {
		i = slices.IndexFunc(r.EditErrors, func(e EditFailure) bool { return e.Why == failure.Why })
	}
	if i < 0 {
		i, r.EditErrors = len(r.EditErrors), append(r.EditErrors, failure)
	}
	r.EditErrors[i].Messages++
}

// Left is how many messages are left where they are, and why.
type Left struct {
	// Why they are left, and how many Messages.
	Why      LeftReason `json:"why"`
	Messages int        `json:"messages"`
}

// LeftReason is why a dead letter that matched is left where it is.
type LeftReason string

// Why one is left.
const (
	// LeftForeign: its headers say that another queue has failed it. See Plan.Foreign.
	LeftForeign LeftReason = "failed by another queue"
	// LeftUnreadable: it has headers that amqp091-go cannot read, so a copy would not be the
	// message.
	LeftUnreadable LeftReason = "headers that cannot be read"
	// LeftEdit: Plan.Edit has given an error for it.
	LeftEdit LeftReason = "could not be edited"
	// LeftTooLarge: its headers leave no room in a frame for those that it needs.
	LeftTooLarge LeftReason = "headers too large"
	// LeftParked: it is parked, and the plan of a replay does not name it. See Plan.IncludeParked.
	LeftParked LeftReason = "parked"
	// LeftLater: it is due at Plan.Until or later. LeftExpires: its deadline is before that.
	// LeftTooLong: it cannot wait so long, by its ladder or by Policy.MaxPostpone.
	LeftLater   LeftReason = "due later already"
	LeftExpires LeftReason = "expires before"
	LeftTooLong LeftReason = "cannot wait so long"
	// LeftByBroker: the broker delays it by itself, and would lose its attempts.
	LeftByBroker LeftReason = "delayed by the broker itself"
)

// matches tells whether a filter matches, and counts what it leaves out for a missing time.
func (r *Report) matches(f Filter, l *DeadLetter, now time.Time) bool {
	if f.Untimed(l) {
		r.UntimedLeftOut++
	}

	return f.Matches(l, now)
}

func (r *Report) leave(why LeftReason) {
	i := slices.IndexFunc(r.Left, func(l Left) bool { return l.Why == why })
	if i < 0 {
		i, r.Left = len(r.Left), append(r.Left, Left{Why: why})
	}
	r.Left[i].Messages++
	slices.SortFunc(r.Left, func(a, b Left) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Why, b.Why))
	})
}

// LeftBehind is how many of those that matched could not go.
func (r Report) LeftBehind() (n int) {
	for _, left := range r.Left {
		n += left.Messages
	}

	return n
}

// Can returns how many of the messages that matched can go. After a dry run that is how many would
// be Done.
func (r Report) Can() int { return max(0, r.Matched-r.LeftBehind()) }

// most is how many go with a limit, and how many bytes they have.
func (r *Report) most(limit int) (n int, bytes int64) {
	n = r.Can()
	if limit <= 0 || limit >= n {
		return n, r.Bytes
	}

	return limit, r.Bytes * int64(limit) / int64(n)
}

// weigh notes what the target makes of the messages.
func (r *Report) weigh(limit int) {
	n, bytes := r.most(limit)
	r.Warnings, r.WouldDrop = r.Target.Warnings(n, bytes), r.Target.Excess(n, bytes)
	for _, o := range r.Origins {
		r.Warnings = append(r.Warnings, o.Target.Warnings(o.Messages, o.bytes)...)
		r.WouldDrop += o.Target.Excess(o.Messages, o.bytes)
	}
}

func (r *Report) begin(s *scan, target *Target) {
	r.Left = []Left{}
	r.Total, r.Hidden, r.Consumers, r.Target = s.first, s.hidden, s.others, target
}

// goes counts a message that is sent, or can be.
func (r *Report) goes(body []byte) int {
	r.Bytes += int64(len(body))
	return 1
}

// after is the report of those that followed the canaries, with these.
func (r Report) after(canaries Report) Report {
	r.Progress, r.Bytes = canaries.and(r.Progress), r.Bytes+canaries.Bytes
	return r
}

// and adds what came after the canary, whose run has seen the queue once already.
func (r Report) and(p Progress) Progress {
	p.Total, p.Seen, p.Matched, p.Done = p.Total+r.Done, p.Seen+r.Done, p.Matched+r.Done, p.Done+r.Done

	return p
}
