package topology

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// ConflictError says that the broker has the object already, but other than it is wanted, or that
// it takes no such argument at all. Nothing was changed. Unwrap reaches the *amqp091.Error (406).
type ConflictError struct {
	// Kind of the object: queue or exchange.
	Kind string
	// Name of the object.
	Name string
	// Argument that differs, such as x-message-ttl, durable or type. Empty when the broker did not
	// name it.
	Argument string
	// Wanted is the value that was sent: "none" for an absent argument, `""` for an empty one.
	// Empty when unknown.
	Wanted string
	// Found is the value that the object has, spelled alike. Empty when unknown, as for an argument
	// that the broker refuses whatever its value: Err says why.
	Found string
	// WaysOut are what its text says can be done, where that is not the usual.
	WaysOut string
	Err     error
}

func (e *ConflictError) Error() string {
	if e.Argument == "" {
		return fmt.Sprintf("%s %q: refused by the broker: %v", e.Kind, e.Name, e.Err)
	}
	wanted, found := e.Wanted, e.Found
	if wanted == "" {
		wanted = "unknown"
	}
	if strings.Contains(brokerText(e.Err), invalidArg) {
		return fmt.Sprintf("%s %q: the broker refuses the argument %s (wanted %s): %v", e.Kind, e.Name, e.Argument,
			wanted, e.Err)
	}
	if found == "" {
		found = "another value"
	}
	return fmt.Sprintf("%s %q exists with another %s: wanted %s, found %s; %s (%v)", e.Kind, e.Name, e.Argument, wanted,
		found, e.waysOut(), e.Err)
}

// waysOut are for both who may see this: the one whose own main queue is declared other than it is,
// and the one whose retry objects somebody else declared.
func (e *ConflictError) waysOut() string {
	if e.WaysOut != "" {
		return e.WaysOut
	}
	if e.Kind == rabbitmq.KindExchange {
		return "ways out: declare it as it is, if it is yours (Config.Exchange); set another name in Names, or " +
			"another Prefix for a ladder; delete it if nothing else " +
			"uses it (it is declared again); or let an operator provision it, and set AssumeTopology"
	}
	if e.Argument == amqp.QueueTypeArg && e.Found == amqp.QueueTypeStream {
		return "ways out: another queue; a stream has no retries, as nothing leaves it"
	}
	asItIs := "declare it as it is, if it is your main queue"
	switch e.Argument {
	case "durable", "auto_delete", "exclusive":
		asItIs += " (in Config.Queue)"
	default:
		if e.Found == "none" {
			asItIs += fmt.Sprintf(" (no Config.Queue.Arguments[%q]; a policy on the broker can set it instead)",
				e.Argument)
		} else {
			asItIs += fmt.Sprintf(" (Config.Queue.Arguments[%q])", e.Argument)
		}
	}
	return "ways out: " + asItIs + "; set another name for a retry or dead-letter queue in Names, or another " +
		"Prefix for a ladder; delete it after it is empty (it is declared again); or let an operator provision it, " +
		"and set AssumeTopology"
}

func (e *ConflictError) Unwrap() error { return e.Err }

// DeclareError is every other reason for which an object could not be declared, such as a lost
// connection.
type DeclareError struct {
	// Kind and Name tell the object: queue or exchange.
	Kind, Name string
	// Err is the broker's error.
	Err error
}

func (e *DeclareError) Error() string {
	return fmt.Sprintf("%s %q: cannot declare: %v", e.Kind, e.Name, e.Err)
}

func (e *DeclareError) Unwrap() error { return e.Err }

// AccessError says that the broker refused the user. Unwrap reaches the *amqp091.Error (403).
type AccessError struct {
	// Kind of the object: queue or exchange.
	Kind string
	// Name of the object.
	Name string
	// Permission that is missing: configure, read or write. Empty when the broker did not say, as
	// before 4.0.
	Permission string
	// User whom the broker refused. Empty when it did not say.
	User string
	// Use is what was refused, such as consume. Empty for a declaration of a topology.
	Use string
	Err error
}

// needed is the permission that a use takes, for brokers that do not say it.
var needed = map[string]string{
	rabbitmq.UseConsume: "read", rabbitmq.UsePublish: "write", rabbitmq.UseDeclare: "configure",
	rabbitmq.UseLook: "sufficient",
}

