package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// The operations that RabbitMQ has permissions for.
const (
	configure = "configure"
	write     = "write"
	read      = "read"
)

// defaultExchange is the name of the default exchange in permissions.
const defaultExchange = "amq.default"

// Permission is one that a consumer needs.
type Permission struct {
	Operation string
	// Kind and Name of the object.
	Kind, Name string
	// For is what it is needed for. Always is true if a service that declares nothing
	// (AssumeTopology) needs it as well.
	For    string
	Always bool
}

func (p Permission) same(q Permission) bool {
	return p.Operation == q.Operation && p.Kind == q.Kind && p.Name == q.Name
}

// needs lists what the consumers of these topics must be allowed, as docs/how-to/permissions.md
// says; each once.
func needs(topics []Topic) []Permission {
	var all []Permission
	add := func(operation, kind, name, why string, always bool) {
		p := Permission{operation, kind, name, why, always}
		i := slices.IndexFunc(all, p.same)
		switch {
		case i < 0:
			all = append(all, p)
		case always && !all[i].Always:
			all[i] = p
		}
	}
	ladders := map[string]bool{}
	for _, t := range topics {
		plan := t.Plan
		add(read, rabbitmq.KindQueue, plan.Queue, "consuming from it", true)
		if plan.RetryExchange != "" {
			add(write, rabbitmq.KindExchange, plan.RetryExchange, "publishing the copies of failed messages", true)
		}
		if exchange, _ := plan.End(); exchange == "" && plan.DeadLetterQueue != "" {
			add(write, rabbitmq.KindExchange, defaultExchange, "publishing dead letters", true)
		}
		add(configure, rabbitmq.KindQueue, plan.Queue, "declaring it", false)
		exchange, deadLetters := plan.MainArguments["x-dead-letter-exchange"].(string)
		if deadLetters && t.Policy.WithDefaults().Protect != config.ProtectionPolicy {
			add(write, rabbitmq.KindExchange, cmp.Or(exchange, defaultExchange), "declaring queues that "+
				"dead-letter to it",
				false)
		}
		if plan.Ladder != nil && !ladders[plan.Ladder.Name()] {
			ladders[plan.Ladder.Name()] = true
			for _, exchange := range entrances(plan.Ladder) {
				add(write, rabbitmq.KindExchange, exchange, "publishing the copies of failed messages", true)
			}
			declares(plan.Ladder.Shared(), add)
		}
		declares(plan, add)
	}
	return all
}

// declares adds what it takes to declare a plan.
func declares(plan topology.Plan, add func(operation, kind, name, why string, always bool)) {
	for _, x := range plan.Exchanges {
		add(configure, rabbitmq.KindExchange, x.Name, "declaring it", false)
		if alternate, has := x.Arguments["alternate-exchange"].(string); has {
			add(read, rabbitmq.KindExchange, x.Name, "declaring it, as it has an alternate exchange", false)
			add(write, rabbitmq.KindExchange, alternate, "declaring exchanges whose alternate exchange it is", false)
		}
	}
	for _, q := range plan.Queues {
		add(configure, rabbitmq.KindQueue, q.Name, "declaring it", false)
		if exchange, deadLetters := q.Arguments["x-dead-letter-exchange"].(string); deadLetters {
			if exchange == "" {
				exchange = defaultExchange
			}
			add(read, rabbitmq.KindQueue, q.Name, "declaring it, as it dead-letters", false)
			add(write, rabbitmq.KindExchange, exchange, "declaring queues that dead-letter to it", false)
		}
	}
	for _, b := range plan.Bindings {
		if b.ToExchange != "" {
			add(write, rabbitmq.KindExchange, b.ToExchange, "binding it", false)
		} else {
			add(write, rabbitmq.KindQueue, b.Queue, "binding it", false)
		}
		add(read, rabbitmq.KindExchange, b.Exchange, "binding queues to it", false)
	}
}

