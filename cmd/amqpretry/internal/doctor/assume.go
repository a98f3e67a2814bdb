package doctor

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// assume plans the topics by what the broker has for them, as nobody has given their policies: they
// may be written in Go. It finds no retry queue that is missing, and none that no policy uses.
func (f *Facts) assume(ctx context.Context, a *api, p *prober) {
	for i, t := range f.Topics {
		policy := f.assumed(ctx, a, p, t.Plan.Queue)
		plan, err := topology.New(t.Plan.Queue, policy, f.Names)
		if err != nil { // queues of that name that no service can have declared
			policy = config.Policy{Mode: config.ModeOff}
			plan = topology.Plan{Queue: t.Plan.Queue}
		}
		f.Topics[i] = Topic{t.Name, policy, plan}
	}
}

// assumed is a policy under which the broker has what it has for a main queue.
func (f *Facts) assumed(ctx context.Context, a *api, p *prober, queue string) config.Policy {
	names := f.Names.WithDefaults()
	main := effective(details(ctx, a, queue).Value)
	bindings := func(queue string) []httpapi.Binding {
		return ask(a, func() ([]httpapi.Binding, error) { return a.client.Bindings(ctx, queue) }).Value
	}
	returns := func(b httpapi.Binding) bool { return b.Exchange == names.Shared+".return" }

	policy := f.waitsIn(p, queue+".retry")
	switch landing := names.Landing(topology.Target{Key: queue}); {
	case len(policy.Delays) > 0:
	case slices.ContainsFunc(bindings(queue), returns):
		policy = f.waitsIn(p, names.Shared)
		policy.Strategy = config.StrategyShared
	case f.hasQueue(p, landing):
		policy = config.Policy{Strategy: config.StrategyLadder, Ladder: config.RetryLadder()}
		for _, b := range bindings(landing) {
			if l, err := topology.ParseLadderName(strings.TrimSuffix(b.Exchange, ".delivery")); err == nil {
				policy.Ladder = l.Config
			}
		}
		policy.Delays = []time.Duration{policy.Ladder.Unit} // any one: no object depends on it
	}
	switch {
	case len(policy.Delays) > 0:
	case p.exchange(names.RetryExchange(queue), nil).Exists.Value:
		policy = config.Policy{Mode: config.ModeDeadLetter}
	case f.hasQueue(p, names.DeadLetterQueue(queue)):
		policy = config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared} // without an exchange
	default:
		return config.Policy{Mode: config.ModeOff}
	}

	rejects, _ := main["x-dead-letter-exchange"].(string)
	rest, cycle := strings.CutPrefix(rejects, queue+".rejected.")
	delay, _, _ := strings.Cut(rest, ".")
	switch spelled, err := config.ParseDelay(delay); {
	case cycle && err == nil && len(policy.Delays) > 0:
		policy.Strategy, policy.Delays, policy.Retries = config.StrategyCycle, []time.Duration{spelled}, 1
	case main["x-delayed-retry-type"] == "failed" && len(policy.Delays) > 0:
		policy.Strategy, policy.Protect = config.StrategyNative, config.ProtectionPolicy // or arguments
	}
	return policy
}

// waitsIn is the policy with the delays for which the broker has retry queues with such names.
func (f *Facts) waitsIn(p *prober, prefix string) config.Policy {
	var queues []string
	for _, q := range f.All.Value {
		queues = append(queues, q.Name)
	}
	if !f.All.Known { // AMQP lists no queues: those of the library's default policy are asked for
		for _, delay := range config.Default().Delays {
			if name := prefix + "." + config.FormatDelay(delay); f.hasQueue(p, name) {
				queues = append(queues, name)
			}
		}
	}
	var quorum, classic []time.Duration
	for _, name := range queues {
		rest, is := strings.CutPrefix(name, prefix+".")
		spelled, isClassic := strings.CutSuffix(rest, ".classic")
		delay, err := config.ParseDelay(spelled)
		switch {
		case !is || err != nil:
		case isClassic:
			classic = append(classic, delay)
		default:
			quorum = append(quorum, delay)
		}
	}
	policy := config.Policy{Delays: quorum}
	if len(quorum) == 0 && len(classic) > 0 {
		policy = config.Policy{Delays: classic, ClassicQueues: true}
	}
	slices.Sort(policy.Delays)
	return policy
}

// hasQueue tells whether there is such a queue.
func (f *Facts) hasQueue(p *prober, queue string) bool {
	exists := f.exists(queue)
	if !exists.Known {
		exists, _, _ = p.state(queue)
	}
	return exists.Value
}

// noPolicies is why a check says less without them.
const noPolicies = "no policies were given, so doctor takes the delays of a queue from the retry queues that it has: " +
	"pass --policies with a file. policyfile.Format writes policies of Go to one"

// onlyPoliciesTell is the finding about what cannot be known without them.
func (f Facts) onlyPoliciesTell(what string) []Finding {
	if f.PolicyFile != "" || len(f.Topics) == 0 {
		return nil
	}
	return f.cannotSee(blind{noPolicies: nil}, what)
}

// declares tells whether a command of this program knows what a topic needs: from a policy file, or
// because it has all of the default policy.
func (f Facts) declares(t Topic) bool {
	if f.PolicyFile != "" {
		return true
	}
	plan, err := topology.New(t.Plan.Queue, config.Policy{}, f.Names)
	return err == nil && reflect.DeepEqual(plan, t.Plan)
}

// byService is what declares what a topic needs if no command can.
func (f Facts) byService(command string, t Topic) string {
	return fmt.Sprintf("# Start the service that consumes %q: it declares what is missing. Or write its policies to a "+
		"file (policyfile.Format),\n# and run:\n", t.Plan.Queue) + commented(command)
}
