// Package topologycmd is the command topology: what the broker holds for retries, planned, applied,
// checked, drawn, exported and pruned.
package topologycmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	c := &topologies{session: s}
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Plan, declare, check, draw, export and prune retry queues and dead-letter queues",
		Long: `Plan, declare, check, draw, export and prune retry exchanges, retry queues, dead-letter queues and their
bindings, from a policy file and the names of main queues.

An argument is a main queue, or TOPIC=QUEUE if the topic of the policy has another name than the
queue, as with a fanout exchange: events=events_billing. The first = separates the two.

With exact delays (strategy: ladder) a main queue has a landing queue in place of retry queues, and
messages wait in a ladder: more than a hundred objects that all services of a virtual host share. The
commands look at it once, and print it in one line with what is missing or in conflict.

Services declare their topology themselves. These commands are for checks before and after a change,
for operators who provision the broker, and for monitoring. They never declare, change or delete a
main queue: it belongs to its service.`,
	}
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	cli.SharedNameFlag(cmd.PersistentFlags(), &c.shared)
	cmd.AddCommand(c.planCommand(), c.applyCommand(), c.verifyCommand(), c.graphCommand(), c.exportCommand(),
		c.pruneCommand())
	for _, child := range cmd.Commands() {
		s.CompleteQueues(child, true, cli.MainQueues)
	}

	return cmd
}

// topologies are what all of these commands have in common.
type topologies struct {
	session *cli.Session
	shared  string
}

func (c *topologies) names() topology.Names { return topology.Names{Shared: c.shared} }

// topics reads arguments, and reports everything that is wrong with them at once.
func (c *topologies) topics(args []string) ([]inspect.Topic, error) {
	given, err := cli.Targets(args)
	if err != nil {
		return nil, err
	}
	policies, err := c.session.Policies()
	if err != nil {
		return nil, err
	}

	return c.planned(given, policies)
}

func (c *topologies) planned(given []cli.Target, policies config.Policies) ([]inspect.Topic, error) {
	topics, err := inspect.Topics(given, policies, c.names())
	if err != nil { // policies are valid, so it is about the names
		return nil, cli.Usage("%w", err)
	}

	return topics, nil
}

// patience is how long the broker may take for one answer. RabbitMQ from 4.0 on takes a minute to
// tell of a classic queue that its node is down; of a quorum queue without leader it may tell
// nothing at all.
//
// Upstream: a declaration of a classic queue whose node is down takes a minute.
const patience = 90 * time.Second

// connect dials, for as long as the command runs.
func (c *topologies) connect(ctx context.Context) (*inspect.Broker, error) {
	return inspect.Connect(ctx, c.session.Dial, patience)
}

// commands go to the same virtual host.
func (c *topologies) commands() (cli.Commands, error) {
	vhost, err := c.session.VHost()
	commands := cli.Commands{VirtualHost: vhost}
	for _, flag := range c.session.Again() {
		commands.Again = append(commands.Again, shell.Quote(flag))
	}

	return commands, err
}
