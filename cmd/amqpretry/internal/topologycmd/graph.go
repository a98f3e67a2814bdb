package topologycmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
)

var formats = []string{"mermaid", "dot", "text", "definitions"}

func (c *topologies) graphCommand() *cobra.Command {
	var format, mainQueueType string
	cmd := &cobra.Command{
		Use:   "graph QUEUE|TOPIC=QUEUE...",
		Short: "Draw a topology, or write it as RabbitMQ definitions, without a broker",
		Long: `Print the topology of main queues. The command needs no broker.

  mermaid      a Mermaid flowchart of each queue, for Markdown
  dot          a Graphviz graph of each queue
  text         one line for each object
  definitions  the file of 'amqpretry topology export'

With --json: the objects, as plan --offline --json prints them. Definitions are always JSON.

Exit codes: 0 done; 1 the topology cannot be drawn; 2 wrong usage.`,
		Example: `  amqpretry topology graph --policies retry.yaml orders
  amqpretry topology graph --format dot orders | dot -Tsvg > orders.svg
  amqpretry topology graph --format definitions --main-queue-type quorum orders > definitions.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			if format == "definitions" {
				return (&exporting{topologies: c, format: format, mainQueueType: mainQueueType}).run(args)
			}
			if err := choice("--format", format, formats); err != nil {
				return err
			}
			topics, err := c.topics(args)
			if err != nil {
				return err
			}
			if r := planned(topics); c.session.JSON {
				return r.print(c.session)
			}
			_, err = fmt.Fprint(c.session.Out, draw(format, topics))

			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "mermaid, dot, text or definitions")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	mainQueueTypeFlag(cmd, &mainQueueType)

	return cmd
}

func choice(flag, given string, wanted []string) error {
	if slices.Contains(wanted, given) {
		return nil
	}

	return cli.Usage("%s: wanted %s, found %q", flag, strings.Join(wanted, ", "), given)
}

func draw(format string, topics []inspect.Topic) string {
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

	return strings.Join(drawings, "\n")
}

// safe are lines of which none does anything to a terminal, without the end of the last one.
func safe(text string) string { return cli.SafeLines(strings.TrimSuffix(text, "\n")) }
