// Package doctor is the command doctor: it looks at a broker, and says what is wrong with it for
// retries, what that means, and what fixes it.
//
// Package inspect gathers the [Facts], plain values. Judging them (diagnose) is a table of small
// pure functions, whose texts are in rules.txt.
package doctor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// patience bounds all questions over AMQP, as some about a queue whose nodes are down have no
// answer.
const patience = 2 * time.Minute

var errPatience = fmt.Errorf("the broker has not answered all questions within %s", patience)

// Facts are what is known when it is judged, and the commands that fix it.
type Facts struct {
	inspect.Facts
	cli.Commands
}

//go:embed help.txt
var help string

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	var shared string
	cmd := &cobra.Command{
		Use:   "doctor [QUEUE|TOPIC=QUEUE ...]",
		Short: "Find problems of the broker and the queues, and print their fixes",
		Long:  strings.TrimSuffix(help, "\n"),
		Example: `  amqpretry doctor
  amqpretry doctor orders payments
  export AMQP_MANAGEMENT_URL=http://monitor:password@localhost:15672
  amqpretry doctor --policies retry.yaml orders events=events_billing
  amqpretry doctor --ladder reminders.v1.1s.10x6
  amqpretry doctor --json orders | jq -r '.findings[] | select(.severity == "problem") | .fix'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f := inspect.Facts{PolicyFile: s.PolicyFile(), Names: topology.Names{Shared: shared}}
			return run(cmd.Context(), s, f, cmd.Flags().Changed("uri"), args)
		},
	}
	s.CompleteQueues(cmd, true, cli.MainQueues)
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	s.LadderFlag(cmd, ", beside those of the policies of QUEUE")
	cli.SharedNameFlag(cmd.Flags(), &shared)

	return cmd
}

// run looks, judges and prints. known is what is known before.
func run(ctx context.Context, s *cli.Session, known inspect.Facts, uriByFlag bool, args []string) error {
	topics, err := topicsOf(s, known.Names, args)
	if err != nil {
		return err
	}
	known.Topics = topics
	if ladder, named, err := s.Ladder(); err != nil {
		return err
	} else if named {
		known.Named = &ladder
	}
	f, err := look(ctx, s, known, uriByFlag)
	if err != nil {
		return err
	}

	findings := diagnose(f)
	if err := cli.Read(report(s, f, findings)); err != nil {
		return err
	}
	if f.Ended != nil && !errors.Is(f.Ended, errPatience) {
		if ctx.Err() != nil {
			return cli.Interrupted("interrupted: not everything was checked")
		}
		return fmt.Errorf("cannot finish the checks: %w; run doctor again", f.Ended)
	}
	if n := count(findings); n[Problem]+n[Warning] > 0 {
		return &cli.ExitError{Code: cli.ExitFound}
	}

	return nil
}

// topicsOf plans what is asked about.
func topicsOf(s *cli.Session, names topology.Names, args []string) ([]inspect.Topic, error) {
	policies, err := s.Policies()
	if err != nil || len(args) == 0 {
		return nil, err
	}
	targets, err := cli.Targets(args)
	if err != nil {
		return nil, err
	}

	return inspect.Topics(targets, policies, names)
}

// look connects and gathers.
func look(ctx context.Context, s *cli.Session, known inspect.Facts, uriByFlag bool) (f Facts, err error) {
	uri, err := s.URI()
	if err != nil {
		return f, err
	}
	parsed, err := connection.ParseURI(uri)
	if err != nil {
		return f, err
	}
	known.VHost, known.User = parsed.Vhost, parsed.Username
	client, err := s.ManagementClient("")
	if err != nil {
		return f, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	broker, err := inspect.Connect(bounded, s.Dial, 0)
	if err != nil {
		return f, err
	}
	defer broker.Close()
	publisher, err := inspect.Connect(bounded, s.Dial, 0)
	if err != nil {
		return f, err
	}

	f = Facts{inspect.Everything(bounded, known, broker, publisher, client),
		commands(known.VHost, len(s.Again()) > 0, uriByFlag)}
	if f.Ended == nil {
		f.Unroutable = browse(bounded, s, f)
		f.Ended = broker.Ended()
	}

	return f, nil
}

// commands go to the same virtual host. One that was given by a flag can be another than that of
// the URI; a line to be pasted cannot repeat a URI that was given by a flag.
func commands(vhost string, byFlag, uriByFlag bool) cli.Commands {
	c := cli.Commands{VirtualHost: vhost}
	if vhost != "/" || byFlag {
		c.Again = []string{"--vhost=" + shell.Quote(vhost)}
	}
	if uriByFlag { // it has a password
		c.Before = "# with the same --uri\n"
	}
	return c
}

// mostBrowsed is how many unroutable messages are read at most.
const mostBrowsed = 1000

// browse looks into the queues for unroutable messages, where that is safe: it leaves the messages
// there, in order.
func browse(ctx context.Context, s *cli.Session, f Facts) map[string]inspect.Seen[map[string]int] {
	found := map[string]inspect.Seen[map[string]int]{}
	for _, l := range f.Ladders() {
		if f.Queues[l.Unroutable()].Ready == 0 {
			continue
		}
		targets, err := targetsIn(ctx, s, *l.Ladder)
		found[l.Unroutable()] = inspect.Known(targets)
		if err != nil {
			found[l.Unroutable()] = inspect.Unseen[map[string]int](err.Error())
		}
	}

	return found
}

// targetsIn counts the unroutable messages of a ladder by the targets of their routing keys.
func targetsIn(ctx context.Context, s *cli.Session, l topology.Ladder) (map[string]int, error) {
	client, err := s.DLQ(ctx, topology.Names{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()

	targets := map[string]int{}
	for letter, err := range client.DeadLetterQueue(l.Unroutable(), "").Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return nil, err
		}
		name := "no known target"
		if target, _, ok := l.ParseKey(letter.CameBy.RoutingKey); ok && target != (topology.Target{}) {
			name = fmt.Sprintf("%q", target.String())
		}
		targets[name]++
		if letter.Position >= mostBrowsed {
			break
		}
	}

	return targets, nil
}
