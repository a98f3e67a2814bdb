package doctor

import (
	"slices"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func lookExists(f Facts) []Finding {
	var found []Finding
	hidden, nowhere := blind{}, map[string]bool{}
	if f.Absent {
		finding := f.says("exists.ladder", "fix", f.apply(inspect.Topic{}))
		finding.Object = ladderLabel(f.Named.Name())
		found = append(found, finding)
	}
	for _, t := range f.Topics {
		if f.absent(t) {
			nowhere[t.Plan.Queue] = true
			found = append(found, f.nothingOf(t))
		}
	}
	for _, o := range slices.Concat(f.queues(), f.exchanges()) {
		exists := f.Exchanges[o.Name].Exists
		if o.IsQueue() {
			exists = f.Exists(o.Name)
		}
		switch {
		case nowhere[o.Topic.Plan.Queue] && o.Ladder == "": // told as a whole
		case !exists.Known:
			hidden.add(exists.Why, o.Name)
		case !exists.Value:
			found = append(found, f.says("exists."+missing(o), "fix", f.apply(o.Topic)).about(o))
		}
	}
	found = append(found, f.cannotSee(hidden, "whether they exist")...)
	return append(found, f.onlyPoliciesTell("missing retry queues")...)
}

// slug is a role in the names of rules.
func slug(r inspect.Role) string {
	return map[inspect.Role]string{inspect.RoleMain: "main", inspect.RoleRetry: "retry",
		inspect.RoleDeadLetter: "dead-letter", inspect.RoleLanding: "landing", inspect.RoleDelay: "delay",
		inspect.RoleUnroutable: "unroutable", inspect.RoleExchange: "exchange"}[r]
}

// missing is the rule about an object that is not there.
func missing(o inspect.Object) string {
	switch {
	case o.Role == inspect.RoleMain && o.Topic.Plan.Ladder != nil:
		return "main-exact"
	case o.Exchange != nil && o.Name == rejected(o.Topic.Plan):
		return "exchange-rejected"
	case o.Exchange != nil && o.Ladder != "":
		return "exchange-ladder"
	default:
		return slug(o.Role)
	}
}

// absent tells whether nothing of a topic is there, neither its main queue nor anything for its
// retries.
func (f Facts) absent(t inspect.Topic) bool {
	if len(t.Plan.Queues) == 0 && f.PolicyFile != "" {
		return false
	}
	return gone(f.Exists(t.Plan.Queue)) &&
		!slices.ContainsFunc(t.Plan.Queues, func(q topology.Queue) bool { return !gone(f.Exists(q.Name)) }) &&
		!slices.ContainsFunc(t.Plan.Exchanges,
			func(x topology.Exchange) bool { return !gone(f.Exchanges[x.Name].Exists) })
}

func (f Facts) nothingOf(t inspect.Topic) Finding {
	lacks, fix := "anything", f.apply(t)
	if f.declares(t) {
		lacks = "the " + cli.Times(len(t.Plan.Queues), "queue")
		if n := len(t.Plan.Exchanges); n > 0 {
			lacks += " and " + cli.Times(n, "exchange")
		}
		fix = f.says("exists.topic-fix", "fix", fix).Fix
	}
	return f.says("exists.topic", "lacks", lacks, "fix", fix).about(inspect.Object{Name: t.Plan.Queue,
		Role: inspect.RoleMain})
}

func lookArguments(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	queues := f.queues(inspect.RoleRetry, inspect.RoleDeadLetter, inspect.RoleLanding, inspect.RoleDelay,
		inspect.RoleUnroutable)
	for _, o := range slices.Concat(queues, f.exchanges()) {
		rule, exists, conflict := "arguments.queue", f.Exists(o.Name), o.Is.Conflict
		if o.Exchange != nil {
			x := f.Exchanges[o.Name]
			rule, exists, conflict = "arguments.exchange", x.Exists, x.Conflict
		}
		switch {
		case gone(exists), o.Exchange != nil && !exists.Known:
		case !conflict.Known:
			hidden.add(conflict.Why, o.Name)
		case conflict.Value != nil:
			found = append(found, f.says(rule, "differs", differs(conflict.Value), "limited", f.limited(o),
				"fix", f.recreate(o)).about(o))
		}
	}
	return append(found, f.cannotSee(hidden, "arguments")...)
}

func differs(c *topology.ConflictError) (text string) {
	if c.Argument != "" {
		text = ": " + c.Argument
	}
	if c.Wanted != "" || c.Found != "" {
		text += ", wanted " + orUnknown(c.Wanted) + ", found " + orUnknown(c.Found)
	}
	return text
}

func orUnknown(value string) string {
	if value == "" {
		return "another value"
	}
	return value
}

func lookBindings(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.Objects(inspect.RoleBinding) {
		b := *o.Binding
		x, to := f.Exchanges[b.Exchange], f.Exchanges[b.ToExchange].Exists
		if b.ToExchange == "" {
			to = f.Exists(b.Queue)
		}
		switch {
		case gone(x.Exists), gone(to): // told already
		case !x.Bindings.Known:
			if !slices.Contains(hidden[x.Bindings.Why], b.Exchange) {
				hidden.add(x.Bindings.Why, b.Exchange)
			}
		case !f.Binds(b):
			found = append(found, f.unbound(o, b))
		}
	}
	return append(found, f.cannotSee(hidden, "bindings")...)
}

// unbound is the finding about a missing binding.
func (f Facts) unbound(o inspect.Object, b topology.Binding) Finding {
	plan, rule := o.Topic.Plan, "bindings.queue"
	switch {
	case o.Ladder != "":
		rule = "bindings.ladder"
	case b.Exchange != plan.RetryExchange && plan.Ladder != nil:
		rule = "bindings.landing"
	case b.Exchange == rejected(plan):
		rule = "bindings.rejected"
	case b.Queue == plan.Queue: // to the shared return exchange
		rule = "bindings.return"
	}
	finding := f.says(rule, "queue", b.Queue, "main", plan.Queue, "reason", b.Arguments["x-first-death-reason"],
		"fix", f.apply(o.Topic))
	if o.Ladder != "" {
		finding.of = ladderLabel(o.Ladder)
		finding.part = "the binding of " + quoted(b.Queue+b.ToExchange) + " to " + quoted(b.Exchange)
		return finding
	}
	finding.Object = "exchange " + quoted(b.Exchange)
	return finding
}

func lookObsolete(f Facts) []Finding {
	if f.PolicyFile == "" {
		return f.onlyPoliciesTell("retry queues and rejected exchanges that no policy uses")
	}
	if !f.Obsolete.Known {
		return f.cannotSee(blind{f.Obsolete.Why: nil}, "retry queues that no policy uses any more")
	}
	var found []Finding
	add := func(rule, main string, o inspect.Object) {
		for _, t := range f.Topics {
			if t.Plan.Queue == main {
				found = append(found, f.says(rule, "fix", f.topology("prune", t)).about(o))
			}
		}
	}
	for _, x := range f.Obsolete.Value.Exchanges {
		add("obsolete.exchange", x.Queue, inspect.Object{Name: x.Name, Role: inspect.RoleExchange})
	}
	for _, q := range f.Obsolete.Value.Queues {
		main, _ := q.Arguments["x-dead-letter-routing-key"].(string)
		add("obsolete.queue", main, inspect.Object{Name: q.Name, Role: inspect.RoleRetry})
	}
	return found
}

// rejected is the exchange to which the main queue of a plan dead-letters under the strategy cycle;
// empty under any other.
func rejected(plan topology.Plan) string {
	if plan.Strategy != config.StrategyCycle {
		return ""
	}
	exchange, _ := plan.MainArguments["x-dead-letter-exchange"].(string)
	return exchange
}
