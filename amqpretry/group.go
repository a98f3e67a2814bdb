package amqpretry

import (
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/retrier"
)

// Group is a consumer group: each message of a topic reaches every group, and within a group one subscriber. For each
// topic a group has a queue, by default topic_group (Options.GroupQueue), with its own retries and dead letters.
//
// The subscribers of all groups share one connection, with a channel for each subscription. So neither a slow handler
// nor a subscriber that closes disturbs the other groups, and ten groups take as many connections as one. The
// connection opens with the first subscriber and closes with the last.
//
// Policies are those of Options.Groups, or else Options.Policies. Middleware, CheckRouter, QueueDepths, OnEvent and Close
// of the retrier serve all groups.
type Group struct{ own *retrier.Group }

// Group returns a consumer group. It does not connect. Groups of one name are the same group.
//
// The methods of a group fail with joined *config.FieldErrors where the group cannot work: its name is empty or too
// long, or the retrier's config is one for queues without exchanges, such as amqp.NewDurableQueueConfig. So a
// constructor of subscribers, as components/cqrs wants one, is one line:
//
//	return retrier.Group(params.HandlerName).NewSubscriber()
func (r *Retrier) Group(name string) *Group { return &Group{r.retrier.Group(name)} }

// NewSubscriber returns a subscriber to the group's queues. It connects, unless a subscriber of a group is open.
// Retrier.Close closes it if it is still open.
//
// Subscribe also fails with a *topology.SharedByGroupsError where two groups share a queue, with a *topology.NameError
// where Options.GroupQueue gives a name that the broker does not take, and with a *config.FieldError where the config
// gives the topic no exchange.
func (g *Group) NewSubscriber() (*Subscriber, error) {
	own, err := g.own.NewSubscriber()
	if err != nil {
		return nil, err
	}

	return &Subscriber{own}, nil
}

// NewDeadLetterSubscriber returns a subscriber to the dead letters of the group's queues, over the connection of all
// groups. Retrier.Close closes it if it is still open.
func (g *Group) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	own, err := g.own.NewDeadLetterSubscriber()
	if err != nil {
		return nil, err
	}

	return &DeadLetterSubscriber{own}, nil
}

// Plan is what the broker is to hold for a topic beside the group's queue.
func (g *Group) Plan(topic string) (topology.Plan, error) { return g.own.Plan(topic) }

// Definitions is everything that the group declares for these topics, as Retrier.Definitions has it. The files of several
// groups can be imported one after the other.
func (g *Group) Definitions(topics ...string) ([]byte, error) { return g.own.Definitions(topics...) }

// ProtectPolicy is Retrier.ProtectPolicy for the group's queue.
func (g *Group) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	return g.own.ProtectPolicy(topic)
}

// String is the group's name.
func (g *Group) String() string { return g.own.String() }
