package doctor

import (
	"cmp"
	"context"
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
	statisticsAge = 10 * time.Second
	// statisticsPatience is when statistics are younger than the first question about them.
	statisticsPatience = statisticsAge + 2*time.Second
	askAgain           = 500 * time.Millisecond
)

// renew asks the management API again for queues whose statistics differ from what the broker says
// without a delay: its policies, and the numbers that AMQP tells. It ends when they agree, or after
// statisticsPatience. RabbitMQ does not apply a policy with a key that the type of the queue does
// not have, so then they differ for good.
func (f *Facts) renew(ctx context.Context, a *api, p *prober, queues []object) {
	first := map[string]httpapi.Queue{}
	for _, o := range queues {
		first[o.Name] = f.Queues[o.Name].Details.Value
	}
	stale := func() []object {
		return slices.DeleteFunc(slices.Clone(queues), func(o object) bool { return f.current(o, f.Queues[o.Name]) })
	}
	if len(stale()) == 0 {
		return
	}
	if none := ask(a, func() (bool, error) { return a.client.StatisticsDisabled(ctx) }); none.Known && none.Value {
		return
	}
	repeat(ctx, p, func() bool {
		f.Policies = ask(a, func() ([]httpapi.Policy, error) { return a.client.Policies(ctx) })
		f.OperatorPolicies = ask(a, func() ([]httpapi.Policy, error) { return a.client.OperatorPolicies(ctx) })
		for _, o := range stale() {
			q := f.Queues[o.Name]
			q.Exists, q.Ready, q.Consumers = p.state(o.Name)
			q.Details = details(ctx, a, o.Name)
			f.Queues[o.Name] = q
		}
		return len(stale()) == 0
	})
	for _, o := range stale() {
		q := f.Queues[o.Name]
		before, now := first[o.Name].Reductions, q.Details.Value.Reductions
		q.Stale = q.Details.Value.Type == amqp.QueueTypeQuorum && before != nil && now != nil &&
			*before == *now
		f.Queues[o.Name] = q
	}
}

// repeat asks until the answer is true, for as long as statistics may be old.
func repeat(ctx context.Context, p *prober, question func() bool) {
	over := time.After(statisticsPatience)
	for p.ended() == nil {
		select {
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-time.After(askAgain):
			if question() {
				return
			}
		}
	}
}

// current tells whether the statistics of a queue agree with what the broker says without a delay.
func (f Facts) current(o object, q Queue) bool {
	d := q.Details.Value
	if !q.Exists.Known || !q.Exists.Value || !q.Details.Known {
		return true // there is nothing to wait for
	}
	if d.Effective == nil || !f.agrees(d) {
		return false
	}
	same := func(told *int64, n int) bool { return told == nil || *told == int64(n) }
	switch o.Role {
	case roleMain: // whose numbers change all the time
		return true
	case roleRetry, roleDelay:
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
	return is && isOperator && reflect.DeepEqual(together(user, operator), q.Effective)
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
func (f *Facts) renewAlarms(ctx context.Context, a *api, p *prober) {
	agree := func() bool {
		alarm := slices.ContainsFunc(f.Nodes.Value, func(n httpapi.Node) bool {
			return n.MemoryAlarm != nil && *n.MemoryAlarm || n.DiskAlarm != nil && *n.DiskAlarm
		})
		return !f.Nodes.Known || !f.Blocked.Known || alarm == (f.Blocked.Value != "")
	}
	if agree() {
		return
	}
	repeat(ctx, p, func() bool {
		f.Nodes = ask(a, func() ([]httpapi.Node, error) { return a.client.Nodes(ctx) })
		f.Blocked = p.blocked()
		return agree()
	})
}
