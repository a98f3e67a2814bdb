package dlq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// lines writes dead letters as JSON Lines. After an error it writes nothing more, and gives that error again.
type lines struct {
	out    *bufio.Writer
	sync   func() error // nil if the writer is no file
	what   string       // it is, for errors
	taken  Taken        // zero of what stays in its queue
	failed error
}

func newLines(w io.Writer, what string) *lines {
	l := &lines{out: bufio.NewWriterSize(w, 64<<10), what: what}
	if file, ok := w.(interface{ Sync() error }); ok {
		l.sync = file.Sync
	}

	return l
}

func (l *lines) write(deadLetter *DeadLetter, queue string) error {
	if l.failed != nil {
		return l.failed
	}
	line, err := encodeRecord(deadLetter, queue, l.taken)
	if err != nil {
		return fmt.Errorf("message %d of %q: %w", deadLetter.Position, queue, err)
	}
	_, err = l.out.Write(append(line, '\n'))

	return l.fail(err)
}

// flush gives everything to the writer.
func (l *lines) flush() error {
	if l.failed != nil {
		return l.failed
	}

	return l.fail(l.out.Flush())
}

// secure makes sure that what was written survives the process, and the machine where the writer is a file.
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
