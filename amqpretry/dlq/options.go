package dlq

import (
	"errors"
	"io"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
)

// Progress says how far a run is.
type Progress struct {
	// Total is how many messages there were when the run began; of an import 0, as a stream does
	// not tell.
	Total int
	// Seen, Matched by the filter, and Done: confirmed where they went, and taken out of where they
	// were.
	Seen, Matched, Done int
}

// ReplayOptions say what is replayed, where to, and how carefully.
type ReplayOptions struct {
	// Filter selects the messages. The zero value selects all.
	Filter Filter
	// To is the queue to which the messages go; empty means the main queue, which has failed them.
	To string
	// Limit is how many at most; 0 means all that match.
	Limit int
	// Rate is how many a second at most; 0 means as fast as the broker confirms them.
	Rate float64
	// Canary goes first. The zero Canary means none.
	Canary Canary
	// Foreign ones are replayed as well: dead letters whose headers say that another queue has
	// failed them.
	Foreign bool
	// AllowDrop sends messages although the target would drop some of them: see DropError.
	AllowDrop bool
	// Edit changes a message before it is replayed: its body, its properties, and its own headers,
	// which are all that it gets to see of them. An error leaves the message where it is. Nil means
	// none.
	Edit func(*amqp091.Publishing) error
	// By is who edits, for the history: the default is the user and host of the process.
	By string
	// DryRun counts and moves nothing.
	DryRun bool
	// Undo gets every message as it was, in the format of Export, before it is taken out. If it has
	// a method Sync() error, as files have, that is called before as well. Nil means none.
	Undo io.Writer
	// Progress is told of every step, from one goroutine. Nil means nobody.
	Progress func(Progress)
	// Settled is called once with the report and the error of a run that has begun, when no message
	// is on its way any more. Giving the others back in order may take long after that: see
	// Config.OnOrder. Nil means nobody.
	Settled func(ReplayReport, error)
}

// ReplayReport is what became of a replay.
type ReplayReport struct {
	Report
	// Run is in the header amqpretry-replay of every message that was replayed.
	Run string
	// Canary is what has become of those that went first; of those after them nobody asks.
	Canary CanaryReport
	// EditError is the first error that Edit has given.
	EditError error
}

// Report is what became of a run. A message that is not Done is where it was.
type Report struct {
	Progress
	// Left are those that matched and could not go, by why.
	Left map[LeftReason]int
	// Hidden is how many messages of the dead-letter queue the broker holds back until their
	// x-opt-delivery-time (RabbitMQ 4.4 and later): no run sees them before. -1 where only the
	// management API could tell.
	Hidden int
	// Bytes are those of the bodies of the messages that were sent; in a dry run, that can be sent.
	Bytes int64
	// Target is the queue to which the messages go. Nil if they go nowhere.
	Target *Target
	// Dropped are those of Done that are not in the target any more, although it had no consumer: a
	// limit has dropped them, or somebody has taken them. The undo file has them.
	Dropped int
	// Consumers is how many consumers the dead-letter queue had when the run began. No run sees the
	// messages that they hold unacknowledged.
	Consumers int
	// Unsettled counts the messages whose removal from the dead-letter queue is not confirmed,
	// after a run that failed or was interrupted. A replay or a move has sent them, so they may be
	// in both queues. A purge has them whole in Undo. At most 256.
	Unsettled int
	// Refused are those that such a run has sent, and the target has not taken, as it was full to
	// the end: they are in the dead-letter queue only, and may be in the undo file, at its end.
	Refused int
	// Truncated is true of an import whose last line has no end, as whoever wrote it was killed: it
	// was not imported, and the message of that line was not taken out of its queue either.
	Truncated bool
}

// LeftReason is why a dead letter that matched is left where it is.
type LeftReason string

// Why one is left.
const (
	// LeftForeign: its headers say that another queue has failed it. See ReplayOptions.Foreign.
	LeftForeign LeftReason = "failed by another queue"
	// LeftUnreadable: it has headers that amqp091-go cannot read, so a copy would not be the
	// message.
	LeftUnreadable LeftReason = "headers that cannot be read"
	// LeftEdit: ReplayOptions.Edit has given an error for it.
	LeftEdit LeftReason = "could not be edited"
	// LeftTooLarge: its headers leave no room in a frame for those that it needs.
	LeftTooLarge LeftReason = "headers too large"
)

// PurgeOptions say what is deleted.
type PurgeOptions struct {
	// Filter selects the messages. The zero value selects all.
	Filter Filter
	// Limit is how many at most; 0 means all that match.
	Limit int
	// DryRun counts and deletes nothing.
	DryRun bool
	// Undo is as in ReplayOptions. For retention it is the archive.
	Undo     io.Writer
	Progress func(Progress)
	// Settled is as in ReplayOptions.
	Settled func(Report, error)
}

// MoveOptions say what is moved, as it is: a dead letter stays one, with its headers.
type MoveOptions struct {
	// Filter selects the messages. The zero value selects all.
	Filter Filter
	// To is the queue to which they go.
	To    string
	Limit int
	Rate  float64
	// AllowDrop is as in ReplayOptions.
	AllowDrop bool
	DryRun    bool
	Undo      io.Writer
	Progress  func(Progress)
	// Settled is as in ReplayOptions.
	Settled func(Report, error)
}

// ExportOptions say what is written.
type ExportOptions struct {
	// Filter selects the messages. The zero value selects all.
	Filter Filter
	// Limit is how many at most; 0 means all that match.
	Limit    int
	Progress func(Progress)
}

// ImportOptions say where exported messages go.
type ImportOptions struct {
	// Filter selects the messages. The zero value selects all.
	Filter Filter
	// To is the queue; empty means the dead-letter queue.
	To   string
	Rate float64
	// AllowDrop is as in ReplayOptions. Without it an import stops when the target is full.
	AllowDrop bool
	// Skip is how many lines are not read, because an earlier run has imported them.
	Skip int
	// Imported is told, from one goroutine and in order, how many lines from the beginning (skipped
	// ones included) are done: confirmed, or not matched. A program that stores it can go on after
	// a crash. Nil means nobody.
	Imported func(lines int) error
	// Taken is asked once for each replay and move whose undo file is imported, before the first of
	// its messages: where it has sent them they may have been handled, and whoever replays what the
	// import brings back has them handled twice. An error ends the import there. Nil means to go
	// on.
	Taken func(Taken) error
	// Elsewhere is asked once for each other dead-letter queue from which lines were exported,
	// before the first of its messages is imported. An error ends the import there. Nil means to go
	// on.
	Elsewhere func(queue string) error
	DryRun    bool
	Progress  func(Progress)
}

// checkRun checks what the options of all runs have.
func checkRun(options string, limit int, rate float64) error {
	var errs []error
	if limit < 0 {
		errs = append(errs, &config.FieldError{Path: options + ".Limit", Wanted: "0 (all) or more", Found: itoa(limit)})
	}
	if rate < 0 || rate != rate {
		errs = append(errs, &config.FieldError{Path: options + ".Rate", Wanted: "0 (no limit) or more messages a " +
			"second", Found: ftoa(rate)})
	}

	return errors.Join(errs...)
}
