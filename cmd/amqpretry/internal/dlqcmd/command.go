// Package dlqcmd is the command "amqpretry dlq": what lies in dead-letter queues, and what to do
// with it. The work is done by package dlq; here are the flags, the questions and what is printed.
package dlqcmd

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// runner is what an operation needs of a *dlq.Queue, or of *dlq.Waits.
type runner interface {
	Name() string
	MainQueue() string
	Plan(context.Context, dlq.Plan) (dlq.Plan, error)
	Run(context.Context, dlq.Plan) (dlq.Report, error)
}

// queue is what the commands need of a *dlq.Queue.
type queue interface {
	runner
	Ready(context.Context) (ready, hidden int, err error)
	Consumers(context.Context) (int, error)
	Browse(context.Context, dlq.Filter) iter.Seq2[dlq.DeadLetter, error]
	Get(ctx context.Context, uuid string) (dlq.DeadLetter, error)
	Stat(context.Context, dlq.Filter) (dlq.Stat, error)
	Export(context.Context, io.Writer, dlq.ExportOptions) (dlq.Report, error)
	Import(context.Context, io.Reader, dlq.ImportOptions) (dlq.Report, error)
}

// tool is what the commands share.
type tool struct {
	*cli.Session
	// open connects, and gives the dead-letter queue of a main queue; an empty name is the usual
	// one.
	open func(ctx context.Context, name, mainQueue string) (queue, io.Closer, error)
	// broker tells brokers and virtual hosts from each other.
	broker func(context.Context) (string, error)

	deadLetterQueue string
}

// Command is amqpretry dlq.
func Command(s *cli.Session) *cobra.Command {
	return (&tool{Session: s, open: open(s), broker: broker(s)}).command()
}

func open(s *cli.Session) func(context.Context, string, string) (queue, io.Closer, error) {
	return func(ctx context.Context, name, mainQueue string) (queue, io.Closer, error) {
		client, err := s.DLQ(ctx, topology.Names{})
		if err != nil {
			return nil, nil, err
		}
		if name == "" {
			return client.Queue(mainQueue), client, nil
		}
		return client.DeadLetterQueue(name, mainQueue), client, nil
	}
}

func (t *tool) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Browse dead-letter queues, and replay, move, purge, export or import their messages",
		Long: `Browse dead-letter queues, and replay, move, purge, export or import their messages.

QUEUE is the main queue, such as orders. Its dead-letter queue is orders.dlq; --dead-letter-queue
sets another name.

list, stat, show and export leave all messages in the queue, in order. While they read, other
consumers do not see the messages that were read.

replay, move and purge first print what they would do. On a terminal they then ask for
confirmation; elsewhere they need --yes. You can interrupt them at any moment: a message leaves the
dead-letter queue after the broker has confirmed its copy, or after it is in the undo file. Only one
such run works on a queue at a time.

Write times and durations as 90s, 15m, 36h or 30d. Control characters in texts are printed escaped.

Exit codes: 0 done, also when nothing matched; 1 failed; 2 wrong usage; 4 done in part: some
matching messages were left or not visible, or a canary stopped the run; 130 interrupted (^C),
possibly after a part was done.`,
	}
	t.ConnectionFlags(cmd)
	cmd.PersistentFlags().Var(cli.Text(&t.deadLetterQueue), "dead-letter-queue", "name of the dead-letter queue "+
		"(default: QUEUE.dlq)")
	cmd.AddCommand(t.list(), t.stat(), t.show(), t.replay(), t.purge(), t.move(), t.export(), t.importing(), t.park(),
		t.unpark(), t.watching())
	for _, child := range cmd.Commands() {
		t.CompleteQueues(child, false, mainQueuesWithDeadLetters)
	}

	return cmd
}

// with does something with the dead-letter queue of a main queue.
func (t *tool) with(ctx context.Context, mainQueue string, do func(queue) error) error {
	if mainQueue == "" {
		return cli.Usage("QUEUE is empty: wanted the name of a main queue, such as orders")
	}
	if err := errors.Join(checkQueue("QUEUE", mainQueue),
		checkQueue("--dead-letter-queue", t.deadLetterQueue)); err != nil {
		return err
	}
	q, client, err := t.open(ctx, t.deadLetterQueue, mainQueue)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	return t.explain(do(q), q)
}

const suffix = ".dlq"

// mainQueuesWithDeadLetters are those that have a dead-letter queue.
func mainQueuesWithDeadLetters(queues []string) []string {
	var names []string
	for _, name := range queues {
		if mainQueue, is := strings.CutSuffix(name, suffix); is && mainQueue != "" {
			names = append(names, mainQueue)
		}
	}

	return names
}

// explain adds what most probably went wrong to an error about the queue itself.
func (t *tool) explain(err error, q queue) error {
	err = asUsage(err)
	if isIncomplete(err) {
		return &cli.ExitError{Code: cli.ExitIncomplete, Err: err}
	}
	var missing *dlq.NoQueueError
	if !errors.As(err, &missing) || missing.Queue != q.Name() || t.deadLetterQueue != "" {
		return err
	}
	if mainQueue, is := strings.CutSuffix(q.MainQueue(), suffix); is && mainQueue != "" {
		return cli.Usage("%q looks like a dead-letter queue, and %q does not exist: QUEUE is the main queue, so pass "+
			"%q",
			q.MainQueue(), q.Name(), mainQueue)
	}

	return &cli.ExitError{Code: cli.ExitFailed, Err: hinted{err, "; `amqpretry dlq list` lists all dead-letter " +
		"queues, --dead-letter-queue sets another name"}}
}

// isIncomplete tells whether an error only says that some messages could not be seen: the others
// count.
func isIncomplete(err error) bool { return errors.As(err, new(*dlq.IncompleteError)) }

// hinted is an error with what to do about it.
type hinted struct {
	error
	hint string
}

func (e hinted) Error() string { return e.error.Error() + e.hint }

func (e hinted) Unwrap() error { return e.error }
