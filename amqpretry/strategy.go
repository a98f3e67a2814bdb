package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// validateMainQueues refuses what policies need of main queues and cannot have, as far as that does
// not depend on a topic: see checkMainQueue.
func validateMainQueues(arguments amqp091.Table, o Options) error {
	var errs []error
	var protected []string // paths of policies that ask for the same
	for _, p := range named(o) {
		if p.protect == config.ProtectionArguments && !p.policy.Strategy.ByBroker() {
			protected = append(protected, p.path)
		}
		if !p.policy.Strategy.ByBroker() || p.policy.Validate() != nil { // which is told already
			continue
		}
		if o.AssumeTopology {
			errs = append(errs, &config.FieldError{
				Path: "Options.AssumeTopology",
				Problem: fmt.Sprintf("not possible with the strategy %s of %s: nobody could see "+
					"whether the main queue has what it needs, and its messages could be lost", p.policy.Strategy,
					p.path),
				Wanted: "left out", Found: "true",
			})
		}
		plan, err := topology.New("queue", p.policy, topology.Names{})
		errs = append(errs, err, p.conflicts(arguments, plan, "", func(key string) bool {
			return strings.HasPrefix(key, "x-dead-letter-") && plan.MainArguments[key] != "at-least-once"
		}))
	}
	if len(protected) > 0 {
		given, _ := arguments["x-dead-letter-routing-key"].(string) // it depends on the topic
		of := namedPolicy{path: strings.Join(protected, ", "), protect: config.ProtectionArguments}
		errs = append(errs, of.conflicts(arguments, topology.Plan{}, given, nil))
	}

	return errors.Join(errs...)
}

// namedPolicy is a policy with the path of its field, and with what it says itself of the
// protection.
type namedPolicy struct {
	path    string
	policy  config.Policy
	protect config.Protection
}

// named are the policies of all topics and those of single groups.
func named(o Options) []namedPolicy {
	var all []namedPolicy
	add := func(path string, policies config.Policies) {
		all = append(all, namedPolicy{path + ".Default", policies.Default.WithDefaults(), policies.Default.Protect})
		for _, topic := range slices.Sorted(maps.Keys(policies.Topics)) {
			// a glob is a key as well, and no other fits it better
			all = append(all, namedPolicy{fmt.Sprintf("%s.Topics[%q]", path, topic), policies.For(topic),
				policies.Topics[topic].Protect})
		}
	}
	add("Options.Policies", o.Policies)
	for _, group := range slices.Sorted(maps.Keys(o.Groups)) {
		add(groupPath(group), o.Groups[group])
	}

	return all
}

// conflicts are the arguments of the config that say otherwise than the protection or the strategy
// of a policy needs. Those of a strategy that depend on the topic can be skipped.
func (p namedPolicy) conflicts(
	arguments amqp091.Table, plan topology.Plan, deadLetterQueue string, skip func(key string) bool,
) error {
	var errs []error
	add := func(key, problem, wanted string, found any) {
		errs = append(errs, &config.FieldError{Path: fmt.Sprintf("Config.Queue.Arguments[%q]", key),
			Problem: problem, Wanted: wanted, Found: spelled(found)})
	}
	of := fmt.Sprintf(" the strategy %s of %s", p.policy.Strategy, p.path)
	switch {
	case p.policy.Strategy.ByBroker():
		for _, key := range plan.MainConflicts(arguments) {
			switch wanted, needed := plan.MainArguments[key]; {
			case skip(key):
			case needed && key == "x-delivery-limit" && plan.Strategy != config.StrategyCycle:
				add(key, "not possible with"+of, "left out, or 0 and more", arguments[key])
			case needed:
				add(key, "differs from what is needed by"+of, "left out, or "+spelled(wanted), arguments[key])
			default:
				add(key, "not possible with"+of, "left out", arguments[key])
			}
		}
		if _, given := arguments[amqp091.QueueTypeArg]; !given && p.policy.Protect == config.ProtectionPolicy {
			add(amqp091.QueueTypeArg, "a policy of the broker cannot set it, and it is needed by"+of,
				spelled(amqp091.QueueTypeQuorum), "none")
		}
	case p.protect == config.ProtectionArguments:
		protection := topology.ProtectArguments(deadLetterQueue)
		for _, key := range slices.Sorted(maps.Keys(protection)) {
			if found, given := arguments[key]; given && !rabbitmq.SameArgument(found, protection[key]) {
				add(key, fmt.Sprintf("differs from the protection that %s asks for (protect: %s)", p.path, p.protect),
					"left out, or "+spelled(protection[key]), found)
			}
		}
	}

	return errors.Join(errs...)
}

// checkMainQueue is the part of the validation that depends on the topic.
func (r *Retrier) checkMainQueue(main mainQueue, policy config.Policy, plan topology.Plan) error {
	var err error
	if policy.Mode == config.ModeOff && policy.Protect == config.ProtectionArguments {
		// The name of the dead-letter queue becomes an argument of the main queue, though the plan
		// does not have it.
		_, err = topology.New(main.Queue, onlyDeadLetters, r.options.Names)
	}
	of := namedPolicy{fmt.Sprintf("topic %q", main.Topic), policy, policy.Protect}

	return errors.Join(err, of.conflicts(r.config.Queue.Arguments, plan, r.options.Names.DeadLetterQueue(main.Queue),
		func(string) bool { return false }))
}

// explainStrategy tells what to do about a main queue that exists with other arguments than its
// strategy needs.
func (r *Retrier) explainStrategy(queue *consumer.Queue, conflict *topology.ConflictError) error {
	ways := "ways out: the steps that `amqpretry topology verify` prints"
	limit, _ := strconv.Atoi(conflict.Found)
	switch vhost, err := vhostOf(r.config.Connection); {
	case err != nil:
	case conflict.Argument == "x-delivery-limit" && limit > 0 && queue.Plan.KeepsLimit(limit):
		ways += fmt.Sprintf("; or Config.Queue.Arguments[%q] = %d, which keeps its own", conflict.Argument, limit)
	case conflict.Found == "none": // else a policy of the broker changes nothing
		if policy, ok := queue.Plan.MainPolicy(vhost); ok {
			ways += fmt.Sprintf("; or, for a quorum queue that has none of these arguments, config.ProtectionPolicy "+
				"with %q: \"quorum\" in Config.Queue.Arguments, when an operator has run the line below\n%s",
				amqp091.QueueTypeArg, policy)
		}
	}

	explained := *conflict
	explained.WaysOut = ways

	return fmt.Errorf("queue %q lacks arguments that the strategy %s of topic %q needs, and the broker cannot change "+
		"arguments of a queue: %w", queue.Name, queue.Plan.Strategy, queue.Topic, &explained)
}

// checkNative refuses the strategy native on a broker that would redeliver at once, or of which
// nothing is known: its version is empty, or the 0.0.0 of a build from source.
//
// Upstream: no delayed retry, and its arguments are ignored without an error.
func checkNative(plan topology.Plan, version string) error {
	if plan.Strategy != config.StrategyNative || rabbitmq.DelaysRetries(version) {
		return nil
	}

	return &topology.StrategyError{Queue: plan.Queue, Strategy: config.StrategyNative, Version: version}
}
