package doctor

import (
	"context"
	"errors"
	"slices"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// noAPI is why things that only the management API tells are not seen.
const noAPI = "this needs the management API: set AMQP_MANAGEMENT_URL, or --management-url"

// api is what is asked of the management API.
type api struct {
	client *httpapi.Client
	// why it is not asked any more.
	why string
	// ended is why nothing is asked any more; nil while it is.
	ended func() error
}

// gather looks at everything. What one of both does not tell is why it is not seen. After the end
// of ctx, or of a connection, it returns at once: nothing else is seen.
func gather(ctx context.Context, f Facts, p *prober, a *api) Facts {
	f.Queues, f.Exchanges = map[string]Queue{}, map[string]Exchange{}
	f.overview(ctx, a)
	if f.PolicyFile == "" {
		f.assume(ctx, a, p)
	} else {
		f.obsolete(ctx, a)
	}
	f.Others = f.others(p)

	f.lookAt(ctx, a, p, f.objects())
	planned := f.plannedExchanges()
	for _, name := range sortedKeys(planned) {
		x := planned[name].Exchange
		f.Exchanges[name] = f.exchange(ctx, a, p, name, &x)
	}
	f.follow(ctx, a, p)
	for _, l := range f.Others {
		all := f.landing(l)
		for _, o := range all { // the main queues behind them
			if o.Target.Exchange == "" {
				all = append(all, object{Name: o.Target.Key, Role: roleMain})
			}
		}
		f.lookAt(ctx, a, p, all)
	}

	f.Refused = p.refused(needs(f.Topics))
	f.Blocked = p.blocked()
	f.renewAlarms(ctx, a, p)
	f.Ended = p.ended()
	return f
}

// lookAt looks at those of the queues that were not looked at before.
func (f *Facts) lookAt(ctx context.Context, a *api, p *prober, queues []object) {
	var all []object
	for _, o := range queues {
		if _, looked := f.Queues[o.Name]; looked {
			continue
		}
		q := p.queue(o)
		q.Details = details(ctx, a, o.Name)
		f.Queues[o.Name] = q
		all = append(all, o)
	}
	f.renew(ctx, a, p, all)
}

// others are the ladders of Facts.Others. It sets Absent.
func (f *Facts) others(p *prober) []topology.Ladder {
	candidates := []topology.Ladder{{Config: config.RetryLadder()}, {Config: config.ScheduleLadder()}}
	if f.Named != nil {
		candidates = []topology.Ladder{*f.Named}
	}
	var found []topology.Ladder
	used := f.ladders()
	for _, l := range candidates {
		if slices.ContainsFunc(used, func(u ladder) bool { return u.name == l.Name() }) {
			continue
		}
		switch there := f.there(p, l); {
		case there.Known && there.Value, !there.Known && f.Named != nil: // then its checks say what is unknown
			found = append(found, l)
		default:
			f.Absent = f.Named != nil
		}
	}
	return found
}

// there tells whether the broker has a ladder. One without all of three queues is taken to be
// missing: asking for all of them would be an error each in the log of the broker.
func (f *Facts) there(p *prober, l topology.Ladder) Seen[bool] {
	there, c := seen(false), l.Config
	for _, queue := range []string{l.Unroutable(), l.WaitQueue(c.Levels-1, c.Radix-1), l.WaitQueue(0, 1)} {
		exists := f.exists(queue)
		if !exists.Known {
			exists = p.queue(object{Name: queue}).Exists
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

func (f *Facts) overview(ctx context.Context, a *api) {
	f.All = ask(a, func() ([]httpapi.Queue, error) { return a.client.Queues(ctx) })
	if a != nil && !f.All.Known { // it answers to nobody, or not to this user: not a hundred times
		a.why = f.All.Why
	}
	f.Nodes = ask(a, func() ([]httpapi.Node, error) { return a.client.Nodes(ctx) })
	f.Flags = ask(a, func() ([]httpapi.FeatureFlag, error) { return a.client.FeatureFlags(ctx) })
	f.Limits = ask(a, func() (map[string]int64, error) { return a.client.Limits(ctx) })
	f.Policies = ask(a, func() ([]httpapi.Policy, error) { return a.client.Policies(ctx) })
	f.OperatorPolicies = ask(a, func() ([]httpapi.Policy, error) { return a.client.OperatorPolicies(ctx) })
	f.Granted = ask(a, func() (httpapi.Permissions, error) { return a.client.Permissions(ctx, f.User) })
}

// obsolete asks for what no plan of the topics uses.
func (f *Facts) obsolete(ctx context.Context, a *api) {
	plans := make([]topology.Plan, len(f.Topics))
	for i, t := range f.Topics {
		plans[i] = t.Plan
	}
	f.Obsolete = ask(a, func() ([]retire.Queue, error) {
		return retire.Find(ctx, a.client, f.Names, plans...)
	})
	f.ObsoleteExchanges = ask(a, func() ([]retire.Exchange, error) {
		return retire.FindExchanges(ctx, a.client, f.Names, plans...)
	})
}

func ask[T any](a *api, question func() (T, error)) Seen[T] {
	if a == nil {
		return unseen[T](noAPI)
	}
	if a.why != "" {
		return unseen[T](a.why)
	}
	if ended := a.ended(); ended != nil {
		return unseen[T](ended.Error())
	}
	answer, err := question()
	switch ended := a.ended(); {
	case err != nil && ended != nil:
		return unseen[T](ended.Error())
	case err != nil:
		return unseen[T](err.Error())
	}
	return seen(answer)
}

func details(ctx context.Context, a *api, queue string) Seen[httpapi.Queue] {
	return ask(a, func() (httpapi.Queue, error) {
		q, err := a.client.Queue(ctx, queue)
		if httpapi.NotFound(err) {
			return q, errors.New("there is no such queue")
		}
		return q, err
	})
}

// exchange looks at one; planned is nil for those that no plan has.
func (f *Facts) exchange(ctx context.Context, a *api, p *prober, name string, planned *topology.Exchange) Exchange {
	x := p.exchange(name, planned)
	x.Bindings = ask(a, func() ([]httpapi.Binding, error) { return a.client.RoutesFrom(ctx, name) })
	return x
}

// follow looks at where main queues dead-letter to by themselves, and, of what has a TTL there, at
// where that goes on to.
func (f *Facts) follow(ctx context.Context, a *api, p *prober) {
	var kinds []httpapi.Exchange
	from := f.objects(roleMain)
	for range 2 {
		var next []object
		for _, o := range from {
			q := f.Queues[o.Name].Details
			if !q.Known {
				continue
			}
			arguments := effective(q.Value)
			name, deadLetters := arguments["x-dead-letter-exchange"].(string)
			if !deadLetters {
				continue
			}
			if _, looked := f.Exchanges[name]; name != "" && !looked {
				if kinds == nil {
					kinds = ask(a, func() ([]httpapi.Exchange, error) { return a.client.Exchanges(ctx) }).Value
				}
				x := f.exchange(ctx, a, p, name, nil)
				if i := slices.IndexFunc(kinds, func(k httpapi.Exchange) bool { return k.Name == name }); i >= 0 {
					x.Type = kinds[i].Type
				}
				f.Exchanges[name] = x
			}
			for _, target := range f.targets(q.Value, arguments).Value {
				next = append(next, object{Name: target, Role: roleMain})
			}
		}
		f.lookAt(ctx, a, p, next)
		from = next
	}
}
