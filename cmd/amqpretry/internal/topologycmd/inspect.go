package topologycmd

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// bindings tells whether a binding is there. It is nil without the management API: AMQP does not
// tell.
type bindings func(topology.Binding) (bool, error)

// inspect compares a plan with the broker, and changes nothing. AMQP compares the arguments of an
// object only by declaring it, so that is done with objects that are there already. The shared plan
// of a ladder has no main queue.
func inspect(b *broker, bound bindings, plan topology.Plan) ([]object, error) {
	objects, missing := []object{}, map[string]bool{}
	add := func(o object, err error) error {
		objects = append(objects, o)
		missing[o.Kind+o.Name] = o.State == stateMissing

		return err
	}

	if plan.Queue != "" {
		if err := add(inspectMain(b, plan)); err != nil {
			return nil, err
		}
		missing[kindQueue+plan.Queue] = objects[0].State == stateMissing
	}
	for _, x := range plan.Exchanges {
		if err := add(inspectExchange(b, x)); err != nil {
			return nil, err
		}
	}
	for _, q := range plan.Queues {
		if err := add(inspectQueue(b, q)); err != nil {
			return nil, err
		}
	}
	for _, x := range plan.Bindings {
		o := bindingObject(x)
		switch {
		case missing[kindExchange+x.Exchange], missing[kindQueue+x.Queue], missing[kindExchange+x.ToExchange]:
			o.State = stateMissing
		case bound == nil:
			o.State = stateUnseen
		default:
			found, err := bound(x)
			if err != nil {
				return nil, err
			}
			o.State = stateMissing
			if found {
				o.State = statePresent
			}
		}
		objects = append(objects, o)
	}

	return objects, nil
}

func inspectMain(b *broker, plan topology.Plan) (object, error) {
	o := mainQueue(plan)
	found, err := b.hasQueue(plan.Queue)
	switch {
	case err != nil:
		return o.unseen(err)
	case found:
		return o.with(statePresent, "declared by its service"), nil
	default:
		return o.with(stateMissing, "its service declares it"), nil
	}
}

func inspectExchange(b *broker, x topology.Exchange) (object, error) {
	o := exchangeObject(x)
	found, err := b.hasExchange(x.Name, x.Type)
	switch {
	case err != nil:
		return o.unseen(err)
	case !found:
		return o.with(stateMissing, ""), nil
	}
	only := topology.Plan{Exchanges: []topology.Exchange{x}}

	return o.compared(only.Declare(b), nil)
}

func inspectQueue(b *broker, q topology.Queue) (object, error) {
	o := queueObject(q)
	found, err := b.hasQueue(q.Name)
	switch {
	case err != nil:
		return o.unseen(err)
	case !found:
		return o.with(stateMissing, ""), nil
	}
	only := topology.Plan{Queues: []topology.Queue{q}}

	return o.compared(only.Declare(b), q.Arguments)
}

// unseen is an object at which the user may not look. Any other error is one of the whole
// inspection.
func (o object) unseen(err error) (object, error) {
	var access *topology.AccessError
	if err = topology.Explain("", o.Kind, o.Name, err); errors.As(err, &access) {
		return o.with(stateUnseen, "the user may not look at it: it needs a permission on it"), nil
	}

	return o, err
}

// compared reads the answer to a declaration of an object that is there.
func (o object) compared(err error, planned amqp091.Table) (object, error) {
	o = o.judged(err, planned)
	var other *topology.DeclareError
	if errors.As(err, &other) {
		return o, err
	}

	return o, nil
}

// contains tells whether a binding is among those that the broker has.
func contains(found []httpapi.Binding, wanted topology.Binding) bool {
	for _, b := range found {
		if b.Exchange == wanted.Exchange && b.Queue == wanted.Queue && b.ToExchange == wanted.ToExchange &&
			b.Key == wanted.Key && sameArguments(b.Arguments, wanted.Arguments) {
			return true
		}
	}

	return false
}

func sameArguments(a httpapi.Arguments, b amqp091.Table) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(map[string]any(a), map[string]any(b))
}

