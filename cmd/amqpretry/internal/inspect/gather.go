package inspect

import (
	"context"
	"errors"
	"slices"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// NoAPI is why things that only the management API tells are not seen.
const NoAPI = "this needs the management API: set AMQP_MANAGEMENT_URL, or --management-url"

// look is one gathering of facts.
type look struct {
	*Facts
	ctx    context.Context
	broker *Broker
	// client is nil without a management API. why is why it is not asked any more.
	client *httpapi.Client
	why    string
	// ended is why nothing is asked any more; nil while it is.
	ended func() error
	// first is the first error that is not about one object alone. With strict nothing is asked
	// after it.
	first  error
	strict bool
}

// Compare looks at what topics and their ladders should have, and no further than that. The first
// error that is not about one object alone ends it. client is nil without a management API.
func Compare(ctx context.Context, f Facts, broker *Broker, client *httpapi.Client) (Facts, error) {
	f.Queues, f.Exchanges = map[string]Queue{}, map[string]Exchange{}
	l := &look{Facts: &f, ctx: ctx, broker: broker, client: client, ended: broker.Ended, strict: true}
	groups := [][]Object{}
	for _, t := range f.Topics {
		groups = append(groups, t.Objects())
	}
	for _, ladder := range f.Ladders() {
		groups = append(groups, ladder.Objects())
	}
	for _, objects := range groups {
		for _, o := range objects {
			switch _, looked := f.Queues[o.Name]; {
			case o.Exchange != nil:
				l.exchange(o.Name, o.Exchange)
			case o.Binding == nil && !looked:
				l.queue(o)
			}
		}
		if main := objects[0]; client != nil && main.Role == RoleMain && main.Topic.Plan.MainArguments != nil &&
			f.Queues[main.Name].Exists.Value {
			q := f.Queues[main.Name]
			q.Details = l.details(main.Name)
			f.Queues[main.Name] = q
		}
	}
	if client != nil {
		l.obsolete()
	}
	return f, l.first
}

// Everything looks at all that there is to know. What one of the broker and the management API does
// not tell is why it is not seen. After the end of ctx, or of a connection, it returns at once:
// nothing else is seen. client is nil without a management API.
func Everything(ctx context.Context, f Facts, broker, publisher *Broker, client *httpapi.Client) Facts {
	p := newProber(broker, publisher)
	defer publisher.end(nil) // in an alarm it cannot be closed in another way
	f.Version = broker.Version()
	f.Queues, f.Exchanges = map[string]Queue{}, map[string]Exchange{}
	l := &look{Facts: &f, ctx: ctx, broker: broker, client: client, ended: p.Ended}
	l.overview()
	if f.PolicyFile == "" {
		l.assume()
	} else {
		l.obsolete()
	}
	f.Others = l.others()

	l.queues(f.Objects())
	for _, o := range f.Objects(RoleExchange) {
		l.exchange(o.Name, o.Exchange)
	}
	l.follow()
	for _, ladder := range f.Others {
		all := f.Landing(ladder)
		for _, o := range all { // the main queues behind them
			if o.Target.Exchange == "" {
				all = append(all, Object{Name: o.Target.Key, Role: RoleMain})
			}
		}
		l.queues(all)
	}

	f.Refused = p.refused(Needs(f.Topics))
	f.Blocked = p.blocked()
	l.renewAlarms(p)
	f.Ended = p.Ended()
	return f
}

// queue looks at a queue over AMQP.
func (l *look) queue(o Object) Queue {
	var q Queue
	if l.strict && l.first != nil {
		return q
	}
	q.Exists, q.Ready, q.Consumers = l.broker.Queue(o.Name)
	if o.Queue != nil {
		q.Conflict = l.conflict(q.Exists, "there is no such queue", topology.Plan{Queues: []topology.Queue{*o.Queue}})
	}
	l.fail(q.Exists.Err)
	l.Queues[o.Name] = q
	return q
}

// exchange looks at an exchange; planned is nil for those that no plan has.
func (l *look) exchange(name string, planned *topology.Exchange) {
	if _, looked := l.Exchanges[name]; looked || l.strict && l.first != nil {
		return
	}
	var x Exchange
	x.Exists = l.broker.Exchange(name)
	if planned != nil {
		x.Type = planned.Type
		x.Conflict = l.conflict(x.Exists, "there is no such exchange",
			topology.Plan{Exchanges: []topology.Exchange{*planned}})
	}
	l.fail(x.Exists.Err)
	if !l.strict || x.Exists.Value && l.client != nil {
		x.Bindings = ask(l, func() ([]httpapi.Binding, error) { return l.client.RoutesFrom(l.ctx, name) })
	}
	l.Exchanges[name] = x
}

// conflict compares an object, if it is there, with its part of a plan.
func (l *look) conflict(exists Seen[bool], none string, part topology.Plan) Seen[*topology.ConflictError] {
	switch {
	case !exists.Known:
		return Unseen[*topology.ConflictError](exists.Why)
	case !exists.Value:
		return Unseen[*topology.ConflictError](none)
	}
	found := l.broker.compare(part)
	l.fail(found.Err)
	return found
}

// fail keeps the first error that is not about one object alone.
func (l *look) fail(err error) {
	var conflict *topology.ConflictError
	var access *topology.AccessError
	var exclusive *topology.ExclusiveError
	if l.first == nil && !errors.As(err, &conflict) && !errors.As(err, &access) && !errors.As(err, &exclusive) {
		l.first = err
	}
}

// ask asks the management API.
func ask[T any](l *look, question func() (T, error)) Seen[T] {
	switch ended := l.ended(); {
	case l.client == nil:
		return Unseen[T](NoAPI)
	case l.why != "":
		return Unseen[T](l.why)
	case ended != nil:
		return failed[T](ended)
	case l.strict && l.first != nil:
		return failed[T](l.first)
	}
	answer, err := question()
	if err == nil {
		return Known(answer)
	}
	l.fail(err)
	if ended := l.ended(); ended != nil {
		return failed[T](ended)
	}
	return failed[T](err)
}

// queues looks at those that were not looked at before.
func (l *look) queues(queues []Object) {
	var all []Object
	for _, o := range queues {
		if _, looked := l.Queues[o.Name]; looked || !o.IsQueue() {
			continue
		}
		q := l.queue(o)
		q.Details = l.details(o.Name)
		l.Queues[o.Name] = q
		all = append(all, o)
	}
	l.renew(all)
}

// others are the ladders of Facts.Others. It sets Absent.
func (l *look) others() []topology.Ladder {
	candidates := []topology.Ladder{{Config: config.RetryLadder()}, {Config: config.ScheduleLadder()}}
	if l.Named != nil {
		candidates = []topology.Ladder{*l.Named}
	}
	var found []topology.Ladder
	used := l.Ladders()
	for _, c := range candidates {
		if slices.ContainsFunc(used, func(u Ladder) bool { return u.Name() == c.Name() }) {
			continue
		}
		switch there := l.there(c); {
		case there.Known && there.Value, !there.Known && l.Named != nil: // then its checks say what is unknown
			found = append(found, c)
		default:
			l.Absent = l.Named != nil
		}
	}
	return found
}

// Signs are queues of a ladder. One that has none of them is taken to be missing: asking for all
// others would be an error each in the log of the broker.
func Signs(l topology.Ladder) []string {
	c := l.Config
	return []string{l.Unroutable(), l.WaitQueue(c.Levels-1, c.Radix-1), l.WaitQueue(0, 1)}
}

// there tells whether the broker has a ladder.
func (l *look) there(ladder topology.Ladder) Seen[bool] {
	there := Known(false)
	for _, queue := range Signs(ladder) {
		exists := l.Exists(queue)
		if !exists.Known {
			exists, _, _ = l.broker.Queue(queue)
		}
		switch {
		case !exists.Known:
			there = exists
		case exists.Value:
			return exists
		}
	}
	return there
}

func (l *look) overview() {
	l.All = ask(l, func() ([]httpapi.Queue, error) { return l.client.Queues(l.ctx) })
	if l.client != nil && !l.All.Known { // it answers to nobody, or not to this user: not a hundred times
		l.why = l.All.Why
	}
	l.Nodes = ask(l, func() ([]httpapi.Node, error) { return l.client.Nodes(l.ctx) })
	l.Flags = ask(l, func() ([]httpapi.FeatureFlag, error) { return l.client.FeatureFlags(l.ctx) })
	l.Limits = ask(l, func() (map[string]int64, error) { return l.client.Limits(l.ctx) })
	l.Policies = ask(l, func() ([]httpapi.Policy, error) { return l.client.Policies(l.ctx) })
	l.OperatorPolicies = ask(l, func() ([]httpapi.Policy, error) { return l.client.OperatorPolicies(l.ctx) })
	l.Granted = ask(l, func() (httpapi.Permissions, error) { return l.client.Permissions(l.ctx, l.User) })
}

// obsolete asks for what no plan of the topics uses.
func (l *look) obsolete() {
	l.Obsolete = ask(l, func() (retire.Found, error) {
		return retire.Find(l.ctx, l.client, l.Names, Plans(l.Topics)...)
	})
}

func (l *look) details(queue string) Seen[httpapi.Queue] {
	return ask(l, func() (httpapi.Queue, error) {
		q, err := l.client.Queue(l.ctx, queue)
		if httpapi.NotFound(err) {
			return q, errors.New("there is no such queue")
		}
		return q, err
	})
}

// follow looks at where main queues dead-letter to by themselves, and, of what has a TTL there, at
// where that goes on to.
func (l *look) follow() {
	var kinds []httpapi.Exchange
	from := l.Objects(RoleMain)
	for range 2 {
		var next []Object
		for _, o := range from {
			q := l.Queues[o.Name].Details
			if !q.Known {
				continue
			}
			arguments := Effective(q.Value)
			d := DeadLetteringOf(o.Name, arguments)
			if !d.Set {
				continue
			}
			if _, looked := l.Exchanges[d.Exchange]; d.Exchange != "" && !looked {
				if kinds == nil {
					kinds = ask(l, func() ([]httpapi.Exchange, error) { return l.client.Exchanges(l.ctx) }).Value
				}
				l.exchange(d.Exchange, nil)
				x := l.Exchanges[d.Exchange]
				if i := slices.IndexFunc(kinds, func(k httpapi.Exchange) bool { return k.Name == d.Exchange }); i >= 0 {
					x.Type = kinds[i].Type
				}
				l.Exchanges[d.Exchange] = x
			}
			for _, target := range l.Targets(o.Name, arguments).Value {
				next = append(next, Object{Name: target, Role: RoleMain})
			}
		}
		l.queues(next)
		from = next
	}
}
