// Package groupcmd is the command group: what consumer groups have on the broker, and how they are
// renamed and removed without losing messages.
package groupcmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	g := &groups{session: s}
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List, rename and remove consumer groups",
		Long: `List what consumer groups have on the broker, rename a group, or remove it, without losing messages.

For each topic, a group has a queue that is bound to the exchange of the topic, such as orders_billing.
It has its own retry queues and dead-letter queue. --group-queue sets another pattern for the name.

The commands need the management API: AMQP shows neither bindings nor whether a queue is really empty.`,
	}
	s.ConnectionFlags(cmd)
	cmd.PersistentFlags().Var(cli.Text(&g.pattern), "group-queue", "`pattern` of the names of queues, as in "+
		"Options.GroupQueue of the services (default "+defaultPattern+")")
	cli.SharedNameFlag(cmd.PersistentFlags(), &g.shared)
	cmd.AddCommand(g.listCommand(), g.renameCommand(), g.removeCommand())

	return cmd
}

// groups are what all of these commands have in common.
type groups struct {
	session         *cli.Session
	pattern, shared string
}

const topicMark, groupMark, defaultPattern = "{topic}", "{group}", "{topic}_{group}"

func (g *groups) names() topology.Names { return topology.Names{Shared: g.shared}.WithDefaults() }

// check reads the pattern.
func (g *groups) check() error {
	if g.pattern == "" {
		g.pattern = defaultPattern
	}
	if strings.Count(g.pattern, topicMark) != 1 || strings.Count(g.pattern, groupMark) != 1 {
		return cli.Usage("--group-queue: %q: wanted %s and %s once each, such as %s", g.pattern, topicMark, groupMark,
			defaultPattern)
	}

	return nil
}

// queue is the name of the queue of a group for a topic.
func (g *groups) queue(topic, group string) string {
	return strings.NewReplacer(topicMark, topic, groupMark, group).Replace(g.pattern)
}

// groupOf is the group whose queue for a topic has this name.
func (g *groups) groupOf(topic, queue string) (group string, ok bool) {
	before, after, _ := strings.Cut(strings.Replace(g.pattern, topicMark, topic, 1), groupMark)
	group, begins := strings.CutPrefix(queue, before)
	group, ends := strings.CutSuffix(group, after)

	return group, begins && ends && group != ""
}

// checkNames checks the names of groups and topics.
func checkNames(names ...string) error {
	if slices.Contains(names, "") {
		return cli.Usage("found an empty name: wanted the names of groups and topics")
	}

	return nil
}
