package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

func TestExitCodes(t *testing.T) {
	errBroken := errors.New("broken")
	tests := []struct {
		name string
		args []string
		err  error
		code int
		text string
	}{
		{"done", []string{"do"}, nil, ExitOK, ""},
		{"failed", []string{"do"}, errBroken, ExitFailed, "amqpretry: broken\n"},
		{"found", []string{"do"}, &ExitError{Code: ExitFound}, ExitFound, ""},
		{"incomplete, with a text", []string{"do"},
			fmt.Errorf("so: %w", &ExitError{Code: ExitIncomplete, Err: errBroken}), ExitIncomplete,
			"amqpretry: so: broken\n"},
		{"usage of the command's own", []string{"do"}, Usage("no %s", "queue"), ExitUsage,
			"amqpretry: no queue\n'amqpretry do --help' says more.\n"},
		{"unknown flag", []string{"do", "--bogus"}, nil, ExitUsage, "amqpretry: unknown flag: --bogus\n'amqpretry do " +
			"--help' says more.\n"},
		{"value of a flag", []string{"do", "--number", "x"}, nil, ExitUsage, ""},
		{"too many arguments", []string{"do", "a", "b"}, nil, ExitUsage, ""},
		{"unknown command", []string{"bogus"}, nil, ExitUsage, "amqpretry: unknown command \"bogus\" in " +
			"\"amqpretry\": wanted do, version\n'amqpretry --help' says more.\n"},
		{"nearly a command", []string{"versio"}, nil, ExitUsage, "amqpretry: unknown command \"versio\" in " +
			"\"amqpretry\": wanted do, version; version?\n'amqpretry --help' says more.\n"},
		{"help", []string{"do", "--help"}, errBroken, ExitOK, ""},
		{"completion", []string{"completion", "fish"}, errBroken, ExitOK, ""},
		{"no shell", []string{"completion", "tcsh"}, errBroken, ExitUsage, ""},
		{"errors are safe for a terminal", []string{"do"}, errors.New("a\x1b[2J\nb\u202e"), ExitFailed,
			"amqpretry: a\\x1b[2J\nb\\u202e\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(nil)
			code := w.run(t, command(func(*Session, *cobra.Command, []string) error { return test.err }), test.args...)
			assert.Equal(t, test.code, code)
			if test.text != "" || test.code == ExitOK || test.code == ExitFound {
				assert.Equal(t, test.text, w.err.String())
			}
			assert.LessOrEqual(t, strings.Count(w.err.String(), "amqpretry: "), 1, "told once")
		})
	}
}

// A flag that cobra itself requires is missing.
func TestRequiredFlag(t *testing.T) {
	w := newWorld(nil)
	code := Run(t.Context(), w.Session, []string{"do"}, func(s *Session) *cobra.Command {
		cmd := command(nothing)(s)
		require.NoError(t, cmd.MarkFlagRequired("needed"))

		return cmd
	})
	assert.Equal(t, ExitUsage, code)
	assert.Contains(t, w.err.String(), `required flag(s) "needed" not set`)
}

// Without a command there is nothing to succeed with: a script whose variable is empty must learn
// of it.
func TestNoCommand(t *testing.T) {
	for _, args := range [][]string{{}, {"completion"}} {
		w := newWorld(nil)
		assert.Equal(t, ExitUsage, w.run(t, command(nothing), args...))
		assert.Empty(t, w.out.String())
		assert.Contains(t, w.err.String(), "Available Commands:")
	}
}

func TestJSONFlag(t *testing.T) {
	w := newWorld(nil)
	code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
		if !s.JSON {
			return errors.New("no JSON")
		}

		return s.PrintJSON(map[string]string{"a": "<b>\x1b"})
	}), "do", "--json")
	assert.Equal(t, ExitOK, code, w.err.String())
	assert.Equal(t, []string{"{", `  "a": "<b>\u001b"`, "}", ""}, strings.Split(w.out.String(), "\n"))
}

func TestVersion(t *testing.T) {
	w := newWorld(nil)
	assert.Equal(t, ExitOK, w.run(t, command(nothing), "version", "--json"))
	assert.Contains(t, w.out.String(), `"version": `)
	w = newWorld(nil)
	assert.Equal(t, ExitOK, w.run(t, command(nothing), "--version"))
	assert.Regexp(t, `^amqpretry .*go1\.\d+`, w.out.String())
	assert.Equal(t, "v1.2.3, revision 0123456789ab of then, with changes, go1.25",
		Version{Version: "v1.2.3", Revision: "0123456789abcdef", Time: "then", Modified: true, Go: "go1.25"}.String())
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		w := newWorld(nil)
		assert.Equal(t, ExitOK, w.run(t, command(nothing), "completion", shell))
		assert.Contains(t, w.out.String(), "amqpretry")
		assert.Empty(t, w.err.String())
	}
}

// What is typed behind a command is a queue, and never a file of this folder.
func TestCompletionOffersNoFiles(t *testing.T) {
	w := newWorld(nil)
	assert.Equal(t, ExitOK, w.run(t, command(nothing), "__complete", "do", ""))
	assert.Contains(t, w.out.String(), ":4\n", "ShellCompDirectiveNoFileComp")
}

const interrupted = "AMQPRETRY_TEST_INTERRUPTED"

// The first interrupt ends the context of the command, the second one the process. It takes a
// process of its own.
func TestInterrupt(t *testing.T) {
	if os.Getenv(interrupted) != "" {
		w := newWorld(nil)
		w.Out, w.Err = os.Stdout, os.Stderr
		code := Run(t.Context(), w.Session, []string{"do"},
			command(func(_ *Session, cmd *cobra.Command, _ []string) error {
				fmt.Println("began")
				<-cmd.Context().Done()
				fmt.Println("ends")
				if os.Getenv(interrupted) == "twice" {
					select {} // it does not obey
				}

				return fmt.Errorf("in the middle: %w", cmd.Context().Err())
			}))
		os.Exit(code)
	}

	for _, test := range []struct{ mode, text string }{{"once", "amqpretry: interrupted\n"}, {"twice", ""}} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInterrupt$")
			process.Env = append(os.Environ(), interrupted+"="+test.mode)
			var stderr strings.Builder
			process.Stderr = &stderr
			stdout, err := process.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, process.Start())

			lines := make([]byte, 100)
			says := func(line string) {
				n, err := stdout.Read(lines)
				require.NoError(t, err)
				require.Equal(t, line, string(lines[:n]))
			}
			says("began\n")
			require.NoError(t, process.Process.Signal(os.Interrupt))
			says("ends\n")
			if test.mode == "twice" {
				require.NoError(t, process.Process.Signal(os.Interrupt))
			}

			ended := make(chan error, 1)
			go func() { ended <- process.Wait() }()
			t.Cleanup(func() { _ = process.Process.Kill() })
			err = await.Value(t, ended, "the command ends")
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			if test.mode == "twice" {
				assert.Equal(t, syscall.SIGINT, exit.Sys().(syscall.WaitStatus).Signal())
				return
			}
			assert.Equal(t, ExitInterrupted, exit.ExitCode())
			assert.Equal(t, test.text, stderr.String())
		})
	}
}
