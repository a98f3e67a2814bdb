package cli

import (
	"errors"
	"fmt"
)

// The exit codes of all commands.
const (
	// ExitOK: what was asked is done.
	ExitOK = 0
	// ExitFailed: it could not be done.
	ExitFailed = 1
	// ExitUsage: it was not understood; nothing was done.
	ExitUsage = 2
	// ExitFound: a check has found a difference or a problem, also the check before a change, which
	// then does nothing.
	ExitFound = 3
	// ExitIncomplete: it has ended by itself, and something of what was asked is left: messages
	// that could not go, a stopped canary.
	ExitIncomplete = 4
	// ExitInterrupted: ended by ^C or SIGTERM, whatever was done before.
	ExitInterrupted = 130
)

// ExitError ends the command with a code.
type ExitError struct {
	Code int
	// Err is printed. Nil means that all was said.
	Err error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}

	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Usage is an error of the command line.
func Usage(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Interrupted is the end by ^C, with what there is to say about what was not done.
func Interrupted(format string, args ...any) error {
	return &ExitError{Code: ExitInterrupted, Err: fmt.Errorf(format, args...)}
}

// codeOf is the exit code for an error, and what is to be printed of it.
func codeOf(err error) (int, error) {
	var exit *ExitError
	switch {
	case err == nil:
		return ExitOK, nil
	case errors.As(err, &exit) && exit.Err == nil:
		return exit.Code, nil
	case errors.As(err, &exit):
		return exit.Code, err
	default:
		return ExitFailed, err
	}
}
