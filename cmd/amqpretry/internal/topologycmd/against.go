package topologycmd

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/manifest"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// written is what files have for a virtual host.
type written struct {
	manifest.Topology
	names topology.Names
}

// against compares files as check compares the broker.
func (c *topologies) against(args, files []string) error {
	topics, err := c.topics(args)
	if err != nil {
		return err
	}
	w, err := c.written(files)
	if err != nil {
		return err
	}
	r := reported(topics, w.compare)
	for _, t := range topics {
		w.addUnneeded(&r, t)
	}
	if err := cli.Read(r.print(c.session)); err != nil {
		return err
	}
	if differs(&r) {
		return &cli.ExitError{Code: cli.ExitFound}
	}

	return nil
}

func (c *topologies) written(files []string) (written, error) {
	w := written{names: c.names()}
	vhost, err := c.session.VHost()
	if err != nil {
		return w, err
	}
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t, err := manifest.Read(file, data, vhost)
		errs = append(errs, err)
		w.Exchanges, w.Queues = append(w.Exchanges, t.Exchanges...), append(w.Queues, t.Queues...)
		w.Bindings, w.Policies = append(w.Bindings, t.Bindings...), append(w.Policies, t.Policies...)
	}
	w.Exchanges = slices.DeleteFunc(w.Exchanges, func(x manifest.Exchange) bool { return x.VHost != vhost })
	w.Queues = slices.DeleteFunc(w.Queues, func(q manifest.Queue) bool { return q.VHost != vhost })
	w.Bindings = slices.DeleteFunc(w.Bindings, func(b manifest.Binding) bool { return b.VHost != vhost })
	w.Policies = slices.DeleteFunc(w.Policies, func(p manifest.Policy) bool { return p.VHost != vhost })

	return w, errors.Join(errs...)
}

// compare is an object as the files have it. If they have it more than once, each must be as
// planned.
func (w written) compare(o inspect.Object) object {
	found := line(o).with(inspect.Missing, "")
	see := func(where string, differences []inspect.Difference) {
		switch {
		case found.State == inspect.Conflict:
		case len(differences) > 0:
			found = found.differing(differences)
			found.Where = where
		case found.State == inspect.Missing:
			found.State, found.Where = inspect.Present, where
		}
	}
	switch {
	case o.Exchange != nil:
		for _, x := range w.Exchanges {
			if x.Name == o.Name {
				wanted := amqp091.Table{"type": o.Exchange.Type, "durable": true, "auto_delete": false, "internal": false}
				has := map[string]any{"type": x.Type, "durable": x.Durable, "auto_delete": x.AutoDelete,
					"internal": x.Internal}
				see(x.Where, append(differences(wanted, has), differences(o.Exchange.Arguments, x.Arguments)...))
			}
		}
	case o.Binding != nil:
		for _, b := range w.Bindings {
			if same(*o.Binding, b) {
				see(b.Where, nil)
			}
		}
	default:
		for _, q := range w.Queues {
			if q.Name == o.Name {
				all := differences(amqp091.Table{"durable": true, "auto_delete": false},
					map[string]any{"durable": q.Durable, "auto_delete": q.AutoDelete})
				see(q.Where, append(all, w.ofQueue(o, q)...))
			}
		}
	}

	return found
}

func same(wanted topology.Binding, b manifest.Binding) bool {
	kind := rabbitmq.KindQueue
	if wanted.ToExchange != "" {
		kind = rabbitmq.KindExchange
	}

	return b.Source == wanted.Exchange && b.Destination == wanted.Queue+wanted.ToExchange && b.DestinationType == kind &&
		b.RoutingKey == wanted.Key && len(differences(wanted.Arguments, b.Arguments)) == 0
}

// differences of all arguments, in order. A queue without a type is classic.
func differences(wanted amqp091.Table, found map[string]any) []inspect.Difference {
	keys := maps.Clone(map[string]any(wanted))
	if keys == nil {
		keys = map[string]any{}
	}
	maps.Copy(keys, found)
	var all []inspect.Difference
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		a, b := wanted[key], found[key]
		if !rabbitmq.SameArgument(typed(key, a), typed(key, b)) {
			all = append(all, inspect.Difference{Argument: key, Wanted: a, Found: b})
		}
	}

	return all
}

func typed(key string, value any) any {
	if key == amqp091.QueueTypeArg && value == nil {
		return amqp091.QueueTypeClassic
	}

	return value
}

// ofQueue compares the arguments of a queue: of a main queue those that it needs, as they are in
// force with the policies in the files.
func (w written) ofQueue(o inspect.Object, q manifest.Queue) []inspect.Difference {
	if o.Role != inspect.RoleMain {
		return differences(o.Queue.Arguments, q.Arguments)
	}
	queueType, _ := typed(amqp091.QueueTypeArg, q.Arguments[amqp091.QueueTypeArg]).(string)
	main := httpapi.Queue{Name: q.Name, Type: queueType, Arguments: q.Arguments, Effective: w.policy(q.Name, queueType)}
	protect := o.Topic.Protect()
	if o.Topic.Plan.MainArguments != nil || protect != config.ProtectionArguments && protect != config.ProtectionPolicy {
		return o.Topic.Differences(main)
	}
	found := q.Arguments
	if protect == config.ProtectionPolicy {
		found = main.InForce()
	}
	wanted := topology.ProtectArguments(deadLetterQueue(o.Topic, w.names))

	return slices.DeleteFunc(differences(wanted, found), func(d inspect.Difference) bool { return d.Wanted == nil })
}

// policy is the definition of the policy that applies to a queue.
func (w written) policy(queue, queueType string) httpapi.Arguments {
	var best manifest.Policy
	for _, p := range w.Policies {
		pattern, err := regexp.Compile(inBytes(p.Pattern))
		applies := slices.Contains([]string{"all", "queues", queueType + "_queues"}, p.ApplyTo)
		if err == nil && applies && pattern.MatchString(inBytes(queue)) && (best.Name == "" || p.Priority > best.Priority) {
			best = p
		}
	}

	return best.Definition
}

// inBytes has a character for each byte of a text, as the broker matches bytes.
func inBytes(text string) string {
	characters := make([]rune, len(text))
	for i := range len(text) {
		characters[i] = rune(text[i])
	}

	return string(characters)
}

// addUnneeded adds retry queues of a main queue that no policy uses, and bindings of its own
// exchanges that are not planned.
func (w written) addUnneeded(r *report, t inspect.Topic) {
	queues := make([]httpapi.Queue, len(w.Queues))
	where := map[string]string{}
	for i, q := range w.Queues {
		queues[i] = httpapi.Queue{Name: q.Name, Arguments: q.Arguments}
		where[q.Name] = q.Where
	}
	unneeded := func(o object, at string) {
		o.Where = at
		r.add(t.Plan.Queue, o.with(inspect.Obsolete, "no policy needs it: "+at))
	}
	for _, q := range retire.Among(queues, w.names, t.Plan) {
		unneeded(queueObject(q.Queue), where[q.Name])
	}
	own := map[string]bool{}
	for _, x := range t.Plan.Exchanges {
		own[x.Name] = !x.Shared
	}
	for _, b := range w.Bindings {
		planned := slices.ContainsFunc(t.Plan.Bindings, func(p topology.Binding) bool { return same(p, b) })
		if own[b.Source] && !planned {
			unneeded(object{Kind: kindBinding, Name: b.Source + " -> " + b.Destination,
				Arguments: amqp091.Table(b.Arguments)}, b.Where)
		}
	}
}
