package topologycmd

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/manifest"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

var (
	exportFormats  = []string{"definitions", "operator", "terraform"}
	mainQueueTypes = []string{"classic", "quorum"}
)

// mainQueueTypeFlag adds --main-queue-type, and checks it before the command runs.
func mainQueueTypeFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "main-queue-type", "classic", "type of exported main queues: classic (no argument, as "+
		"in watermill-amqp's configs) or quorum")
	cmd.PreRunE = func(*cobra.Command, []string) error { return choice("--main-queue-type", *to, mainQueueTypes) }
	_ = cmd.RegisterFlagCompletionFunc("main-queue-type", cobra.FixedCompletions(mainQueueTypes,
		cobra.ShellCompDirectiveNoFileComp))
}

// exporting is one run of export.
type exporting struct {
	*topologies
	format, mainQueueType string
	cluster               manifest.Cluster
}

func (c *topologies) exportCommand() *cobra.Command {
	e := &exporting{topologies: c}
	cmd := &cobra.Command{
		Use:   "export QUEUE|TOPIC=QUEUE...",
		Short: "Write a topology as code: RabbitMQ definitions, Kubernetes manifests or Terraform",
		Long: `Print all that the broker is to hold for main queues, for teams that keep it in a repository. The
command needs no broker. 'verify --against' compares such files with the policies later.

  definitions  a file for 'rabbitmqctl import_definitions'
  operator     manifests of RabbitMQ's Messaging Topology Operator 1.17 or later: Queue, Exchange,
               Binding and Policy. Queues have "deletionPolicy: retain", and outlive their resource.
  terraform    resources of the provider cyrilgdn/rabbitmq. Queues have prevent_destroy. A name that
               the provider cannot keep is an error: with @, in a binding with /, and with combining
               characters.

The output contains the main queue on the default exchange; for fanout exchanges use
Retrier.Definitions in the service. The virtual host comes from --vhost, else from the URI, else it is
/. Under "protect: arguments" the main queue is a quorum queue with these arguments, and under a
strategy other than copy with those that it needs. Under "protect: policy" it is a quorum queue with a
policy of the broker, which replaces any other policy that applies to the queue.

With --json: the objects, as plan --offline --json prints them. Definitions are always JSON.

Exit codes: 0 done; 1 the topology cannot be written in this format; 2 wrong usage.`,
		Example: `  amqpretry topology export --policies retry.yaml --main-queue-type quorum orders > definitions.json
  amqpretry topology export --format operator --cluster rabbit --namespace shop orders > topology.yaml
  amqpretry topology export --format terraform orders payments > topology.tf`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, flag := range []string{"cluster", "cluster-namespace", "namespace"} {
				if e.format != "operator" && cmd.Flags().Changed(flag) {
					return cli.Usage("--%s is for --format operator only", flag)
				}
			}

			return e.run(args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.format, "format", "definitions", "definitions, operator or terraform")
	flags.StringVar(&e.cluster.Name, "cluster", "", "operator: `name` of the RabbitmqCluster")
	flags.StringVar(&e.cluster.Namespace, "cluster-namespace", "",
		"operator: `namespace` of the RabbitmqCluster (default: that of the resources)")
	flags.StringVar(&e.cluster.ResourceNamespace, "namespace", "",
		"operator: `namespace` of the resources (default: left to kubectl)")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(exportFormats,
		cobra.ShellCompDirectiveNoFileComp))
	mainQueueTypeFlag(cmd, &e.mainQueueType)

	return cmd
}

func (e *exporting) run(args []string) error {
	if err := choice("--format", e.format, exportFormats); err != nil {
		return err
	}
	if e.format == "operator" && e.cluster.Name == "" {
		return cli.Usage("--format operator needs the name of the RabbitmqCluster: set --cluster")
	}
	topics, err := e.topics(args)
	if err != nil {
		return err
	}
	if r := planned(topics); e.session.JSON && e.format != "definitions" {
		return r.print(e.session)
	}
	text, err := e.write(topics)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(e.session.Out, text)

	return err
}

// write writes all that the broker is to hold.
func (e *exporting) write(topics []inspect.Topic) (string, error) {
	vhost, err := e.session.VHost()
	if err != nil {
		return "", err
	}

	var policies []topology.BrokerPolicy
	queues := make([]topology.MainQueue, len(topics))
	for i, t := range topics {
		queues[i] = topology.MainQueue{Plan: t.Plan, Arguments: mainArguments(e.mainQueueType, t, e.names())}
		if t.Protect() == config.ProtectionPolicy {
			policy, ok := t.Plan.MainPolicy(vhost)
			if !ok {
				policy = topology.ProtectPolicy(vhost, t.Plan.Queue, deadLetterQueue(t, e.names()))
			}
			policies = append(policies, policy)
		}
	}
	file, err := manifest.Definitions(vhost, queues, policies)
	if err != nil || e.format == "definitions" {
		return string(file), err
	}
	all, err := manifest.Read("", file, vhost)
	switch {
	case err != nil:
		return "", err
	case e.format == "operator":
		return manifest.Operator(all, e.cluster), nil
	default:
		return manifest.Terraform(all)
	}
}

func deadLetterQueue(t inspect.Topic, names topology.Names) string {
	return cmp.Or(t.Plan.DeadLetterQueue, names.WithDefaults().DeadLetterQueue(t.Plan.Queue))
}

// mainArguments are those with which a service declares its main queue.
func mainArguments(queueType string, t inspect.Topic, names topology.Names) amqp091.Table {
	arguments := amqp091.Table{}
	if queueType == amqp091.QueueTypeQuorum || t.Policy.Strategy.ByBroker() ||
		t.Policy.Protect == config.ProtectionPolicy { // which has no effect on a classic queue
		arguments[amqp091.QueueTypeArg] = amqp091.QueueTypeQuorum
	}
	switch {
	case t.Policy.Protect != config.ProtectionArguments:
		return arguments
	case t.Policy.Strategy.ByBroker():
		return t.Plan.WithMainArguments(arguments)
	}
	maps.Copy(arguments, topology.ProtectArguments(deadLetterQueue(t, names)))

	return arguments
}
