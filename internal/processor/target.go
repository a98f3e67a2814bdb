package processor

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

// target is a failed queue, with what its main queue's policy makes of it.
type target struct {
	Pair
	listed bool // by the config; else found by a pattern
	policy config.Policy
	plan   topology.Plan
	err    error // why it cannot be processed
}

// sameAs reports whether a subscription for one serves the other as well.
func (t target) sameAs(o target) bool {
	return t.Pair == o.Pair && t.policy.Equal(o.policy) && (t.err == nil) == (o.err == nil)
}

// resolve makes the targets of all failed queues: those that the config lists, and those among names that match a
// pattern, of which the first counts. A matching queue whose main queue has the mode off is left alone.
func resolve(listed []Pair, patterns []pattern, names []string, policies config.Policies, named topology.Names,
) map[string]target {
	targets := map[string]target{}
	for _, pair := range listed {
		targets[pair.Failed] = newTarget(pair, policies.For(pair.Main), named, true)
	}
	for _, name := range names {
		if _, known := targets[name]; known {
			continue
		}
		for _, p := range patterns {
			main, matches := p.main(name)
			if !matches {
				continue
			}
			if policy := policies.For(main); policy.Mode != config.ModeOff {
				targets[name] = newTarget(Pair{name, main}, policy, named, false)
			}

			break
		}
	}
	refuseCollisions(targets)

	return targets
}

func newTarget(pair Pair, policy config.Policy, names topology.Names, listed bool) target {
	t := target{Pair: pair, listed: listed, policy: policy}
	switch {
	case pair.Failed == pair.Main:
		t.err = errors.New("a queue cannot be its own failed queue")
	case policy.Mode == config.ModeOff:
		t.err = fmt.Errorf("the policy of %q has the mode off: its messages could go nowhere", pair.Main)
	case policy.BrokerDriven():
		t.err = fmt.Errorf("the policy of %q has the strategy %s: a processor needs %s, as the main queue "+
			"dead-letters to the failed queue", pair.Main, policy.Strategy, config.StrategyCopy)
	default:
		t.plan, t.err = topology.New(pair.Main, policy, names)
	}

	return t
}

// refuseCollisions finds queues with two meanings: one from which the processor would consume what it has published.
func refuseCollisions(targets map[string]target) {
	owners := map[string]string{} // main queues, by the names of their retry queues and dead-letter queues
	for _, t := range targets {
		for _, q := range t.plan.Queues {
			owners[q.Name] = t.Main
		}
	}
	plans := map[string]topology.Plan{}
	for name, t := range targets {
		if t.err != nil {
			continue
		}
		what, queue := "it", name
		if owners[queue] == "" {
			what, queue = "its main queue", t.Main
		}
		if owner := owners[queue]; owner != "" {
			t.err = fmt.Errorf("%s is a retry queue or the dead-letter queue of %q: give the failed queue another "+
				"name, or those another one through Names", what, owner)
		}
		targets[name] = t
		if t.err == nil {
			plans[t.Main] = t.plan
		}
	}

	collisions := namesTaken(plans)
	for name, t := range targets {
		if t.err == nil {
			t.err = errors.Join(collisions[t.Main]...)
		}
		targets[name] = t
	}
}

// namesTaken finds plans that have a name in common, and returns the errors by main queue.
func namesTaken(plans map[string]topology.Plan) map[string][]error {
	ordered := make([]topology.Plan, 0, len(plans))
	for _, main := range slices.Sorted(maps.Keys(plans)) {
		ordered = append(ordered, plans[main])
	}
	all, found := topology.Check(ordered...), map[string][]error{}
	if joined, ok := all.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			var name *topology.NameError
			if errors.As(err, &name) {
				found[name.Queue] = append(found[name.Queue], err)
			}
		}
	}

	return found
}
