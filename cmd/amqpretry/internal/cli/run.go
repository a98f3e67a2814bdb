package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

var errInterrupted = errors.New("interrupted")

// Run executes a command line, prints the error if there is one, and gives the exit code. The first
// interrupt (^C, SIGTERM) ends the context of the command, which then leaves everything in order; a
// second one ends the process.
func Run(ctx context.Context, s *Session, args []string, commands ...func(*Session) *cobra.Command) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := onInterrupt(func() { cancel(errInterrupted) })
	defer stop()
	defer surviveClosedPipes()()
	s.ctx, s.Out = ctx, output{s.Out}

	r := &run{root: root(s)}
	r.root.SetIn(s.In)
	r.root.SetOut(s.Out) // before the commands for completion, which keep it
	r.root.SetErr(s.Err)
	r.root.SetUsageFunc(usageWithTopics(r.root.UsageFunc()))
	for _, command := range commands {
		r.root.AddCommand(command(s))
	}
	r.root.AddCommand(version(s))
	r.root.InitDefaultHelpCmd()
	r.root.InitDefaultCompletionCmd(args...)
	r.prepare(r.root)

	r.root.SetArgs(args)
	used, err := r.root.ExecuteContextC(ctx)
	if err != nil && !r.began {
		err = misunderstood(err)
	}
	if err != nil && nobodyReads(err) {
		return ExitOK
	}
	code, err := codeOf(err)
	if err == nil {
		return code
	}
	if code == ExitFailed && errors.Is(context.Cause(ctx), errInterrupted) {
		code = ExitInterrupted
		if errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
	}

	s.Fail("amqpretry", err)
	if code == ExitUsage {
		s.Note("'%s --help' says more.", used.CommandPath())
	}

	return code
}

// misunderstood is an error of the command line, which shows what was given: perhaps an address
// that belongs elsewhere.
func misunderstood(err error) error {
	code, text := codeOf(err)
	if text == nil {
		return err
	}
	if code == ExitFailed {
		code = ExitUsage
	}

	return &ExitError{Code: code, Err: errors.New(hideArguments(aboutGroup(text.Error())))}
}

// onInterrupt calls first at the first interrupt, and leaves the others to the system, which ends
// the process.
func onInterrupt(first func()) (stop func()) {
	interrupts := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-interrupts:
			signal.Stop(interrupts)
			first()
		case <-done:
		}
	}()

	return func() {
		signal.Stop(interrupts)
		close(done)
	}
}

// run is one execution.
type run struct {
	root *cobra.Command
	// began is true when the command line was understood, and its command was called.
	began bool
}

// prepare makes all commands end alike.
func (r *run) prepare(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		r.prepare(child)
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 { // queues are no files
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if cmd.HasSubCommands() && !cmd.Runnable() { // cobra would print its help, whatever follows, and succeed
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = group
		cmd.DisableFlagsInUseLine = true

		return
	}

	do := cmd.RunE
	if do == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r.began = true
		return do(cmd, args)
	}
}

// group is a command that has others and does nothing by itself.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		cmd.SetOut(cmd.ErrOrStderr()) // it was not asked for
		if err := cmd.Help(); err != nil {
			return err
		}

		return &ExitError{Code: ExitUsage}
	}

	var all []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() && !slices.Contains([]string{"help", "completion"}, child.Name()) {
			all = append(all, child.Name())
		}
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q in %q: wanted %s", args[0], cmd.CommandPath(), strings.Join(all, ", "))
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; " + near[0] + "?"
	}

	return Usage("%s", text)
}

func root(s *Session) *cobra.Command {
	root := &cobra.Command{
		Use:   "amqpretry",
		Short: "Inspect and operate retry queues and dead-letter queues on RabbitMQ",
		Long: `amqpretry inspects and operates the retry queues and dead-letter queues of watermill-retry on RabbitMQ.

Commands take the names of main queues, such as orders. amqpretry derives the names of their retry queues and
dead-letter queues. Set the address of the broker in the environment variable ` + EnvURI +
			` or with --uri: see "amqpretry help connection".

Exit codes:
  0    done; a check found nothing
  1    failed
  2    wrong usage, nothing was done
  3    a check found a difference or a problem
  4    done in part: some messages or queues were left, or a canary stopped the run
  130  interrupted (^C), possibly after a part was done. A second ^C ends the process at once, and loses nothing either`,
		Example: `  export ` + EnvURI + `=amqp://user:password@localhost:5672/
  amqpretry dlq stat orders
  amqpretry topology plan --policies retry.yaml orders
  amqpretry doctor orders
  amqpretry simulate --policies retry.yaml --topic orders`,
		Version:       versionOf(buildInfo()).String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().BoolVar(&s.JSON, "json", false, "print JSON")
	s.colorFlag(root)
	root.SetVersionTemplate("amqpretry {{.Version}}\n")

	return root
}
