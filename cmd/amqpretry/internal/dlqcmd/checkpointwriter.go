package dlqcmd

import (
	"fmt"
	"time"
)

// How much may be imported without the checkpoint.
const (
	checkpointLines = 100
	checkpointPause = 200 * time.Millisecond
)

// checkpointWriter writes the checkpoint of an import now and then.
type checkpointWriter struct {
	file    string
	now     func() time.Time
	read    *lineHash
	before  checkpoints // as they were found
	begun   int         // the lines that were done then
	reached checkpoint
	written checkpoint
}

// begin fails when there is no place for the checkpoint, before anything is imported.
func (w *checkpointWriter) begin() error {
	w.begun = w.reached.Lines
	if err := w.write(); err != nil {
		return fmt.Errorf("cannot record the progress of the import in %s: %w; to import without it, pass the file "+
			"as standard input (-)", checkpointPath(w.file), err)
	}
	return nil
}

func (w *checkpointWriter) imported(lines int) error {
	w.reached.Lines = lines
	if lines-w.written.Lines < checkpointLines && w.now().Sub(w.written.At) < checkpointPause {
		return nil
	}
	return w.write()
}

// end keeps what was reached. Where nothing was, all is as it was found: what was imported before
// still is, also when it was to be once more.
func (w *checkpointWriter) end(finished bool) error {
	if !finished && w.reached.Lines == w.begun {
		return w.before.write(w.file)
	}
	w.reached.Finished = finished

	return w.write()
}

func (w *checkpointWriter) write() error {
	if err := w.read.to(w.reached.Lines); err != nil {
		return fmt.Errorf("%s: %w", w.file, err)
	}
	w.reached.SHA256, w.reached.At = w.read.sum(), w.now().UTC()
	if err := w.before.with(w.reached).write(w.file); err != nil {
		return err
	}
	w.written = w.reached

	return nil
}
