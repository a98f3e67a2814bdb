package cli

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// ErrNobodyReads is the error of Out when its reader has gone, as `| head` does. A command that has
// nothing else to report has succeeded: what was read is all that was wanted. It is told from a
// broken connection to the broker, which is the same error of the system.
var ErrNobodyReads = errors.New("nobody reads the output any more")

// output is what a command prints to.
type output struct{ io.Writer }

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		err = ErrNobodyReads
	}

	return n, err
}

// Stdout is Out as it was given, for programs that are started: they must see that it is a
// terminal.
func (s *Session) Stdout() io.Writer {
	if o, ok := s.Out.(output); ok {
		return o.Writer
	}

	return s.Out
}

// surviveClosedPipes makes writing to a pipe that nobody reads an error. Without it the signal ends
// the process, in the middle of a browse that holds the messages of a queue. It is not ignored but
// taken: programs that are started, such as editors, would inherit that it is ignored.
func surviveClosedPipes() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)

	return func() { signal.Stop(signals) }
}

// nobodyReads tells whether that is all that went wrong.
func nobodyReads(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it goes through the tree itself
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if !nobodyReads(one) {
				return false
			}
		}

		return true
	case interface{ Unwrap() error }:
		return nobodyReads(e.Unwrap())
	default:
		return errors.Is(err, ErrNobodyReads)
	}
}