// entrances are the exchanges to which a service publishes what is to wait: those from which delay
// queues are reached.
func entrances(ladder *topology.Ladder) []string {
	shared := ladder.Shared()
	var all []string
	for _, b := range shared.Bindings {
		delays := slices.ContainsFunc(shared.Queues, func(q topology.Queue) bool {
			return q.Name == b.Queue && q.Delay > 0
		})
		if delays && !slices.Contains(all, b.Exchange) {
			all = append(all, b.Exchange)
		}
	}
	return all
}

// lacking lists those that the patterns do not match. A pattern that Go cannot read, as Erlang's
// are more, matches.
func lacking(wanted []Permission, granted httpapi.Permissions) []Permission {
	var missing []Permission
	for _, p := range wanted {
		pattern := map[string]string{configure: granted.Configure, write: granted.Write,
			read: granted.Read}[p.Operation]
		expression, err := regexp.Compile(pattern)
		if pattern == "" || err == nil && !expression.MatchString(p.Name) { // an empty pattern matches nothing
			missing = append(missing, p)
		}
	}
	return missing
}

func lookPermissions(f Facts) []Finding {
	wanted := needs(f.Topics)
	missing := slices.Clone(f.Refused.Value)
	if f.Granted.Known {
		for _, p := range lacking(wanted, f.Granted.Value) {
			// What the broker has said counts. It says nothing of reading an exchange when it has
			// refused the queue that was to be bound.
			asked := f.Refused.Known && (p.Operation != read || p.Kind != rabbitmq.KindExchange)
			if !asked && !slices.ContainsFunc(missing, p.same) {
				missing = append(missing, p)
			}
		}
	}
	user := fmt.Sprintf("user %q", f.User)
	fix := f.grant(wanted)
	var found []Finding
	for _, p := range missing {
		ofLadder := f.ladderOf(p.Name) != ""
		if ofLadder && !p.Always {
			p.For = "declaring the ladder"
		}
		finding := Finding{Severity: Warning, Object: user, Fix: fix,
			Found: fmt.Sprintf("no %s permission on %s %q", p.Operation, p.Kind, p.Name),
			Means: "a service with this user fails at " + p.For + ", unless it declares nothing (AssumeTopology)"}
		if p.Always {
			finding.Severity = Problem
			finding.Means = "a service with this user fails at " + p.For
			if p.Operation == write {
				finding.Means += ": failed messages stay unacknowledged"
			}
		}
		if ofLadder {
			finding.of, finding.part = user, fmt.Sprintf("%s %q", p.Kind, p.Name)
			finding.Found = fmt.Sprintf("no %s permission", p.Operation)
		}
		found = append(found, finding)
	}
	if len(found) == 0 && !f.Refused.Known && !f.Granted.Known {
		return f.cannotSee(blind{f.Refused.Why: nil}, "permissions")
	}
	return found
}

// ladderOf is the name of the ladder that an object belongs to; empty for any other object.
func (f Facts) ladderOf(name string) string {
	for _, l := range f.ladders() {
		if strings.HasPrefix(name, l.name+".") {
			return l.name
		}
	}
	return ""
}

// pattern matches a name; of a ladder, all that it has: there are more than fifty.
func (f Facts) pattern(name string) string {
	if l := f.ladderOf(name); l != "" {
		return regexp.QuoteMeta(l+".") + ".*"
	}
	return regexp.QuoteMeta(name)
}

// grant gives the user what is wanted, beside what is granted.
func (f Facts) grant(wanted []Permission) string {
	pattern := func(operation, granted string) string {
		var names []string
		for _, p := range wanted {
			if name := f.pattern(p.Name); p.Operation == operation && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		all := "^(" + strings.Join(names, "|") + ")$"
		switch {
		case len(names) == 0:
			return shell.Quote(granted)
		case granted != "" && granted != "^$":
			all = "(" + granted + ")|" + all
		}
		return shell.Quote(all)
	}
	g := f.Granted.Value
	command := f.ctl("set_permissions", shell.Quote(f.User), pattern(configure, g.Configure), pattern(write, g.Write),
		pattern(read, g.Read))
	if !f.Granted.Known {
		return "# This replaces the present permissions. List them, and add them to the patterns:\n#   rabbitmqctl " +
			"list_user_permissions " + shell.Quote(f.User) + "\n" + command
	}
	return command
}
