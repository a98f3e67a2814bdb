package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Group is a consumer group: each message of a topic reaches every group, and within a group one
// subscriber. For each topic a group has a queue, by default topic_group (Options.GroupQueue), with
// its own retries and dead letters.
//
// The subscribers of all groups share one connection, with a channel for each subscription. So
// neither a slow handler nor a subscriber that closes disturbs the other groups, and ten groups
// take as many connections as one. The connection opens with the first subscriber and closes with
// the last.
//
// Policies are those of Options.Groups, or else Options.Policies. Middleware, CheckRouter,
// QueueDepths, OnEvent and Close of the retrier serve all groups.
type Group struct {
	retrier *Retrier
	name    string
	err     error // what is wrong with it
}

// Group returns a consumer group. It does not connect. Groups of one name are the same group.
//
// The methods of a group fail with joined *config.FieldErrors where the group cannot work: its name
// is empty or too long, or the retrier's config is one for queues without exchanges, such as
// amqp.NewDurableQueueConfig. So a constructor of subscribers, as components/cqrs wants one, is one
// line:
//
//	return retrier.Group(params.HandlerName).NewSubscriber()
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

// checkGroupExchange refuses configs for queues without exchanges. For others it depends on the
// topic.
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
func (r *Retrier) mainOf(group, topic string) (mainQueue, error) {
	if group == "" {
		return r.main(topic), nil
	}

	main := mainQueue{
		Topic: topic, Group: group, Queue: r.options.GroupQueue(topic, group),
		Exchange: r.config.Exchange.GenerateName(topic),
	}
	if main.Exchange == "" {
		return mainQueue{}, noExchange(group, fmt.Sprintf("topic %q", topic))
	}

	return main, nil
}

// policy is that of a topic for its group.
func (r *Retrier) policy(main mainQueue) config.Policy {
	return r.options.policiesOf(main.Group).For(main.Topic)
}

func (o *Options) policiesOf(group string) config.Policies {
	if policies, own := o.Groups[group]; own && group != "" {
		return policies
	}

	return o.Policies
}

// explain adds to an error about a queue where its name comes from.
func explain(m mainQueue, err error) error {
	if name := (*topology.NameError)(nil); m.Group == "" || !errors.As(err, &name) {
		return err
	}

	return fmt.Errorf("cannot use queue %q of group %q, which Options.GroupQueue has named: %w", m.Queue, m.Group, err)
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

// NewSubscriber returns a subscriber to the group's queues. It connects, unless a subscriber of a
// group is open. Retrier.Close closes it if it is still open.
//
// Subscribe also fails with a *topology.SharedQueueError where two groups share a queue, with a
// *topology.NameError where Options.GroupQueue gives a name that the broker does not take, and with
// a *config.FieldError where the config gives the topic no exchange.
func (g *Group) NewSubscriber() (*Subscriber, error) {
	if g.err != nil {
		return nil, g.err
	}
	g.retrier.groupsUsed.Store(g.name, true)

	return g.retrier.newSubscriber(g.name, false)
}

// NewDeadLetterSubscriber returns a subscriber to the dead letters of the group's queues, over the
// connection of all groups. Retrier.Close closes it if it is still open.
func (g *Group) NewDeadLetterSubscriber() (*Subscriber, error) {
	if g.err != nil {
		return nil, g.err
	}

	return g.retrier.newSubscriber(g.name, true)
}

// Plan is what the broker is to hold for a topic beside the group's queue.
func (g *Group) Plan(topic string) (topology.Plan, error) {
	main, err := g.main(topic)
	if err != nil {
		return topology.Plan{}, err
	}

	return g.retrier.plan(main)
}

// Definitions is everything that the group declares for these topics, as Retrier.Definitions has
// it. The files of several groups can be imported one after the other.
func (g *Group) Definitions(topics ...string) ([]byte, error) {
	if g.err != nil {
		return nil, g.err
	}

	return g.retrier.definitions(g.name, topics)
}

// ProtectPolicy is Retrier.ProtectPolicy for the group's queue.
func (g *Group) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	main, err := g.main(topic)
	if err != nil {
		return topology.BrokerPolicy{}, err
	}

	return g.retrier.protectPolicy(main.Queue)
}

// String is the group's name.
func (g *Group) String() string { return g.name }

func (g *Group) main(topic string) (mainQueue, error) {
	if g.err != nil {
		return mainQueue{}, g.err
	}

	return g.retrier.mainOf(g.name, topic)
}
