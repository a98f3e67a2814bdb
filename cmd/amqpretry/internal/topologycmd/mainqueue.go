package topologycmd

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// compareMain compares a main queue that is there with what its strategy needs. The management API
// shows its arguments and its policies. Without it, the answer to a declaration of these arguments
// tells the first one that differs, which may be one that the strategy does not need.
func (c *topologies) compareMain(b *inspect.Broker, f inspect.Facts, t inspect.Topic, o object) (object, error) {
	byPolicy := t.Protect() == config.ProtectionPolicy
	details := f.Queues[t.Plan.Queue].Details
	switch {
	case o.State != inspect.Present, t.Plan.MainArguments == nil:
		return o, nil
	case details.Known:
		return c.compareByAPI(details.Value, t, o)
	case byPolicy:
		return o.with(inspect.Untold, "exists; only the management API shows the policy that its strategy needs"), nil
	}
	err := b.Declare(topology.Plan{Queues: []topology.Queue{{Name: t.Plan.Queue, Arguments: t.Plan.MainArguments}}})
	if other := (*topology.DeclareError)(nil); errors.As(err, &other) {
		return o, err
	}
	judged := o.judged(err)
	if judged.State != inspect.Conflict || judged.Argument == "" {
		return judged, nil
	}
	_, needed := t.Plan.MainArguments[judged.Argument]
	if !needed && len(t.Plan.MainConflicts(amqp091.Table{judged.Argument: judged.Found})) == 0 {
		return o.with(inspect.Untold,
			fmt.Sprintf("exists, but was not compared: it has %s, and the management API shows "+
				"the rest", judged.Argument)), nil
	}

	return c.explained(t, httpapi.Queue{Name: t.Plan.Queue}, judged)
}

func (c *topologies) compareByAPI(q httpapi.Queue, t inspect.Topic, o object) (object, error) {
	differences := t.Differences(q)
	switch {
	case q.Effective == nil && (len(differences) == 0 || t.Protect() == config.ProtectionPolicy):
		return o.with(inspect.Untold, "exists; the management API has no statistics of it yet, which tell its "+
			"policies"), nil
	case len(differences) == 0:
		return o, nil
	}
	o = o.differing(differences)
	if !slices.ContainsFunc(differences, inspect.Difference.FromPolicy) {
		return c.explained(t, q, o)
	}
	commands, err := c.commands()
	words := append(cli.TopologyFlags(c.session.PolicyFile(), c.shared), t.Argument())
	o.Fix = "# A policy of the broker says otherwise. This prints the command that corrects it:\n" +
		commands.AMQPRetry("doctor", words...)

	return o, err
}

// explained adds how a main queue gets what its strategy needs.
func (c *topologies) explained(t inspect.Topic, q httpapi.Queue, o object) (object, error) {
	commands, err := c.commands()
	if err != nil {
		return o, err
	}
	recreate := commands.Recreate(t.Plan.Queue)
	policy, ok := inspect.Policy(t.Plan, commands.VirtualHost, q)
	switch {
	case !ok:
		o.Fix = "# The broker cannot change the arguments of a queue. To recreate it:\n" + recreate
	case t.Protect() == config.ProtectionPolicy:
		o.Fix = policy.String()
	default:
		o.Fix = "# The broker cannot change the arguments of a queue. Either set protect: policy in the policy " +
			"file, and give it a policy of the broker:\n" + policy.String() + "\n# Or recreate it:\n" + recreate
	}

	return o, nil
}
