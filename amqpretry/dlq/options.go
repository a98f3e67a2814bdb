package dlq

import (
	"errors"

	"github.com/amqpretry/watermill-retry/config"
)

// Progress says how far a run is.
type Progress struct {
	// Total is how many messages there were when the run began; of an import 0, as a stream does
	// not tell.
	Total int `json:"total"`
	// Seen, Matched by the filter, and Done: confirmed where they went, and taken out of where they
	// were.
	Seen    int `json:"seen"`
	Matched int `json:"matched"`
	Done    int `json:"done"`
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
	// OnlyMissing leaves out messages that are in the dead-letter queue already: those with the
	// same UUID, failures and body. FailedAgain also leaves out those that have failed again since,
	// which an undo needs. A message without a UUID is always imported.
	OnlyMissing, FailedAgain bool
	// To is the queue; empty means the dead-letter queue.
	To   string
	Rate float64
	// AllowDrop is as in Plan. Without it an import stops when the target is full.
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
	if !(rate >= 0 && rate <= maxRate) {
		errs = append(errs, &config.FieldError{Path: options + ".Rate", Wanted: "0 (no limit) or more messages a " +
			"second, up to 1e9", Found: ftoa(rate)})
	}

	return errors.Join(errs...)
}

const maxRate = 1e9
