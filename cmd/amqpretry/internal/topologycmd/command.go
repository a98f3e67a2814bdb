// Package topologycmd is the command topology: what the broker holds for retries, planned, applied,
// checked, drawn and pruned.
package topologycmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	c := &topologies{session: s}
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Plan, declare, check, draw and prune retry queues and dead-letter queues",
		Long: `Plan, declare, check, draw and prune retry exchanges, retry queues, dead-letter queues and their
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
	cmd.PersistentFlags().StringVar(&c.shared, "shared-name", "", "prefix of the names of shared retry queues, as in "+
		"Names.Shared of the services (default retry)")
	cmd.AddCommand(c.planCommand(), c.applyCommand(), c.verifyCommand(), c.graphCommand(), c.pruneCommand())
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

// target is a main queue with what its policy makes of it.
type target struct {
	cli.Target
	policy config.Policy
	plan   topology.Plan
}

func (c *topologies) names() topology.Names { return topology.Names{Shared: c.shared} }

// targets reads arguments, and reports everything that is wrong with them at once.
func (c *topologies) targets(args []string) ([]target, error) {
	given, err := cli.Targets(args)
	if err != nil {
		return nil, err
	}
	policies, err := c.session.Policies()
	if err != nil {
		return nil, err
	}

	return plansOf(given, policies, c.names())
}

func plansOf(given []cli.Target, policies config.Policies, names topology.Names) ([]target, error) {
	var errs []error
	targets := make([]target, len(given))
	for i, g := range given {
		policy := policies.For(g.Topic)
		plan, err := topology.New(g.Queue, policy, names)
		errs = append(errs, err)
		targets[i] = target{g, policy, plan}
	}
	err := errors.Join(errs...)
	if err == nil { // else it would only be said again
		err = topology.Check(plans(targets)...)
	}
	if err != nil { // policies are valid, so it is about the names
		return nil, cli.Usage("%w", err)
	}

	return targets, nil
}

func plans(targets []target) []topology.Plan {
	all := make([]topology.Plan, len(targets))
	for i, t := range targets {
		all[i] = t.plan
	}

	return all
}

// ladders are those of all targets, each once.
func ladders(targets []target) []*topology.Ladder {
	var all []*topology.Ladder
	known := map[string]bool{}
	for _, t := range targets {
		if ladder := t.plan.Ladder; ladder != nil && !known[ladder.Name()] {
			known[ladder.Name()] = true
			all = append(all, ladder)
		}
	}

	return all
}
