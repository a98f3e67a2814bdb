package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// `| head` has seen enough; a broker whose connection breaks has not.
func TestNobodyReads(t *testing.T) {
	errBroken := errors.New("broken")
	for name, test := range map[string]struct {
		do   func(s *Session) error
		code int
	}{
		"the output": {func(s *Session) error { return s.PrintJSON(1) }, ExitOK},
		"wrapped": {func(s *Session) error {
			return fmt.Errorf("cannot write: %w", errors.Join(s.PrintJSON(1), s.PrintJSON(2)))
		}, ExitOK},
		"and something else": {func(s *Session) error { return errors.Join(s.PrintJSON(1), errBroken) }, ExitFailed},
		"and an exit code": {func(s *Session) error {
			return errors.Join(s.PrintJSON(1), &ExitError{Code: ExitIncomplete})
		}, ExitIncomplete},
		"the broker":          {func(*Session) error { return fmt.Errorf("write tcp: %w", syscall.EPIPE) }, ExitFailed},
		"another pipe":        {func(*Session) error { return io.ErrClosedPipe }, ExitFailed},
		"an exit code by far": {func(*Session) error { return &ExitError{Code: ExitFound} }, ExitFound},
	} {
		t.Run(name, func(t *testing.T) {
			reader, writer, err := os.Pipe()
			require.NoError(t, err)
			defer writer.Close()
			require.NoError(t, reader.Close())
			w := newWorld(nil)
			w.Out = writer
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error { return test.do(s) }), "do")
			assert.Equal(t, test.code, code, w.err.String())
			if code == ExitOK {
				assert.Empty(t, w.err.String())
			}
		})
	}
}

// An editor must see the terminal itself.
func TestStdout(t *testing.T) {
	w := newWorld(nil)
	assert.Same(t, io.Writer(&w.out), w.Stdout())
	w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
		assert.Same(t, io.Writer(&w.out), s.Stdout())
		return nil
	}), "do")
}
