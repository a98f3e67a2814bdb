package processor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// target is a failed queue, with what the policies of its main queues make of them.
type target struct {
	failed string
	mains  []mainQueue // by name
	listed bool        // by the config; else found by a pattern
	err    error       // why it cannot be processed
}

// mainQueue is one that dead-letters to a failed queue.
type mainQueue struct {
	name   string
	policy config.Policy
	plan   topology.Plan
	err    error // why the failed queue cannot be processed: nothing of it may be left alone
}

// sameAs reports whether a subscription for one serves the other as well.
func (t target) sameAs(o target) bool {
	return t.failed == o.failed && (t.err == nil) == (o.err == nil) &&
		slices.EqualFunc(t.mains, o.mains, func(a, b mainQueue) bool {
			return a.name == b.name && a.policy.Equal(b.policy)
		})
}

// main is one of its main queues. It is empty if there is none of that name.
func (t target) main(name string) mainQueue {
	for _, m := range t.mains {
		if m.name == name {
			return m
		}
	}

	return mainQueue{}
}

// resolve makes the targets of all failed queues: those that the config lists, and those among the
// queues of the broker that match a pattern, of which the first counts. A matching failed queue
// whose main queue has the mode off is left alone.
func resolve(listed []Queue, patterns []pattern, queues []httpapi.Queue, policies config.Policies,
	named topology.Names,
) map[string]target {
	targets := map[string]target{}
	add := func(failed, main string, listed bool) mainQueue {
		t := targets[failed]
		t.failed, t.listed = failed, listed || t.listed
		if t.main(main).name == "" {
			t.mains = append(t.mains, newMain(failed, main, policies.For(main), named))
		}
		targets[failed] = t

		return t.main(main)
	}
	for _, pair := range listed {
		add(pair.Name, pair.MainQueue, true)
	}
	for _, q := range queues {
		if _, known := targets[q.Name]; known || slices.ContainsFunc(patterns, func(p pattern) bool {
			return p.failed == q.Name // its main queues are found below
		}) {
			continue
		}
		for _, p := range patterns {
			if main, matches := p.main(q.Name); matches {
				if policies.For(main).Mode != config.ModeOff {
					add(q.Name, main, false)
				}

				break
			}
		}
	}
	addMatching(targets, patterns, queues, add)
	refuseCollisions(targets)
	for failed, t := range targets {
		slices.SortFunc(t.mains, func(a, b mainQueue) int { return strings.Compare(a.name, b.name) })
		for _, m := range t.mains {
			t.err = errors.Join(t.err, m.err)
		}
		targets[failed] = t
	}

	return targets
}

// addMatching adds the main queues that match a pattern of their failed queue. The failed queues,
// retry queues and dead-letter queues that match it as well are none: their names are longer than
// those of their main queues.
func addMatching(targets map[string]target, patterns []pattern, queues []httpapi.Queue,
	add func(failed, main string, listed bool) mainQueue,
) {
	other := map[string]bool{}
	for failed, t := range targets {
		other[failed] = true
		for _, m := range t.mains {
			for _, q := range m.plan.Queues {
				other[q.Name] = true
			}
		}
	}
	shortest := slices.SortedFunc(slices.Values(queues), func(a, b httpapi.Queue) int {
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	for _, q := range shortest {
		for _, p := range patterns {
			if other[q.Name] || !p.isMain(q) {
				continue
			}
			for _, part := range add(p.failed, q.Name, false).plan.Queues {
				other[part.Name] = true
			}
		}
	}
}

func newMain(failed, name string, policy config.Policy, names topology.Names) mainQueue {
	m := mainQueue{name: name, policy: policy}
	switch {
	case failed == name:
		m.err = errors.New("a queue cannot be its own failed queue")
	case policy.Mode == config.ModeOff:
		m.err = fmt.Errorf("the policy of %q has mode off, so a processor can neither retry nor dead-letter; use "+
			"another mode", name)
	case policy.Strategy.ByBroker():
		m.err = fmt.Errorf("the policy of %q has the strategy %s: a processor needs %s, as the main queue "+
			"dead-letters to the failed queue", name, policy.Strategy, config.StrategyQueues)
	default:
		m.plan, m.err = topology.New(name, policy, names)
	}

	return m
}

// refuseCollisions finds queues with two meanings: one from which the processor would consume what
// it has published.
func refuseCollisions(targets map[string]target) {
	owners := map[string]string{} // main queues, by the names of their retry queues and dead-letter queues
	for _, t := range targets {
		for _, m := range t.mains {
			for _, q := range m.plan.Queues {
				owners[q.Name] = m.name
			}
		}
	}
	plans := map[string]topology.Plan{}
	for failed, t := range targets {
		for i, m := range t.mains {
			if m.err != nil {
				continue
			}
			what, queue := "it", failed
			if owners[queue] == "" {
				what, queue = "its main queue", m.name
			}
			if owner := owners[queue]; owner != "" {
				t.mains[i].err = fmt.Errorf("%s is a retry queue or the dead-letter queue of %q: give the failed "+
					"queue another name, or those another one through Names", what, owner)
				continue
			}
			plans[m.name] = m.plan
		}
	}

	ordered := make([]topology.Plan, 0, len(plans))
	for _, main := range slices.Sorted(maps.Keys(plans)) {
		ordered = append(ordered, plans[main])
	}
	var collisions interface{ Unwrap() []error }
	if !errors.As(topology.Check(ordered...), &collisions) {
		return
	}
	for _, err := range collisions.Unwrap() {
		var name *topology.NameError
		for _, t := range targets {
			for i, m := range t.mains {
				if errors.As(err, &name) && name.Queue == m.name {
					t.mains[i].err = errors.Join(m.err, err)
				}
			}
		}
	}
}

// pattern matches names of failed queues, and the star stands for the name of the main queue. With
// a failed queue, as in failed=orders-*, it matches names of the main queues of that one.
type pattern struct{ before, after, failed string }

func parsePattern(text string) (pattern, error) {
	failed, star, shared := strings.Cut(text, "=")
	if !shared {
		failed, star = "", text
	}
	before, after, found := strings.Cut(star, "*")
	switch {
	case !found || strings.Contains(after, "*"):
		return pattern{}, errors.New("does not have exactly one *")
	case shared && failed == "":
		return pattern{}, errors.New("has no failed queue before the =")
	case before == "" && after == "" && shared:
		return pattern{}, errors.New("matches all queues, and each would be a main queue")
	case before == "" && after == "":
		return pattern{}, errors.New("matches all queues, so each would be its own main queue")
	}

	return pattern{before, after, failed}, nil
}

// star is what the star stands for. It is false if the pattern does not match.
func (p pattern) star(name string) (star string, matches bool) {
	rest, begins := strings.CutPrefix(name, p.before)
	star, ends := strings.CutSuffix(rest, p.after)

	return star, begins && ends && star != ""
}

// main is the main queue of a failed queue. It is false if the pattern does not match.
func (p pattern) main(failed string) (main string, matches bool) {
	if p.failed != "" {
		return "", false
	}

	return p.star(failed)
}

// isMain tells whether the pattern matches a main queue of its failed queue. A retry queue that
// matches as well dead-letters elsewhere; where a policy of the broker says so, that is not known.
func (p pattern) isMain(q httpapi.Queue) bool {
	_, matches := p.star(q.Name)
	exchange, key := q.Arguments["x-dead-letter-exchange"], q.Arguments["x-dead-letter-routing-key"]

	return p.failed != "" && matches && q.Name != p.failed && (exchange != "" || key == p.failed)
}
