// Package doctor is the command doctor: it looks at a broker, and says what is wrong with it for
// retries, what that means, and what fixes it.
//
// Looking (gather, over AMQP and the management API) gives [Facts], plain values. Judging them
// (diagnose) is a table of small pure functions.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// patience bounds all questions over AMQP, as some about a queue whose nodes are down have no
// answer.
const patience = 2 * time.Minute

var errPatience = fmt.Errorf("the broker has not answered all questions within %s", patience)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	var shared string
	cmd := &cobra.Command{
		Use:   "doctor [QUEUE|TOPIC=QUEUE ...]",
		Short: "Find problems of the broker and the queues, and print their fixes",
		Long: `Check the broker and the queues of main queues. For each problem, print what it means and the
command that fixes it. Nothing is changed.

An argument is a main queue, or TOPIC=QUEUE if the topic of the policy has another name than the
queue. Without arguments, doctor checks only the broker, and the default ladders or the one that
--ladder names. Without --policies, it takes the delays of a queue from the retry queues that exist, so it
finds no missing one.

It checks:
  broker       version, features, alarms, nodes, limits of the virtual host, permissions of the user
  topology     queues, exchanges and bindings, compared with the policy file; majorities of their nodes
  protection   classic queues, policies and operator policies that weaken a promise (message-ttl,
               overflow, expires, max-length, delivery-limit), delivery limits and length limits of main
               queues, dead-letter exchanges that lead nowhere or form a cycle
  strategy     main queues without what the strategy of their policy needs, by arguments or policies; the
               strategy native on a broker that ignores it
  messages     stuck messages, consumers on retry queues, dead letters; with exact delays messages that no
               target takes, and landing queues that do not drain
  leftovers    retry queues and rejected exchanges that no policy uses

With exact delays, doctor checks the ladder once, and reports many parts of it with the same problem as
one. It also checks the two default ladders, which delayed publishing uses, if they exist. --ladder
names another one in their place by the name of its objects, such as amqpretry.delay.v1.100ms.10x6.
doctor reads up to 1000 unroutable messages for their targets; they stay in their queue, in order.

To compare arguments and to check permissions and alarms, doctor declares objects that already exist,
and publishes messages that it rolls back. It checks the permissions of the user in the broker's URI:
use the service's user. Most checks need the management API (AMQP_MANAGEMENT_URL, a user with the tag
monitoring, or administrator for permissions). doctor lists the checks that it could not make.

Severities: a problem breaks a promise, so messages can be lost or stop moving. A warning is one step
away from a problem, or needs a person. A note is information. Fixes are shell commands; read lines
that begin with # first. Run rabbitmqctl on a node of the broker.

The management API has policies and message counts from statistics, which are up to 10 seconds old.
Where these differ from what the broker reports at once, doctor asks again for up to 12 seconds. It cannot
compare the number of messages on their way out of a queue, so it prints their age.

With --json: {"version", "virtual_host", "user", "incomplete", "statistics_age_seconds", "counts":
{"problem", "warning", "unseen", "note", "ok"}, "findings": [{"check", "severity", "object", "found",
"means", "fix"}]}; every check has at least one finding, with the severity ok if there is nothing.
"incomplete" is there only if doctor was interrupted or lost the connection, and says why.

Exit codes: 0 no problem and no warning; 1 the checks failed to run, or the connection was lost; 2 wrong
usage; 3 a problem or a warning; 130 interrupted (^C), with the findings until then.`,
		Example: `  amqpretry doctor
  amqpretry doctor orders payments
  export AMQP_MANAGEMENT_URL=http://monitor:password@localhost:15672
  amqpretry doctor --policies retry.yaml orders events=events_billing
  amqpretry doctor --ladder reminders.v1.1s.10x6
  amqpretry doctor --json orders | jq -r '.findings[] | select(.severity == "problem") | .fix'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			policyFile := cmp.Or(cmd.Flag("policies").Value.String(), s.Getenv(cli.EnvPolicies))
			return run(cmd.Context(), s, Facts{ByFlag: cmd.Flags().Changed("uri"), VHostByFlag: len(s.Again()) > 0,
				PolicyFile: policyFile, Names: topology.Names{Shared: shared}}, args)
		},
	}
	s.CompleteQueues(cmd, true, cli.MainQueues)
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	s.LadderFlag(cmd, ", beside those of the policies of QUEUE")
	cmd.Flags().StringVar(&shared, "shared-name", "", "prefix of the names of shared retry queues, as in "+
		"Names.Shared of the services (default retry)")

	return cmd
}

// run looks, judges and prints. f has what is known before.
func run(ctx context.Context, s *cli.Session, f Facts, args []string) error {
	topics, err := topicsOf(s, f.Names, args)
	if err != nil {
		return err
	}
	f.Topics = topics
	if ladder, named, err := s.Ladder(); err != nil {
		return err
	} else if named {
		f.Named = &ladder
	}
	f, err = look(ctx, s, f)
	if err != nil {
		return err
	}

	findings := diagnose(f)
	if err := report(s, f, findings); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
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
func topicsOf(s *cli.Session, names topology.Names, args []string) ([]Topic, error) {
	policies, err := s.Policies()
	if err != nil || len(args) == 0 {
		return nil, err
	}
	targets, err := cli.Targets(args)
	if err != nil {
		return nil, err
	}

	var errs []error
	topics := make([]Topic, len(targets))
	plans := make([]topology.Plan, len(targets))
	for i, t := range targets {
		policy := policies.For(t.Topic)
		plan, err := topology.New(t.Queue, policy, names)
		errs = append(errs, err)
		topics[i], plans[i] = Topic{t.Topic, policy, plan}, plan
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	return topics, topology.Check(plans...)
}

// look connects and gathers.
func look(ctx context.Context, s *cli.Session, f Facts) (Facts, error) {
	uri, err := s.URI()
	if err != nil {
		return f, err
	}
	parsed, err := connection.ParseURI(uri)
	if err != nil {
		return f, err
	}
	f.VHost, f.User = parsed.Vhost, parsed.Username

	a, err := openAPI(s)
	if err != nil {
		return f, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	connection, err := s.Dial(bounded)
	if err != nil {
		return f, err
	}
	defer connection.Close()
	publisherContext, cancelPublisher := context.WithCancel(bounded)
	defer cancelPublisher() // in an alarm it cannot be closed in another way
	publisher, err := s.Dial(publisherContext)
	if err != nil {
		return f, err
	}

	f.Version, _ = connection.Properties["version"].(string)
	p := newProber(bounded, connection, publisher)
	if a != nil {
		a.ended = p.ended
	}
	f = gather(bounded, f, p, a)
	if f.Ended == nil {
		f.Unroutable = browse(bounded, s, f)
		f.Ended = p.ended()
	}

	return f, nil
}

// mostBrowsed is how many unroutable messages are read at most.
const mostBrowsed = 1000

// browse looks into the queues for unroutable messages, where that is safe: it leaves the messages
// there, in order.
func browse(ctx context.Context, s *cli.Session, f Facts) map[string]Seen[map[string]int] {
	found := map[string]Seen[map[string]int]{}
	for _, l := range f.ladders() {
		of := l.of
		if f.Queues[of.Unroutable()].Ready == 0 {
			continue
		}
		targets, err := targetsIn(ctx, s, *of)
		if err != nil {
			found[of.Unroutable()] = unseen[map[string]int](err.Error())
			continue
		}
		found[of.Unroutable()] = seen(targets)
	}

	return found
}

// targetsIn counts the unroutable messages of a ladder by the targets of their routing keys.
func targetsIn(ctx context.Context, s *cli.Session, l topology.Ladder) (map[string]int, error) {
	client, err := s.DLQ(ctx)
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

// openAPI is nil where no management API was given.
func openAPI(s *cli.Session) (*api, error) {
	client, err := s.ManagementClient("")
	if err != nil || client == nil {
		return nil, err
	}

	return &api{client: client}, nil
}
