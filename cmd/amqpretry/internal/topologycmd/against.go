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
	objects []manifest.Object
	names   topology.Names
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
	w.addUnneeded(&r, topics)
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
		objects, err := manifest.Read(file, data, vhost)
		errs = append(errs, err)
		w.objects = append(w.objects, objects...)
	}

	return w, errors.Join(errs...)
}

// compare is an object as the files have it. If they have it more than once, each must be as
// planned.
func (w written) compare(o inspect.Object) object {
	found := line(o).with(inspect.Missing, "")
	for _, f := range w.objects {
		isQueue, isExchange := o.IsQueue() && f.Kind == manifest.Queue, o.Exchange != nil && f.Kind == manifest.Exchange
		var all []inspect.Difference
		switch {
		case o.Binding != nil && same(*o.Binding, f):
		case isQueue && f.Name == o.Name:
			all = append(attributes("", f), w.ofQueue(o, f)...)
		case isExchange && f.Name == o.Name:
			all = append(attributes(o.Exchange.Type, f), differences(o.Exchange.Arguments, f.Arguments)...)
		default:
			continue
		}
		switch {
		case found.State == inspect.Conflict:
		case len(all) > 0:
			found = found.differing(all)
			found.Where = f.Where
		case found.State == inspect.Missing:
			found.State, found.Where = inspect.Present, f.Where
		}
	}

	return found
}

// attributes compares a durable queue, or a durable exchange of a type.
func attributes(exchangeType string, f manifest.Object) []inspect.Difference {
	return differences(
		amqp091.Table{"type": exchangeType, "durable": true, "auto_delete": false, "internal": false},
		map[string]any{"type": f.Type, "durable": f.Durable, "auto_delete": f.AutoDelete, "internal": f.Internal})
}

func same(wanted topology.Binding, b manifest.Object) bool {
	kind := rabbitmq.KindQueue
	if wanted.ToExchange != "" {
		kind = rabbitmq.KindExchange
	}

	return b.Kind == manifest.Binding && b.Source == wanted.Exchange && b.RoutingKey == wanted.Key &&
		b.DestinationType == kind && b.Destination == wanted.Queue+wanted.ToExchange &&
		len(differences(wanted.Arguments, b.Arguments)) == 0
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
func (w written) ofQueue(o inspect.Object, q manifest.Object) []inspect.Difference {
	if o.Role != inspect.RoleMain {
		return differences(o.Queue.Arguments, q.Arguments)
	}
	queueType, _ := typed(amqp091.QueueTypeArg, q.Arguments[amqp091.QueueTypeArg]).(string)
	main := httpapi.Queue{Name: q.Name, Type: queueType, Arguments: q.Arguments, Effective: w.policy(q.Name, queueType)}
	protect := o.Topic.Protect()
	protected := protect == config.ProtectionArguments || protect == config.ProtectionPolicy
	if o.Topic.Plan.MainArguments != nil || !protected {
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
	var best manifest.Object
	for _, p := range w.objects {
		pattern, err := regexp.Compile(inBytes(p.Pattern))
		applies := slices.Contains([]string{"", "all", "queues", queueType + "_queues"}, p.ApplyTo)
		applies = applies && p.Kind == manifest.Policy && err == nil && pattern.MatchString(inBytes(queue))
		if applies && (best.Name == "" || p.Priority > best.Priority) {
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

// addUnneeded adds retry queues of main queues that no policy uses, and bindings of exchanges of
// their own that are not planned.
func (w written) addUnneeded(r *report, topics []inspect.Topic) {
	unneeded := func(main string, o object, at string) {
		o.Where = at
		r.add(main, o.with(inspect.Obsolete, "no policy needs it: "+at))
	}
	var queues []httpapi.Queue
	where := map[string]string{}
	for _, q := range w.objects {
		if q.Kind == manifest.Queue {
			queues = append(queues, httpapi.Queue{Name: q.Name, Arguments: q.Arguments})
			where[q.Name] = q.Where
		}
	}
	for _, q := range retire.Among(queues, w.names, inspect.Plans(topics)...) {
		main, _ := q.Arguments["x-dead-letter-routing-key"].(string)
		unneeded(main, queueObject(q.Queue), where[q.Name])
	}
	for _, t := range topics {
		for _, b := range w.objects {
			own := slices.ContainsFunc(t.Plan.Exchanges, func(x topology.Exchange) bool {
				return !x.Shared && x.Name == b.Source
			})
			if own && !slices.ContainsFunc(t.Plan.Bindings, func(p topology.Binding) bool { return same(p, b) }) {
				unneeded(t.Plan.Queue, object{Kind: kindBinding, Name: b.Source + " -> " + b.Destination,
					Arguments: amqp091.Table(b.Arguments)}, b.Where)
			}
		}
	}
}
