package topologycmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/mainqueue"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// compareMain compares a main queue that is there with what its strategy needs. The management API
// shows its arguments and its policies. Without it, the answer to a declaration of these arguments
// tells the first one that differs, which may be one that the strategy does not need.
func (c *topologies) compareMain(ctx context.Context, b *broker, client *httpapi.Client, t target,
	o object) (object, error) {
	switch {
	case o.State != statePresent, t.plan.MainArguments == nil:
		return o, nil
	case client != nil:
		return c.compareByAPI(ctx, client, t, o)
	case t.policy.Protect == config.ProtectionPolicy:
		return o.with(stateUnseen, "exists; only the management API shows the policy that its strategy needs"), nil
	}
	only := topology.Plan{Queues: []topology.Queue{{Name: t.Queue, Arguments: t.plan.MainArguments}}}
	judged, err := o.compared(only.Declare(b), t.plan.MainArguments)
	if err != nil || judged.State != stateConflict || judged.Argument == "" {
		return judged, err
	}
	_, needed := t.plan.MainArguments[judged.Argument]
	if !needed && len(t.plan.MainConflicts(amqp091.Table{judged.Argument: judged.Found})) == 0 {
		return o.with(stateUnseen, fmt.Sprintf("exists, but was not compared: it has %s, and the management API shows "+
			"the rest", judged.Argument)), nil
	}

	return c.explained(t, httpapi.Queue{Name: t.Queue}, judged)
}

func (c *topologies) compareByAPI(ctx context.Context, client *httpapi.Client, t target, o object) (object, error) {
	q, err := client.Queue(ctx, t.Queue)
	if err != nil {
		return o, err
	}
	differences := mainqueue.Differences(t.plan, t.policy.Protect, q)
	switch {
	case len(differences) > 0 && (q.Effective != nil || t.policy.Protect != config.ProtectionPolicy):
		for _, d := range differences {
			o.Differences = append(o.Differences, d.String())
		}
		o = o.with(stateConflict, o.Differences[0])
		if more := len(differences) - 1; more > 0 {
			o.Detail += fmt.Sprintf("; and %d more", more)
		}
		first := differences[0]
		o.Argument, o.Wanted = first.Argument, mainqueue.Spelled(first.Wanted)
		o.Found = mainqueue.Spelled(first.Found)
		for _, d := range differences {
			if d.FromPolicy() {
				o.Fix = "# A policy of the broker says otherwise. This prints the command that corrects it:\n" +
					c.amqpretry("doctor", c.policyWords(t.asArgument())...)
				return o, nil
			}
		}

		return c.explained(t, q, o)
	case q.Effective == nil:
		return o.with(stateUnseen, "exists; the management API has no statistics of it yet, which tell its "+
			"policies"), nil
	default:
		return o, nil
	}
}

// explained adds how a main queue gets what its strategy needs.
func (c *topologies) explained(t target, q httpapi.Queue, o object) (object, error) {
	vhost, err := c.session.VHost()
	if err != nil {
		return o, err
	}
	recreate := mainqueue.Commands{AMQPRetry: c.amqpretry, Ctl: func(command string, words ...string) string {
		option := "-p " + shell.Quote(vhost)
		if strings.HasPrefix(vhost, "-") {
			option = "--vhost=" + shell.Quote(vhost)
		}

		return strings.Join(append([]string{"rabbitmqctl", command, option}, words...), " ")
	}}.Recreate(t.Queue)
	policy, ok := mainqueue.Policy(t.plan, vhost, q)
	switch {
	case !ok:
		o.Fix = "# The broker cannot change the arguments of a queue. To recreate it:\n" + recreate
	case t.policy.Protect == config.ProtectionPolicy:
		o.Fix = policy.String()
	default:
		o.Fix = "# The broker cannot change the arguments of a queue. Either set protect: policy in the policy " +
			"file, and give it a policy of the broker:\n" + policy.String() + "\n# Or recreate it:\n" + recreate
	}

	return o, nil
}

// amqpretry is a command of this program for the same virtual host; the last word is the name of a
// queue, or an argument that has one.
func (c *topologies) amqpretry(command string, words ...string) string {
	line := []string{"amqpretry", command}
	for _, flag := range c.session.Again() {
		line = append(line, shell.Quote(flag))
	}
	last := len(words) - 1
	line = append(line, words[:last]...)
	if strings.HasPrefix(words[last], "-") {
		line = append(line, "--")
	}

	return strings.Join(append(line, shell.Quote(words[last])), " ")
}

// policyWords are the flags with which a command sees the same topology.
func (c *topologies) policyWords(words ...string) []string {
	var flags []string
	if file := c.session.PolicyFile(); file != "" {
		flags = append(flags, "--policies", shell.Quote(file))
	}
	if c.shared != "" {
		flags = append(flags, "--shared-name", shell.Quote(c.shared))
	}

	return append(flags, words...)
}

// asArgument is the target as it is given on a command line.
func (t target) asArgument() string {
	if t.Topic == t.Queue {
		return t.Queue
	}

	return t.Topic + "=" + t.Queue
}
