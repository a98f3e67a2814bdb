package dlq

import (
	"bufio"
	"fmt"
	"io"
)

// lines writes letters as JSON Lines.
type lines struct {
	out  *bufio.Writer
	sync func() error // nil if the writer is no file
}

func newLines(w io.Writer) *lines {
	l := &lines{out: bufio.NewWriterSize(w, 64<<10)}
	if file, ok := w.(interface{ Sync() error }); ok {
		l.sync = file.Sync
	}

	return l
}

func (l *lines) write(letter *Letter, queue string) error {
	line, err := encodeRecord(letter, queue)
	if err != nil {
		return fmt.Errorf("message %d of %q: %w", letter.Position, queue, err)
	}
	if _, err := l.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot write what is exported: %w", err)
	}

	return nil
}

// flush gives everything to the writer.
func (l *lines) flush() error {
	if err := l.out.Flush(); err != nil {
		return fmt.Errorf("cannot write what is exported: %w", err)
	}

	return nil
}

// secure makes sure that what was written survives the process, and the machine where the writer is a file.
func (l *lines) secure() error {
	if err := l.flush(); err != nil || l.sync == nil {
		return err
	}

	return l.sync()
}
