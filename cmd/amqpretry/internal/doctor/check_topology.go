package doctor

import (
	"fmt"
	"slices"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

func lookExists(f Facts) []Finding {
	var found []Finding
	hidden, nowhere := blind{}, map[string]bool{}
	if f.Absent {
		found = append(found, f.nothingOfNamed())
	}
	for _, t := range f.Topics {
		if f.absent(t) {
			nowhere[t.Plan.Queue] = true
			found = append(found, f.nothingOf(t))
		}
	}
	for _, o := range f.objects() {
		switch exists := f.exists(o.Name); {
		case nowhere[o.Topic.Plan.Queue] && o.Ladder == "": // told as a whole
		case !exists.Known:
			hidden.add(exists.Why, o.Name)
		case !exists.Value:
			found = append(found, o.about(f.missing(o)))
		}
	}
	planned := f.plannedExchanges()
	for _, name := range sortedKeys(planned) {
		x := planned[name]
		switch exists := f.Exchanges[name].Exists; {
		case nowhere[x.topic.Plan.Queue] && x.ladder == "":
		case !exists.Known:
			hidden.add(exists.Why, name)
		case !exists.Value:
			finding := Finding{Severity: Problem, Object: fmt.Sprintf("exchange %q", name),
				Found: "there is no such exchange",
				Means: "failed messages stay unacknowledged until a service declares this exchange. Services " +
					"with AssumeTopology never declare it",
				Fix: f.apply(x.topic)}
			if x.ladder != "" {
				finding.of, finding.part, finding.Means = ladderLabel(x.ladder), finding.Object, ladderLacks
			}
			if name == rejected(x.topic.Plan) {
				finding.Means = rejectedStay
			}
			found = append(found, finding)
		}
	}
	found = append(found, f.cannotSee(hidden, "whether they exist")...)
	return append(found, f.onlyPoliciesTell("missing retry queues")...)
}

// ladderLacks is what comes of a missing part of a ladder.
const ladderLacks = "delayed messages stay at the level above, or unacknowledged at their consumer, until a service " +
	"declares it: when it starts, and each minute while it has messages to delay. Services with AssumeTopology " +
	"never declare it"

// missing is the finding about a queue that is not there.
func (f Facts) missing(o object) Finding {
	finding := Finding{Severity: Problem, Found: "there is no such queue", Fix: f.apply(o.Topic)}
	switch o.Role {
	case roleMain:
		finding.Found = "there is no such queue"
		finding.Means = "waiting messages cannot return: the retry queues keep them, and after 32 due messages they " +
			"return nothing else. Messages published to the main queue are lost or rejected"
		if o.Topic.Plan.Ladder != nil {
			finding.Means = "messages that are due stay in the landing queue. Messages published to the main queue " +
				"are lost or rejected"
		}
		finding.Fix = "# start the service that consumes it, which declares it with its own arguments. Waiting " +
			"messages return within 3 minutes"
	case roleLanding:
		finding.Means = "messages whose delay is over go to the queue for unroutable messages, until a service " +
			"declares the landing queue"
	case roleUnroutable:
		finding.Means = "messages that no target takes stop a level of the ladder for all, until a service declares it"
	case roleDelay:
		finding.Means = ladderLacks
	case roleRetry, roleDeadLetter:
		finding.Means = "failed messages stay unacknowledged until a service declares this queue. Services with " +
			"AssumeTopology never declare it"
	}
	return finding
}

// absent tells whether nothing of a topic is there, neither its main queue nor anything for its
// retries.
func (f Facts) absent(t Topic) bool {
	if len(t.Plan.Queues) == 0 && f.PolicyFile != "" {
		return false
	}
	missing := func(exists Seen[bool]) bool { return exists.Known && !exists.Value }
	for _, q := range t.Plan.Queues {
		if !missing(f.exists(q.Name)) {
			return false
		}
	}
	for _, x := range t.Plan.Exchanges {
		if !missing(f.Exchanges[x.Name].Exists) {
			return false
		}
	}

	return missing(f.exists(t.Plan.Queue))
}

func (f Facts) nothingOf(t Topic) Finding {
	lacks := "the " + times(len(t.Plan.Queues), "queue")
	if n := len(t.Plan.Exchanges); n > 0 {
		lacks += " and " + times(n, "exchange")
	}
	fix := "# the service that consumes it declares all of it. To declare all but the main queue now:\n" + f.apply(t)
	if !f.declares(t) {
		lacks, fix = "anything", f.apply(t)
	}

	return Finding{Severity: Problem, Object: object{Name: t.Plan.Queue, Role: roleMain}.label(),
		Found: fmt.Sprintf("virtual host %q has neither the queue nor %s for its retries", f.VHost, lacks),
		Means: "no service has consumed it here yet, or it is in another virtual host (--vhost), or has another name",
		Fix:   fix}
}

func (f Facts) nothingOfNamed() Finding {
	return Finding{Severity: Problem, Object: ladderLabel(f.Named.Name()),
		Found: fmt.Sprintf("virtual host %q has nothing of this ladder", f.VHost),
		Means: "no service has declared it here yet, or it is in another virtual host (--vhost), or has another name",
		Fix:   f.apply(Topic{})}
}

// plannedExchange is one of a topic, or of a ladder.
type plannedExchange struct {
	topology.Exchange
	topic  Topic
	ladder string
}

func (f Facts) plannedExchanges() map[string]plannedExchange {
	all := map[string]plannedExchange{}
	add := func(x topology.Exchange, t Topic, ladder string) {
		if _, known := all[x.Name]; !known {
			all[x.Name] = plannedExchange{x, t, ladder}
		}
	}
	for _, t := range f.Topics {
		for _, x := range t.Plan.Exchanges {
			add(x, t, "")
		}
	}
	for _, l := range f.ladders() {
		for _, x := range l.of.Shared().Exchanges {
			add(x, l.topic, l.name)
		}
	}
	return all
}

func lookArguments(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.objects(roleRetry, roleDeadLetter, roleLanding, roleDelay, roleUnroutable) {
		if exists := f.exists(o.Name); exists.Known && !exists.Value {
			continue
		}
		switch conflict := o.Queue.Conflict; {
		case !conflict.Known:
			hidden.add(conflict.Why, o.Name)
		case conflict.Value != nil:
			found = append(found, o.about(Finding{Severity: Problem, Found: differs(conflict.Value),
				Means: "a service that declares the queue fails to subscribe. With AssumeTopology, the queue " +
					"behaves differently from the policy" + limited(o),
				Fix: f.recreate(o)}))
		}
	}
	planned := f.plannedExchanges()
	for _, name := range sortedKeys(planned) {
		x := f.Exchanges[name]
		if !x.Exists.Known || !x.Exists.Value {
			continue
		}
		switch {
		case !x.Conflict.Known:
			hidden.add(x.Conflict.Why, name)
		case x.Conflict.Value != nil:
			finding := Finding{Severity: Problem, Object: fmt.Sprintf("exchange %q", name),
				Found: differs(x.Conflict.Value),
				Means: "the exchange does not route failed messages as planned, and a service that declares it fails " +
					"to subscribe",
				Fix: f.redeclareExchange(planned[name])}
			if l := planned[name].ladder; l != "" {
				finding.of, finding.part = ladderLabel(l), finding.Object
			}
			found = append(found, finding)
		}
	}
	return append(found, f.cannotSee(hidden, "arguments")...)
}

func differs(c *topology.ConflictError) string {
	text := "not declared as planned"
	if c.Argument != "" {
		text += ": " + c.Argument
	}
	if c.Wanted != "" || c.Found != "" {
		text += fmt.Sprintf(", wanted %s, found %s", orUnknown(c.Wanted), orUnknown(c.Found))
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
	told := map[string]bool{}
	look := func(b topology.Binding, missing func() Finding) {
		id := fmt.Sprint(b)
		x := f.Exchanges[b.Exchange]
		if told[id] || x.Exists.Known && !x.Exists.Value { // the exchange is missing: told already
			return
		}
		told[id] = true
		exists := f.Exchanges[b.ToExchange].Exists
		if b.ToExchange == "" {
			exists = f.exists(b.Queue)
		}
		if exists.Known && !exists.Value {
			return
		}
		switch {
		case !x.Bindings.Known:
			if !slices.Contains(hidden[x.Bindings.Why], b.Exchange) {
				hidden.add(x.Bindings.Why, b.Exchange)
			}
		case !slices.ContainsFunc(x.Bindings.Value, func(a httpapi.Binding) bool { return sameBinding(a, b) }):
			found = append(found, missing())
		}
	}
	for _, t := range f.Topics {
		for _, b := range t.Plan.Bindings {
			look(b, func() Finding { return f.unbound(t, b) })
		}
	}
	for _, l := range f.ladders() {
		for _, b := range l.of.Shared().Bindings {
			look(b, func() Finding {
				return Finding{Severity: Problem, Found: "it is missing", Means: ladderLacks, Fix: f.apply(l.topic),
					of:   ladderLabel(l.name),
					part: fmt.Sprintf("the binding of %q to %q", b.Queue+b.ToExchange, b.Exchange)}
			})
		}
	}
	return append(found, f.cannotSee(hidden, "bindings")...)
}

// unbound is the finding about a missing binding of a topic.
func (f Facts) unbound(t Topic, b topology.Binding) Finding {
	finding := Finding{Severity: Problem, Object: fmt.Sprintf("exchange %q", b.Exchange),
		Found: fmt.Sprintf("it is not bound to queue %q", b.Queue),
		Means: "failed messages stay unacknowledged until a service binds this queue. Services with " +
			"AssumeTopology never bind it" + lostOnReturn(t, b),
		Fix: f.apply(t)}
	if b.Exchange == rejected(t.Plan) {
		finding.Found = fmt.Sprintf("it is not bound to queue %q for %v", b.Queue, b.Arguments["x-first-death-reason"])
		finding.Means = rejectedStay
	}
	if b.Exchange != t.Plan.RetryExchange && t.Plan.Ladder != nil {
		finding.Means = fmt.Sprintf("messages for queue %q whose delay is over go to the queue for unroutable "+
			"messages, until a service binds the landing queue", t.Plan.Queue)
	}
	return finding
}

// lostOnReturn is what else a missing binding of the shared return exchange does.
func lostOnReturn(t Topic, b topology.Binding) string {
	if b.Queue != t.Plan.Queue {
		return ""
	}
	return ". Messages for this queue in shared retry queues cannot return, and after 32 such messages no others can"
}

func sameBinding(a httpapi.Binding, b topology.Binding) bool {
	if a.Queue != b.Queue || a.ToExchange != b.ToExchange || a.Key != b.Key || len(a.Arguments) != len(b.Arguments) {
		return false
	}
	for key, value := range b.Arguments {
		if a.Arguments[key] != value {
			return false
		}
	}
	return true
}

func lookObsolete(f Facts) []Finding {
	if f.PolicyFile == "" {
		return f.onlyPoliciesTell("retry queues and rejected exchanges that no policy uses")
	}
	if !f.Obsolete.Known {
		return f.cannotSee(blind{f.Obsolete.Why: nil}, "retry queues that no policy uses any more")
	}
	var found []Finding
	for _, x := range f.ObsoleteExchanges.Value {
		for _, t := range f.Topics {
			if t.Plan.Queue == x.Queue {
				found = append(found, Finding{Severity: Note, Object: fmt.Sprintf("exchange %q", x.Name),
					Found: "nothing dead-letters to it",
					Means: "it belongs to another delay or strategy; instances with an older policy declare it " +
						"again",
					Fix: "# after all instances with an older policy have ended:\n" + f.topology("prune", t)})
			}
		}
	}
	for _, q := range f.Obsolete.Value {
		main, _ := q.Arguments["x-dead-letter-routing-key"].(string)
		for _, t := range f.Topics {
			if t.Plan.Queue == main {
				found = append(found, Finding{Severity: Note, Object: fmt.Sprintf("retry queue %q", q.Name),
					Found: "no policy uses it",
					Means: "its waiting messages still return; instances with an older policy may still use it",
					Fix:   "# after all instances with an older policy have ended:\n" + f.topology("prune", t)})
			}
		}
	}
	return found
}
