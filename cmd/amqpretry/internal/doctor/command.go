// Package doctor is the command doctor: it looks at a broker, and says what is wrong with it for retries, what that
// means, and what fixes it.
//
// Looking (gather, over AMQP and the management API) gives [Facts], plain values. Judging them (diagnose) is a table of
// small pure functions.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/management"
)

// patience bounds the whole look over AMQP, as some questions about a queue whose nodes are down have no answer.
const patience = 2 * time.Minute

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	var shared string
	cmd := &cobra.Command{
		Use:   "doctor [QUEUE|TOPIC=QUEUE ...]",
		Short: "Look for what keeps retries from being safe, and say what fixes it",
		Long: `Look at the broker and at the queues of some main queues, and tell what is wrong, what that means,
and the command that fixes it.

An argument is a main queue, or TOPIC=QUEUE where the topic, whose policy holds, has another name
than its queue. Without any, only the broker itself is looked at.

It looks at: version and features of the broker; alarms and nodes; the permissions of the user;
limits of the virtual host; whether all queues, exchanges and bindings are there, with the arguments
of the policy file; whether they run, with a majority of their nodes; classic queues on the way;
policies and operator policies that weaken a promise (message-ttl, overflow, expires, max-length,
delivery-limit); delivery limits of main queues, and what counts against them; dead-letter exchanges
that lead nowhere or back; messages that are stuck; consumers on retry queues; dead letters; and
retry queues that no policy uses any more.

It changes nothing. What is declared exists already, in which case a declaration only compares; what
it publishes, to be told of permissions and alarms, is rolled back.

The user is that of the broker's URI: give the one of the service, or the permissions are another's.
Most of it only the management API tells (AMQP_MANAGEMENT_URL, a user with the tag monitoring, or
administrator for permissions). What could not be seen is told.

A problem breaks a promise: messages can be lost, or do not move. A warning is one step from that,
or work for a person. A note is good to know. What is in the fixes is for a shell; read what begins
with # first. rabbitmqctl is for a node of the broker.

With --json: {"version", "virtual_host", "user", "counts": {"problem", "warning", "unseen", "note",
"ok"}, "findings": [{"check", "severity", "object", "found", "means", "fix"}]}; every check has at
least one finding, ok if there is nothing.

Exit codes: 0 neither a problem nor a warning; 3 a problem or a warning; 1 it could not look; 2
usage.`,
		Example: `  amqpretry doctor
  amqpretry doctor orders payments
  export AMQP_MANAGEMENT_URL=http://monitor:password@localhost:15672
  amqpretry doctor --policies retry.yaml orders events=events_billing
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
	cmd.Flags().StringVar(&shared, "shared-name", "", "what the names of shared retry queues begin with: "+
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
	f, err = look(ctx, s, f)
	if err != nil {
		return err
	}

	findings := diagnose(f)
	if err := report(s, f, findings); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
		return err
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
	bounded, cancel := context.WithTimeout(ctx, patience)
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
	f = gather(bounded, f, newProber(connection, publisher), a)
	if ctx.Err() != nil {
		return f, context.Cause(ctx)
	}

	return f, nil
}

// openAPI is nil where no management API was given.
func openAPI(s *cli.Session) (*api, error) {
	m, ok, err := s.Management()
	if err != nil || !ok {
		return nil, err
	}
	client, err := management.New(m.URL, cmp.Or(m.VHost, "/"), m.HTTPClient)
	if err != nil {
		return nil, err
	}

	return &api{client: client, management: m}, nil
}
