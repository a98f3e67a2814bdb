package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrDeclined is the answer no.
var ErrDeclined = errors.New("not confirmed, so nothing was done")

// Confirm asks before something is destroyed. yes is the flag --yes. Nil is the answer yes.
func (s *Session) Confirm(question string, yes bool) error {
	if yes {
		return nil
	}
	if !s.InIsTerminal {
		return Usage("%s There is no terminal to ask: add --yes", question)
	}
	if _, err := fmt.Fprintf(s.Err, "%s [y/N] ", SafeLines(hideAddresses(question))); err != nil {
		return err
	}

	answer := make(chan string, 1)
	go func() { // reading a terminal cannot be interrupted
		line, _ := bufio.NewReader(s.In).ReadString('\n') // no answer is no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()

	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}

		return ErrDeclined
	case <-s.context().Done():
		return context.Cause(s.context())
	}
}

func (s *Session) context() context.Context {
	if s.ctx == nil {
		return context.Background()
	}

	return s.ctx
}