func (e *AccessError) Error() string {
	user := ""
	if e.User != "" {
		user = fmt.Sprintf(" for user %q", e.User)
	}
	if e.Use != "" { // an operator who provisions the topology is no way out
		return fmt.Sprintf("%s %q: no %s permission%s to %s; grant it with rabbitmqctl set_permissions (%v)",
			e.Kind, e.Name, cmp.Or(e.Permission, needed[e.Use], "sufficient"), user, e.Use, e.Err)
	}
	return fmt.Sprintf("%s %q: no %s permission%s: declaring a topology takes configure, write and read on its "+
		"queues and exchanges, and write on the default exchange (amq.default); grant them, or have an operator "+
		"provision it and set AssumeTopology (%v)",
		e.Kind, e.Name, cmp.Or(e.Permission, "sufficient"), user, e.Err)
}

func (e *AccessError) Unwrap() error { return e.Err }

// ExclusiveError says that somebody else has the queue for himself. No permission helps. Unwrap
// reaches the *amqp091.Error (403 or 405).
type ExclusiveError struct {
	// Queue is the name of the queue.
	Queue string
	// VirtualHost of the queue. Empty when the broker did not say.
	VirtualHost string
	// Owned tells that another connection has declared the queue itself exclusive. Else it is a
	// consumer's: either the one that is there is exclusive, or the one that was refused wanted to
	// be, and there are others.
	Owned bool
	Err   error
}

func (e *ExclusiveError) Error() string {
	vhost := shell.Quote(cmp.Or(e.VirtualHost, "/"))
	if e.Owned {
		return fmt.Sprintf("queue %q: another connection has declared it exclusive; find the owner with `rabbitmqctl "+
			"list_queues -p %s name owner_pid` and `rabbitmqctl list_connections pid name user`, and end it, or use "+
			"another queue (%v)", e.Queue, vhost, e.Err)
	}
	return fmt.Sprintf("queue %q: another consumer has it, and one of both is exclusive; find the other with "+
		"`rabbitmqctl list_consumers -p %s` and `rabbitmqctl list_channels pid name user`, and end it, or have "+
		"neither consume exclusively (Config.Consume.Exclusive) (%v)", e.Queue, vhost, e.Err)
}

func (e *ExclusiveError) Unwrap() error { return e.Err }

// NameError is a name that the broker would refuse or change, or that two objects share.
type NameError struct {
	// Queue is the main queue whose plan has the name. Empty for a publisher, which has no plan.
	Queue string
	// Object that has the name, such as "retry queue for 30s".
	Object string
	// Name as it is.
	Name string
	// Problem, and the way out.
	Problem string
}

func (e *NameError) Error() string {
	if e.Queue == "" {
		return fmt.Sprintf("%s %q: %s", e.Object, e.Name, e.Problem)
	}
	return fmt.Sprintf("topology of queue %q: %s %q: %s", e.Queue, e.Object, e.Name, e.Problem)
}

// SharedQueueError is returned by Subscribe when two subscriptions share a queue and must not.
type SharedQueueError struct {
	// Queue is the name of the queue.
	Queue string
	// Topics are those that share it.
	Topics [2]string
	// Competing tells that each message would reach only one of the two: they are two groups, or a
	// group and a subscriber without one for another topic. Else their policies differ, and only
	// one can hold: a message does not say for which topic it is in the queue.
	Competing bool
	// Groups are those of the topics with the same index if they compete; empty without a group.
	Groups [2]string
}

func (e *SharedQueueError) Error() string {
	switch {
	case e.Competing:
		return fmt.Sprintf("%s (topic %q) and %s (topic %q) share queue %q, so a message would reach only one of "+
			"them: let Options.GroupQueue give each its own", groupName(e.Groups[0]), e.Topics[0],
			groupName(e.Groups[1]), e.Topics[1], e.Queue)
	case e.Topics[0] == e.Topics[1]:
		return fmt.Sprintf("queue %q of topic %q is used under two policies, that of a group and another one: give "+
			"both the same policy, or each its own queue (Options.GroupQueue, Config.Queue.GenerateName)",
			e.Queue, e.Topics[0])
	default:
		return fmt.Sprintf("topics %q and %q share queue %q under different policies: give both the same policy, or "+
			"each its own queue (Config.Queue.GenerateName)", e.Topics[0], e.Topics[1], e.Queue)
	}
}

func groupName(group string) string {
	if group == "" {
		return "a subscriber without a group"
	}
	return fmt.Sprintf("group %q", group)
}

// StrategyError is returned by Subscribe when the strategy of a queue cannot be carried out: a
// stock subscriber cannot reject, or the broker accepts the arguments of the strategy native and
// ignores them.
type StrategyError struct {
	// Queue is the main queue, with this strategy.
	Queue    string
	Strategy config.Strategy
	// Stock tells that the subscriber is a stock one.
	Stock bool
	// Version is that of a broker without delayed retries; empty if it is unknown.
	Version string
}

