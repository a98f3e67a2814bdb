package dlq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// lines writes dead letters as JSON Lines. After an error it writes nothing more, and gives that
// error again.
type lines struct {
	out     io.Writer
	sync    func() error // nil if the writer is no file
	what    string       // it is, for errors
	taken   Taken        // zero of what stays in its queue
	pending encoder      // lines that out does not have yet
	whole   int          // lines that out has
	failed  error
}

// mostPending is how many bytes of lines wait to be written together.
const mostPending = 64 << 10

func newLines(w io.Writer, what string) *lines {
	l := &lines{out: w, what: what}
	if file, ok := w.(interface{ Sync() error }); ok {
		l.sync = file.Sync
	}

	return l
}

func (l *lines) write(deadLetter *DeadLetter, queue string) error {
	if l.failed != nil {
		return l.failed
	}
	if err := l.pending.line(deadLetter, queue, l.taken); err != nil {
		return fmt.Errorf("message %d of %q: %w", deadLetter.Position, queue, err)
	}
	l.pending.out = append(l.pending.out, '\n')
	if len(l.pending.out) < mostPending {
		return nil
	}

	return l.flush()
}

// flush gives everything to the writer.
func (l *lines) flush() error {
	pending := l.pending.out
	if l.failed != nil || len(pending) == 0 {
		return l.failed
	}
	n, err := l.out.Write(pending)
	if err == nil && n < len(pending) {
		err = io.ErrShortWrite
	}
	written := pending[:n]
	l.whole += bytes.Count(written, []byte{'\n'})
	if torn := n - (bytes.LastIndexByte(written, '\n') + 1); torn > 0 {
		err = errors.Join(err, l.cut(int64(torn)))
	}
	if l.pending.out = pending[:0]; cap(pending) > 4*mostPending { // a large line is not kept in memory
		l.pending.out = nil
	}

	return l.fail(err)
}

// cut takes the beginning of a line out of a file, whose last line would end in the middle. Other
// writers keep it: an import leaves it out, and says so.
func (l *lines) cut(torn int64) error {
	file, ok := l.out.(interface {
		io.Seeker
		Truncate(size int64) error
	})
	if !ok {
		return nil
	}
	end, err := file.Seek(-torn, io.SeekCurrent)
	if err == nil {
		err = file.Truncate(end)
	}
	if err != nil {
		return fmt.Errorf("its last line is incomplete: %w", err)
	}

	return nil
}

// secure makes sure that what was written survives the process, and the machine where the writer is
// a file.
func (l *lines) secure() error {
	if err := l.flush(); err != nil || l.sync == nil {
		return err
	}

	return l.fail(l.sync())
}

func (l *lines) fail(err error) error {
	if err != nil {
		l.failed = fmt.Errorf("cannot write %s: %w", l.what, err)
	}

	return l.failed
}

// and adds an error, unless it is a part of the other one.
func and(err, more error) error {
	switch {
	case more == nil || errors.Is(err, more):
		return err
	case err == nil || errors.Is(more, err):
		return more
	default:
		return errors.Join(err, more)
	}
}
