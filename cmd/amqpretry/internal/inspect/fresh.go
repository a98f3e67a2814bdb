package inspect

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// The statistics of the management API, such as the policies that apply to a queue and the numbers
// of its messages, are old: a queue reports them every 5 s, and the API collects them every 5 s,
// with the broker's defaults.
const (
	// StatisticsAge is how old they can be.
	StatisticsAge = 10 * time.Second
	// statisticsPatience is when statistics are younger than the first question about them.
	statisticsPatience = StatisticsAge + 2*time.Second
	askAgain           = 500 * time.Millisecond
)

// renew asks the management API again for queues whose statistics differ from what the broker says
// without a delay: its policies, and the numbers that AMQP tells. It ends when they agree, or after
// statisticsPatience. RabbitMQ does not apply a policy with a key that the type of the queue does
// not have, so then they differ for good.
func (l *look) renew(queues []Object) {
	first := map[string]httpapi.Queue{}
	for _, o := range queues {
		first[o.Name] = l.Queues[o.Name].Details.Value
	}
	stale := func() []Object {
		return slices.DeleteFunc(slices.Clone(queues), func(o Object) bool { return l.Current(o, l.Queues[o.Name]) })
	}
	if len(stale()) == 0 {
		return
	}
	if none := ask(l, func() (bool, error) { return l.client.StatisticsDisabled(l.ctx) }); none.Known && none.Value {
		return
	}
	l.repeat(func() bool {
		l.Policies = ask(l, func() ([]httpapi.Policy, error) { return l.client.Policies(l.ctx) })
		l.OperatorPolicies = ask(l, func() ([]httpapi.Policy, error) { return l.client.OperatorPolicies(l.ctx) })
		for _, o := range stale() {
			q := l.Queues[o.Name]
			q.Exists, q.Ready, q.Consumers = l.broker.Queue(o.Name)
			q.Details = l.details(o.Name)
			l.Queues[o.Name] = q
		}
		return len(stale()) == 0
	})
	for _, o := range stale() {
		q := l.Queues[o.Name]
		before, now := first[o.Name].Reductions, q.Details.Value.Reductions
		q.Stale = q.Details.Value.Type == amqp.QueueTypeQuorum && before != nil && now != nil &&
			*before == *now
		l.Queues[o.Name] = q
	}
}

// repeat asks until the answer is true, for as long as statistics may be old.
func (l *look) repeat(question func() bool) {
	over := time.After(statisticsPatience)
	for l.ended() == nil {
		select {
		case <-over:
			return
		case <-l.ctx.Done():
			return
		case <-time.After(askAgain):
			if question() {
				return
			}
		}
	}
}

// Current tells whether the statistics of a queue agree with what the broker says without a delay.
func (f Facts) Current(o Object, q Queue) bool {
	d := q.Details.Value
	if !q.Exists.Known || !q.Exists.Value || !q.Details.Known {
		return true // there is nothing to wait for
	}
	if d.Effective == nil || !f.agrees(d) {
		return false
	}
	same := func(told *int64, n int) bool { return told == nil || *told == int64(n) }
	switch o.Role {
	case RoleMain: // whose numbers change all the time
		return true
	case RoleRetry, RoleDelay:
		return same(d.Consumers, q.Consumers)
	default:
		return same(d.Consumers, q.Consumers) && same(d.Ready, q.Ready)
	}
}

// agrees tells whether the policies in the statistics of a queue are those of the broker.
func (f Facts) agrees(q httpapi.Queue) bool {
	if !f.Policies.Known || !f.OperatorPolicies.Known {
		return true // the user may not see them
	}
	user, is := applied(f.Policies.Value, q, q.Policy)
	operator, isOperator := applied(f.OperatorPolicies.Value, q, q.OperatorPolicy)
	return is && isOperator && reflect.DeepEqual(Together(user, operator), q.Effective)
}

// applied is the definition of the policy with this name, and whether it can be the one that
// applies to a queue. No name stands for no policy. A pattern that Go cannot read, as Erlang's are
// more, may match.
func applied(policies []httpapi.Policy, q httpapi.Queue, name *string) (httpapi.Arguments, bool) {
	var told string
	if name != nil {
		told = *name
	}
	definition, possible := httpapi.Arguments{}, false
	best := math.MinInt // the priority of the one that applies; of several any one can
	for _, p := range slices.SortedStableFunc(slices.Values(policies), func(a, b httpapi.Policy) int {
		return cmp.Compare(b.Priority, a.Priority)
	}) {
		expression, err := regexp.Compile(p.Pattern)
		if p.Priority < best || !appliesTo(p, q.Type) || err == nil && !expression.MatchString(q.Name) {
			continue
		}
		if p.Name == told {
			definition, possible = p.Definition, true
		}
		if err == nil {
			best = p.Priority
		}
	}
	return definition, possible || told == "" && best == math.MinInt
}

// appliesTo tells whether a policy is for queues of a type.
func appliesTo(p httpapi.Policy, queueType string) bool {
	switch p.ApplyTo {
	case "", "all", "queues":
		return true
	default: // classic_queues, quorum_queues, streams
		return strings.HasPrefix(p.ApplyTo, queueType)
	}
}

// renewAlarms asks for the nodes again while they say something else of alarms than the connection
// that publishes.
func (l *look) renewAlarms(p *prober) {
	agree := func() bool {
		alarm := slices.ContainsFunc(l.Nodes.Value, func(n httpapi.Node) bool {
			return n.MemoryAlarm != nil && *n.MemoryAlarm || n.DiskAlarm != nil && *n.DiskAlarm
		})
		return !l.Nodes.Known || !l.Blocked.Known || alarm == (l.Blocked.Value != "")
	}
	if agree() {
		return
	}
	l.repeat(func() bool {
		l.Nodes = ask(l, func() ([]httpapi.Node, error) { return l.client.Nodes(l.ctx) })
		l.Blocked = p.blocked()
		return agree()
	})
}

// Together is what applies under a user's and an operator's policy: of two numbers the smaller one.
func Together(user, operator map[string]any) httpapi.Arguments {
	all := httpapi.Arguments(maps.Clone(user))
	for key, value := range operator {
		own, given := all[key].(int64)
		if n, isNumber := value.(int64); isNumber && given {
			value = min(own, n)
		}
		all[key] = value
	}
	return all
}
