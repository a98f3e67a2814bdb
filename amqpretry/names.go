package amqpretry

import (
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// names are what plans call their exchanges and queues: an index, so that a new plan is compared with those that have a
// name of its own, and not with all.
type names struct {
	own    map[object]string              // the main queue of the only plan that has it
	shared map[object]map[string]struct{} // the main queues of the plans that share it
}

// object is what a broker keeps apart by its name.
type object struct{ kind, name string }

func newNames() names {
	return names{own: map[object]string{}, shared: map[object]map[string]struct{}{}}
}

// each calls do for every object of a plan and for its main queue.
func (n names) each(plan topology.Plan, do func(o object, shared bool)) {
	do(object{rabbitmq.KindQueue, plan.Queue}, false)
	for _, x := range plan.Exchanges {
		do(object{rabbitmq.KindExchange, x.Name}, x.Shared)
	}
	for _, q := range plan.Queues {
		do(object{rabbitmq.KindQueue, q.Name}, q.Shared)
	}
}

func (n names) add(plan topology.Plan) {
	n.each(plan, func(o object, shared bool) {
		if !shared {
			n.own[o] = plan.Queue
			return
		}
		if n.shared[o] == nil {
			n.shared[o] = map[string]struct{}{}
		}
		n.shared[o][plan.Queue] = struct{}{}
	})
}

func (n names) remove(plan topology.Plan) {
	n.each(plan, func(o object, shared bool) {
		if !shared {
			delete(n.own, o)
			return
		}
		delete(n.shared[o], plan.Queue)
		if len(n.shared[o]) == 0 {
			delete(n.shared, o)
		}
	})
}

// rivals are the main queues of the plans that have a name of this plan for themselves, or share one that it wants for
// itself.
func (n names) rivals(plan topology.Plan) []string {
	found := map[string]struct{}{}
	n.each(plan, func(o object, shared bool) {
		if owner, taken := n.own[o]; taken {
			found[owner] = struct{}{}
		}
		if !shared {
			maps.Copy(found, n.shared[o])
		}
	})

	return slices.Sorted(maps.Keys(found))
}

// owners are the main queues of the plans that have an exchange of this name.
func (n names) owners(exchange string) []string {
	o := object{rabbitmq.KindExchange, exchange}
	owners := slices.Sorted(maps.Keys(n.shared[o]))
	if owner, taken := n.own[o]; taken {
		owners = append(owners, owner)
	}

	return owners
}