func (e *StrategyError) Error() string {
	if e.Stock {
		return fmt.Sprintf("queue %q: the strategy %s needs a subscriber that rejects failed messages and drains when "+
			"it closes; use Retrier.NewSubscriber, or the strategy %s", e.Queue, e.Strategy, config.StrategyQueues)
	}
	return fmt.Sprintf("queue %q has the strategy %s, which needs the delayed retry of RabbitMQ 4.3 or later; this "+
		"broker, %s, does not have it, as far as its version tells: it would bring failed messages back at once. "+
		"Use the strategy %s or %s",
		e.Queue, e.Strategy, cmp.Or(e.Version, "of unknown version"), config.StrategyQueues, config.StrategyCycle)
}

// ProtectionError is returned by Subscribe when a main queue exists without the arguments of
// config.ProtectionArguments, which the broker cannot add to it. Unwrap reaches the *ConflictError.
type ProtectionError struct {
	// Queue is the name of the queue.
	Queue string
	// Policy of the broker that does the same for the queue as it is.
	Policy BrokerPolicy
	Err    *ConflictError
}

func (e *ProtectionError) Error() string {
	differs := "other arguments"
	if e.Err.Argument != "" {
		differs = "another " + e.Err.Argument
	}
	if e.Err.Found != "" {
		differs += fmt.Sprintf(" (wanted %s, found %s)", e.Err.Wanted, e.Err.Found)
	}

	// Which argument the broker names does not tell whether the queue is a classic one.
	return fmt.Sprintf("queue %q exists with %s than config.ProtectionArguments declares, and the broker cannot "+
		"change them; ways out: if it is a quorum queue, config.ProtectionPolicy, with Config.Queue.Arguments as the "+
		"queue has them, after an operator has run the line below (a dead-letter exchange among the queue's "+
		"arguments would win over the policy's); if it is a classic queue, which has no delivery limit, "+
		"config.ProtectionNone; or delete it once it is empty (it is declared again)\n%s",
		e.Queue, differs, e.Policy)
}

func (e *ProtectionError) Unwrap() error { return e.Err }

// HeldError reports deliveries whose copy the broker does not confirm: they are held unacknowledged
// and their handlers are not run again, until the broker confirms, their channel is gone, or the
// retrier is closed.
type HeldError struct {
	Queue string // the main queue
	// VirtualHost of the queue.
	VirtualHost string
	Exchange    string        // where the copy that this reports is to go; empty for the default exchange
	Held        int           // how many of this queue are waiting
	For         time.Duration // how long the one that this reports has been waiting
	Err         error         // the last thing that went wrong; nil when the broker just does not answer
}

func (e *HeldError) Error() string {
	cause := "the broker does not answer"
	if e.Err != nil {
		cause = e.Err.Error()
	}

	exchange := fmt.Sprintf("exchange %q", e.Exchange)
	if e.Exchange == "" {
		exchange = "the default exchange" // with a dead letter, under shared retry queues
	}

	hint := " (look for an alarm, a deleted or leaderless retry queue or dead-letter queue (`rabbitmqctl " +
		"list_unresponsive_queues" +
		inVirtualHost(e.VirtualHost) + "`), or missing permissions)"
	if errors.Is(e.Err, amqp.ErrChannelMax) {
		hint = "" // it is not the exchange
	}

	return fmt.Sprintf(
		"%d failed deliveries of queue %q are held, one for %s: %s does not take their copies: %s%s",
		e.Held, e.Queue, e.For.Round(time.Millisecond), exchange, cause, hint,
	)
}

// Unwrap gives the last thing that went wrong.
func (e *HeldError) Unwrap() error { return e.Err }

// NoAnswerError reports a queue that the broker does not let us consume from: it takes the request
// and does not answer it.
type NoAnswerError struct {
	// Queue is the name of the queue.
	Queue string
	// VirtualHost of the queue.
	VirtualHost string
	For         time.Duration // how long it was waited for
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf(
		"cannot consume from queue %q: no answer from the broker for %s, such as from a quorum queue without leader "+
			"(ask `rabbitmq-queues quorum_status%s %s`; bring the nodes up that have its members)", e.Queue, e.For,
		inVirtualHost(e.VirtualHost), shell.Quote(e.Queue),
	)
}

// inVirtualHost is the option of rabbitmqctl and its like, which look into / by themselves.
func inVirtualHost(name string) string {
	if name == "" {
		return ""
	}

	return " -p " + shell.Quote(name)
}
