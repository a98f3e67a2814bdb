// Package cli is what the commands of amqpretry have in common: how they reach a broker, how they
// print, how they end.
//
// A command has the world through a [Session] and nothing else, so that a test can run all of it
// with buffers.
package cli

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Session is what a command has of the world.
type Session struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	Now      func() time.Time

	InIsTerminal, OutIsTerminal, ErrIsTerminal bool
	// Width of the terminal that Out is, in characters; 0 is no limit.
	Width int

	// JSON is the flag --json: one JSON value on Out instead of text for people.
	JSON bool

	color      string
	connection connectionFlags
	policies   string
	ladder     string
	ctx        context.Context // of Run, for Confirm: reading a terminal has no context of its own
}

// NewSession is the session of the process.
func NewSession() *Session {
	s := &Session{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		InIsTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrIsTerminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	if s.OutIsTerminal {
		s.Width, _, _ = term.GetSize(int(os.Stdout.Fd())) // 0, which is no limit, where it does not tell
	}

	return s
}
