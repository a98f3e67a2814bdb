package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// world is a session of buffers.
type world struct {
	*Session
	out, err bytes.Buffer
}

func newWorld(environ map[string]string) *world {
	w := &world{}
	w.Session = &Session{
		In: strings.NewReader(""), Out: &w.out, Err: &w.err,
		Getenv: func(key string) string { return environ[key] },
		Now:    func() time.Time { return time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC) },
	}

	return w
}

// command makes a command "do" of a function, with the flags of the connection and of the policies.
func command(do func(s *Session, cmd *cobra.Command, args []string) error) func(*Session) *cobra.Command {
	return func(s *Session) *cobra.Command {
		cmd := &cobra.Command{Use: "do QUEUE", Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return do(s, cmd, args) }}
		s.ConnectionFlags(cmd)
		s.PoliciesFlag(cmd)
		cmd.Flags().Int("number", 0, "number")
		cmd.Flags().String("needed", "", "needed")

		return cmd
	}
}

func (w *world) run(t *testing.T, command func(*Session) *cobra.Command, args ...string) int {
	t.Helper()
	return Run(t.Context(), w.Session, args, command)
}

func nothing(*Session, *cobra.Command, []string) error { return nil }
