package inspect

import (
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// assume plans the topics by what the broker has for them, as nobody has given their policies: they
// may be written in Go. It finds no retry queue that is missing, and none that no policy uses.
func (l *look) assume() {
	for i, t := range l.Topics {
		policy := l.assumed(t.Plan.Queue)
		plan, err := topology.New(t.Plan.Queue, policy, l.Names)
		if err != nil { // queues of that name that no service can have declared
			policy = config.Policy{Mode: config.ModeOff}
			plan = topology.Plan{Queue: t.Plan.Queue}
		}
		l.Topics[i] = Topic{t.Name, policy, plan}
	}
}

// assumed is a policy under which the broker has what it has for a main queue.
func (l *look) assumed(queue string) config.Policy {
	names := l.Names.WithDefaults()
	main := Effective(l.details(queue).Value)
	bindings := func(queue string) []httpapi.Binding {
		return ask(l, func() ([]httpapi.Binding, error) { return l.client.Bindings(l.ctx, queue) }).Value
	}
	returns := func(b httpapi.Binding) bool { return b.Exchange == names.Shared+".return" }

	policy := l.waitsIn(queue + ".retry")
	switch landing := names.Landing(topology.Target{Key: queue}); {
	case len(policy.Delays) > 0:
	case slices.ContainsFunc(bindings(queue), returns):
		policy = l.waitsIn(names.Shared)
		policy.Strategy = config.StrategyShared
	case l.hasQueue(landing):
		policy = config.Policy{Strategy: config.StrategyLadder, Ladder: config.RetryLadder()}
		for _, b := range bindings(landing) {
			if ladder, err := topology.ParseLadderName(strings.TrimSuffix(b.Exchange, ".delivery")); err == nil {
				policy.Ladder = ladder.Config
			}
		}
		policy.Delays = []time.Duration{policy.Ladder.Unit} // any one: no object depends on it
	}
	switch {
	case len(policy.Delays) > 0:
	case l.broker.Exchange(names.RetryExchange(queue)).Value:
		policy = config.Policy{Mode: config.ModeDeadLetter}
	case l.hasQueue(names.DeadLetterQueue(queue)):
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
func (l *look) waitsIn(prefix string) config.Policy {
	var queues []string
	for _, q := range l.All.Value {
		queues = append(queues, q.Name)
	}
	if !l.All.Known { // AMQP lists no queues: those of the library's default policy are asked for
		for _, delay := range config.Default().Delays {
			if name := prefix + "." + config.FormatDelay(delay); l.hasQueue(name) {
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
func (l *look) hasQueue(queue string) bool {
	exists := l.Exists(queue)
	if !exists.Known {
		exists, _, _ = l.broker.Queue(queue)
	}
	return exists.Value
}