// knownBindings asks once for each exchange, as a ladder has many bindings of each.
func knownBindings(ctx context.Context, client *httpapi.Client) bindings {
	known := map[string][]httpapi.Binding{}

	return func(b topology.Binding) (bool, error) {
		found, asked := known[b.Exchange]
		if !asked {
			var err error
			if found, err = client.RoutesFrom(ctx, b.Exchange); err != nil {
				return false, err
			}
			known[b.Exchange] = found
		}

		return contains(found, b), nil
	}
}

// tellOwners completes what is said of exclusive queues of other connections. The API may not know
// them yet.
func tellOwners(ctx context.Context, client *httpapi.Client, objects []object) {
	for i := range objects {
		var exclusive *topology.ExclusiveError
		if !errors.As(objects[i].err, &exclusive) {
			continue
		}
		if queue, err := client.Queue(ctx, exclusive.Queue); err == nil && queue.Owner.Connection != "" {
			objects[i].Detail += " (" + queue.Owner.Connection + ")"
		}
	}
}

// inspectAll looks at everything, and for obsolete retry queues where the management API tells of
// them.
func (c *topologies) inspectAll(ctx context.Context, b *broker, targets []target) (report, error) {
	client, err := c.session.ManagementClient("")
	if err != nil {
		return report{}, err
	}
	var bound bindings
	if client != nil {
		bound = knownBindings(ctx, client)
	}

	r := report{API: client != nil}
	for _, t := range targets {
		objects, err := inspect(b, bound, t.plan)
		if err != nil {
			return report{}, err
		}
		if client != nil {
			tellOwners(ctx, client, objects)
		}
		if objects[0], err = c.compareMain(ctx, b, client, t, objects[0]); err != nil {
			return report{}, err
		}
		r.Queues = append(r.Queues, queueReport{Topic: t.Topic, Queue: t.Queue, Objects: objects})
	}
	for _, ladder := range ladders(targets) {
		objects, err := inspect(b, bound, ladder.Shared())
		if err != nil {
			return report{}, err
		}
		r.Ladders = append(r.Ladders, ladderReport{Name: ladder.Name(), Objects: objects})
	}
	if client == nil {
		return r, nil
	}

	obsolete, err := retire.Find(ctx, client, c.names(), plans(targets)...)
	if err != nil {
		return report{}, err
	}
	for _, o := range obsolete {
		r.addObsolete(o)
	}
	exchanges, err := retire.FindExchanges(ctx, client, c.names(), plans(targets)...)
	if err != nil {
		return report{}, err
	}
	for _, x := range exchanges {
		o := object{Kind: kindExchange, Name: x.Name, Type: amqp091.ExchangeHeaders}
		r.add(x.Queue, o.with(stateObsolete, "nothing dead-letters to it: 'amqpretry topology prune' deletes it"))
	}

	return r, nil
}

// addObsolete adds a retry queue to the main queue to which it leads back.
func (r *report) addObsolete(q retire.Queue) {
	main, _ := q.Arguments["x-dead-letter-routing-key"].(string)
	r.add(main, queueObject(q.Queue).with(stateObsolete,
		fmt.Sprintf("no policy has its delay of %s: 'amqpretry topology prune' deletes it", delayText(q.Queue))))
}

// add adds an object to those of a main queue.
func (r *report) add(main string, o object) {
	for i := range r.Queues {
		if r.Queues[i].Queue == main {
			r.Queues[i].Objects = append(r.Queues[i].Objects, o)
			return
		}
	}
}

// connect dials, for as long as the command runs.
func (c *topologies) connect(ctx context.Context) (*broker, func(), error) {
	connection, err := c.session.Dial(ctx)
	if err != nil {
		return nil, nil, err
	}

	return &broker{ctx: ctx, connection: connection}, func() { _ = connection.CloseDeadline(closeDeadline()) }, nil
}

func joinNames(objects []object) string {
	names := make([]string, len(objects))
	for i, o := range objects {
		names[i] = fmt.Sprintf("%s %q", o.Kind, o.Name)
	}

	return strings.Join(names, ", ")
}
