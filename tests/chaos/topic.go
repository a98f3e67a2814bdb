package chaos

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Topic is one of the queues that a run uses, all at the same time.
type Topic struct {
	Name string // of the topic and its queue
	Main string // type of the main queue
	config.Policy
	// Lossy is true where classic retry queues are used, which lose what is due while the broker
	// comes up: counted, not forbidden.
	Lossy bool
	// Exact are the versions that have exact delays for it. The others have retry queues.
	Exact []Version
}

// Topics are those of a run, with policies that differ in what can make a difference to faults.
func Topics() []Topic {
	return []Topic{
		{Name: "quorum", Main: "quorum"},
		{Name: "protected", Main: "quorum", Policy: config.Policy{Protect: config.ProtectionArguments}},
		{Name: "classic", Main: "classic"},
		{Name: "shared", Main: "quorum", Policy: config.Policy{Strategy: config.StrategyShared}},
		{Name: "lossy", Main: "classic", Policy: config.Policy{ClassicQueues: true}, Lossy: true},
		{Name: "exact", Main: "quorum", Exact: []Version{VersionA, VersionB}},
		{Name: "exact-classic", Main: "classic", Exact: []Version{VersionA, VersionB}},
		{Name: "mixed", Main: "quorum", Exact: []Version{VersionB}},
		{Name: "cycle", Main: "quorum", Policy: config.Policy{Strategy: config.StrategyCycle}},
		{Name: "redelivery", Main: "quorum", Policy: config.Policy{Strategy: config.StrategyRedelivery}},
		{Name: "native", Main: "quorum", Policy: config.Policy{Strategy: config.StrategyNative}},
	}
}

// TopicsOn are those that a broker of a version can have.
func TopicsOn(broker string) []Topic {
	return slices.DeleteFunc(Topics(), func(t Topic) bool {
		return t.Strategy == config.StrategyNative && !rabbitmq.AtLeast(broker, 4, 3)
	})
}

// Version of a service. They run side by side, and processes change from one to the other.
type Version string

// The versions, which differ in their delays and in how often they retry.
const (
	VersionA Version = "a"
	VersionB Version = "b"
)

// Delays of a version. Fate Twice needs two at least.
func (v Version) Delays() []time.Duration {
	if v == VersionB {
		return []time.Duration{250 * time.Millisecond, time.Second}
	}

	return []time.Duration{150 * time.Millisecond, 400 * time.Millisecond, time.Second}
}

// fewest and most attempts of all versions.
func attempts() (fewest, most int) {
	a, b := len(VersionA.Delays())+1, len(VersionB.Delays())+1
	return min(a, b), max(a, b)
}

// delaysOf are those of a version for a topic. Where the delay is an argument of the main queue,
// all versions have the same one.
func (v Version) delaysOf(t Topic) []time.Duration {
	if t.Strategy == config.StrategyCycle || t.Strategy == config.StrategyNative {
		return []time.Duration{250 * time.Millisecond}
	}

	return v.Delays()
}

// Policies of a version, for the topics whose main queues have a type.
func Policies(v Version, main, broker string) config.Policies {
	topics := map[string]config.Policy{}
	for _, t := range TopicsOn(broker) {
		if t.Main != main {
			continue
		}
		p := t.Policy
		p.Delays, p.Retries = v.delaysOf(t), len(v.Delays())
		// Broker-driven strategies retry a message without a timestamp by copies because of it:
		// most of them, in one of the versions.
		if !t.Strategy.ByBroker() || v == VersionB {
			p.MaxAge = 6 * time.Hour // beyond all steps of the clock
		}
		if slices.Contains(t.Exact, v) {
			p.Strategy, p.Jitter = config.StrategyLadder, 0.5
		}
		topics[t.Name] = p
	}

	return config.Policies{Topics: topics}
}

// ladder is what messages with exact delays wait in: the default, whose queues all topics share.
var ladder = topology.Ladder{Config: config.RetryLadder()}

// leastAsked is the shortest wait that a handler asks for.
const leastAsked = 100 * time.Millisecond

// Asked is how long the handler asks a message to wait after a failed attempt, and 0 for what the
// policy says: that is a third of them. All magnitudes from 100 ms to longest are alike. A version
// with retry queues asks for nothing: such waits end by the clock of a process, which steps.
func Asked(topic string, v Version, id string, attempt int, longest time.Duration) time.Duration {
	if !slices.Contains(find(topic).Exact, v) || longest <= leastAsked {
		return 0
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s, attempt %d", id, attempt)
	n := h.Sum64()
	if n%3 == 0 {
		return 0
	}
	part := float64(n/3%1000) / 1000

	return time.Duration(float64(leastAsked) * math.Pow(float64(longest)/float64(leastAsked), part)).
		Round(time.Millisecond)
}

func find(topic string) Topic {
	for _, t := range Topics() {
		if t.Name == topic {
			return t
		}
	}

	return Topic{}
}

// names of the queues beside the main queue of a topic, which has the topic's name.
func deadLetterQueue(topic string) string { return topic + ".dlq" }

func retryQueue(topic string, delay time.Duration) string {
	t, name := find(topic), config.FormatDelay(delay)
	switch {
	case t.Strategy == config.StrategyShared:
		return "retry." + name
	case t.ClassicQueues:
		return topic + ".retry." + name + ".classic"
	}

	return topic + ".retry." + name
}

func landingQueue(topic string) string { return topic + ".landing" }

// exchanges are those through which a topic's failed messages go. One of them is deleted now and
// then.
func exchanges(t Topic) []string {
	switch {
	case t.Strategy == config.StrategyShared:
		return []string{"retry"}
	case len(t.Exact) > 0:
		return []string{ladder.Level(0), ladder.Level(1), ladder.Level(2)}
	case t.Strategy == config.StrategyCycle:
		return []string{t.Name + ".retry", t.Name + ".rejected." + config.FormatDelay(VersionA.delaysOf(t)[0])}
	}

	return []string{t.Name + ".retry"}
}

// targets are the queues through which a failed message goes, or its copy.
func targets(topic string, failed Record) []string {
	if failed.ByBroker && find(topic).Strategy.CountsReturns() {
		return nil // it stays in its own
	}
	if failed.Delay == 0 {
		return []string{deadLetterQueue(topic)}
	}
	exact := find(topic).Exact
	if len(exact) == 0 {
		return []string{retryQueue(topic, failed.Delay)}
	}
	queues := []string{retryQueue(topic, failed.Delay), landingQueue(topic)}
	digits := ladder.Config.Digits(failed.Delay)
	for i, digit := range digits {
		if digit != 0 {
			queues = append(queues, ladder.WaitQueue(len(digits)-1-i, digit))
		}
	}

	return queues
}
