package retrier

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

// Group is a consumer group. Package amqpretry says what it does.
type Group struct {
	retrier *Retrier
	name    string
	err     error // what is wrong with it
}

// Group returns a consumer group. What is wrong with it, its methods return.
func (r *Retrier) Group(name string) *Group {
	err := errors.Join(checkGroup(fmt.Sprintf("Retrier.Group(%q)", name), name), r.checkGroupExchange(name))
	if err != nil {
		err = fmt.Errorf("cannot use group %q:\n%w", name, err)
	}

	return &Group{retrier: r, name: name, err: err}
}

// maxGroup is what AMQP has room for in the name of a queue.
const maxGroup = 255

// checkGroup checks what does not depend on a topic. topology.New checks the names of queues.
func checkGroup(path, name string) error {
	switch {
	case name == "":
		return &config.FieldError{Path: path, Problem: "empty name", Wanted: "the name of a consumer group"}
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) || strings.TrimSpace(name) != name:
		return &config.FieldError{Path: path, Problem: "not readable where its queues are shown",
			Wanted: "UTF-8 without control characters, and without white space at its ends", Found: strconv.Quote(name)}
	case len(name) > maxGroup:
		return &config.FieldError{Path: path, Problem: "too long: its queues are named for it",
			Wanted: fmt.Sprintf("at most %d bytes", maxGroup), Found: strconv.Itoa(len(name))}
	default:
		return nil
	}
}

// checkGroupExchange refuses configs for queues without exchanges. For others it depends on the topic.
func (r *Retrier) checkGroupExchange(group string) error {
	if exchange := r.config.Exchange; exchange.Declared.Type == "" && exchange.GenerateName("topic") == "" {
		return noExchange(group, "each topic")
	}

	return nil
}

func noExchange(group, topic string) error {
	return &config.FieldError{
		Path: "Config.Exchange.GenerateName",
		Problem: fmt.Sprintf("gives %s the default exchange, which would bring nothing to a queue of group %q", topic,
			group),
		Wanted: "a name, as with amqp.NewDurablePubSubConfig; or subscribe without a group (Retrier.NewSubscriber)",
	}
}

// mainOf generates the names of a topic for a group, or for the config where the group is empty.
func (r *Retrier) mainOf(group, topic string) (Main, error) {
	if group == "" {
		return r.main(topic), nil
	}

	main := Main{
		Topic: topic, Group: group, Queue: r.options.GroupQueue(topic, group),
		Exchange: r.config.Exchange.GenerateName(topic),
	}
	if main.Exchange == "" {
		return Main{}, noExchange(group, fmt.Sprintf("topic %q", topic))
	}

	return main, nil
}

// policy is that of a topic for its group.
func (r *Retrier) policy(main Main) config.Policy {
	return r.options.policiesOf(main.Group).For(main.Topic)
}

func (o *Options) policiesOf(group string) config.Policies {
	if policies, own := o.Groups[group]; own && group != "" {
		return policies
	}

	return o.Policies
}

// explain adds to an error about a queue where its name comes from.
func (m Main) explain(err error) error {
	if name := (*topology.NameError)(nil); m.Group == "" || !errors.As(err, &name) {
		return err
	}

	return fmt.Errorf("cannot use queue %q of group %q, which Options.GroupQueue has named: %w", m.Queue, m.Group, err)
}

// policySet are the policies of one field of the options.
type policySet struct {
	path     string
	policies config.Policies
}

// policySets are those of all topics and those of single groups.
func (o *Options) policySets() []policySet {
	sets := []policySet{{"Options.Policies", o.Policies}}
	for _, group := range slices.Sorted(maps.Keys(o.Groups)) {
		sets = append(sets, policySet{groupPath(group), o.Groups[group]})
	}

	return sets
}

// validateGroups checks the policies of groups, and their names.
func (o *Options) validateGroups() []error {
	var errs []error
	for _, group := range slices.Sorted(maps.Keys(o.Groups)) {
		path := groupPath(group)
		if err := checkGroup(path, group); err != nil {
			errs = append(errs, err)
		}
		for _, err := range config.WithPath(path, o.Groups[group].Validate()) {
			if fault := (*config.FieldError)(nil); errors.As(err, &fault) {
				fault.Path = strings.Replace(fault.Path, path+".Policies.", path+".", 1)
			}
			errs = append(errs, err)
		}
	}

	return errs
}

func groupPath(name string) string { return fmt.Sprintf("Options.Groups[%q]", name) }

// unusedGroups are those that the options name, and that have no subscriber.
func (r *Retrier) unusedGroups() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.options.Groups)), func(name string) bool {
		_, used := r.groupsUsed.Load(name)
		return used
	})
}

// NewSubscriber connects, unless a subscriber of a group has, and returns a subscriber. Retrier.Close closes it if it is
// still open.
func (g *Group) NewSubscriber() (*Subscriber, error) {
	if g.err != nil {
		return nil, g.err
	}
	g.retrier.groupsUsed.Store(g.name, true)
	consumer, err := g.retrier.consumer("groups", g.retrier.prefetch(), &g.retrier.groups)
	if err != nil {
		return nil, err
	}

	return &Subscriber{retrier: g.retrier, group: g.name, consumer: consumer}, nil
}

// NewDeadLetterSubscriber connects, unless a subscriber of a group has, and returns a subscriber to dead letters.
func (g *Group) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	if g.err != nil {
		return nil, g.err
	}
	consumer, err := g.retrier.consumer("groups", g.retrier.deadLetterPrefetch(), &g.retrier.groups)
	if err != nil {
		return nil, err
	}

	return &DeadLetterSubscriber{retrier: g.retrier, group: g.name, consumer: consumer}, nil
}

// Plan is what the broker is to hold for a topic beside the group's queue.
func (g *Group) Plan(topic string) (topology.Plan, error) {
	main, err := g.main(topic)
	if err != nil {
		return topology.Plan{}, err
	}

	return g.retrier.plan(main)
}

// Definitions is everything that the group declares for these topics.
func (g *Group) Definitions(topics ...string) ([]byte, error) {
	if g.err != nil {
		return nil, g.err
	}

	return g.retrier.definitions(g.name, topics)
}

// ProtectPolicy is the policy of the broker that keeps an existing queue of the group from losing messages.
func (g *Group) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	main, err := g.main(topic)
	if err != nil {
		return topology.BrokerPolicy{}, err
	}

	return g.retrier.protectPolicy(main.Queue)
}

// String is the name.
func (g *Group) String() string { return g.name }

func (g *Group) main(topic string) (Main, error) {
	if g.err != nil {
		return Main{}, g.err
	}

	return g.retrier.mainOf(g.name, topic)
}
