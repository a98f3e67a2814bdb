package topologycmd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

var (
	formats        = []string{"mermaid", "dot", "text", "definitions"}
	mainQueueTypes = []string{"classic", "quorum"}
)

func (c *topologies) graphCommand() *cobra.Command {
	var format, mainQueueType string
	cmd := &cobra.Command{
		Use:   "graph QUEUE|TOPIC=QUEUE...",
		Short: "Draw a topology, or write it as RabbitMQ definitions, without a broker",
		Long: `Print the topology of main queues. The command needs no broker.

  mermaid      a Mermaid flowchart of each queue, for Markdown
  dot          a Graphviz graph of each queue
  text         one line for each object
  definitions  a file for 'rabbitmqctl import_definitions' with all objects of a service. It contains
               the main queue on the default exchange; for fanout exchanges use Retrier.Definitions
               in the service. The virtual host comes from --vhost, else from the URI, else it is /.
               Under "protect: arguments" the main queue is a quorum queue with these arguments, and under
               a strategy other than copy with those that it needs.

With --json: the objects, as plan --offline --json prints them. Definitions are always JSON.

Exit codes: 0 done; 1 the topology cannot be drawn; 2 wrong usage.`,
		Example: `  amqpretry topology graph --policies retry.yaml orders
  amqpretry topology graph --format dot orders | dot -Tsvg > orders.svg
  amqpretry topology graph --format definitions --main-queue-type quorum orders > definitions.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := choice("--format", format, formats); err != nil {
				return err
			}
			if err := choice("--main-queue-type", mainQueueType, mainQueueTypes); err != nil {
				return err
			}
			topics, err := c.topics(args)
			if err != nil {
				return err
			}
			if r := planned(topics); c.session.JSON && format != "definitions" {
				return r.print(c.session)
			}
			text, err := c.draw(format, mainQueueType, topics)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.session.Out, text)

			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "mermaid, dot, text or definitions")
	cmd.Flags().StringVar(&mainQueueType, "main-queue-type", "classic", "type of the main queues in the definitions: "+
		"classic (no argument, as in watermill-amqp's configs) or quorum")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("main-queue-type", cobra.FixedCompletions(mainQueueTypes,
		cobra.ShellCompDirectiveNoFileComp))

	return cmd
}

func choice(flag, given string, wanted []string) error {
	if slices.Contains(wanted, given) {
		return nil
	}

	return cli.Usage("%s: wanted %s, found %q", flag, strings.Join(wanted, ", "), given)
}

func (c *topologies) draw(format, mainQueueType string, topics []inspect.Topic) (string, error) {
	if format == "definitions" {
		return c.definitions(mainQueueType, topics)
	}

	drawings := make([]string, len(topics))
	for i, t := range topics {
		switch format {
		case "dot":
			drawings[i] = t.Plan.DOT()
		case "text":
			drawings[i] = safe(t.Plan.String()) + "\n"
		default:
			drawings[i] = t.Plan.Mermaid()
		}
	}

	return strings.Join(drawings, "\n"), nil
}

// safe are lines of which none does anything to a terminal, without the end of the last one.
func safe(text string) string { return cli.SafeLines(strings.TrimSuffix(text, "\n")) }

func (c *topologies) definitions(mainQueueType string, topics []inspect.Topic) (string, error) {
	vhost, err := c.session.VHost()
	if err != nil {
		return "", err
	}

	queues := make([]topology.MainQueue, len(topics))
	for i, t := range topics {
		queues[i] = topology.MainQueue{Plan: t.Plan, Arguments: mainArguments(mainQueueType, t, c.names())}
	}
	file, err := topology.Definitions(vhost, queues...)

	return string(file), err
}

// mainArguments are those with which a service declares its main queue.
func mainArguments(queueType string, t inspect.Topic, names topology.Names) amqp091.Table {
	arguments := amqp091.Table{}
	if queueType == amqp091.QueueTypeQuorum || t.Policy.Strategy.ByBroker() {
		arguments[amqp091.QueueTypeArg] = amqp091.QueueTypeQuorum
	}
	switch {
	case t.Policy.Protect != config.ProtectionArguments:
		return arguments
	case t.Policy.Strategy.ByBroker():
		return t.Plan.WithMainArguments(arguments)
	}

	deadLetterQueue := cmp.Or(t.Plan.DeadLetterQueue, names.WithDefaults().DeadLetterQueue(t.Plan.Queue))
	maps.Copy(arguments, topology.ProtectArguments(deadLetterQueue))

	return arguments
}
