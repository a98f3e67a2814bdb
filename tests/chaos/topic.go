package chaos

import (
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// Topic is one of the queues that a run uses, all at the same time.
type Topic struct {
	Name string // of the topic and its queue
	Main string // type of the main queue
	config.Policy
	// Lossy is true where classic retry queues are used, which lose what is due while the broker comes up: counted, not
	// forbidden.
	Lossy bool
}

// Topics are those of a run, with policies that differ in what can make a difference to faults.
func Topics() []Topic {
	return []Topic{
		{Name: "quorum", Main: "quorum"},
		{Name: "protected", Main: "quorum", Policy: config.Policy{Protect: config.ProtectionArguments}},
		{Name: "classic", Main: "classic"},
		{Name: "shared", Main: "quorum", Policy: config.Policy{Scope: config.ScopeShared}},
		{Name: "lossy", Main: "classic", Policy: config.Policy{QueueType: config.QueueTypeClassic}, Lossy: true},
	}
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

// Policies of a version, for the topics whose main queues have a type.
func Policies(v Version, main string) config.Policies {
	topics := map[string]config.Policy{}
	for _, t := range Topics() {
		if t.Main != main {
			continue
		}
		p := t.Policy
		p.Delays = v.Delays()
		p.MaxAge = 6 * time.Hour // beyond all steps of the clock
		topics[t.Name] = p
	}

	return config.Policies{Topics: topics}
}

func find(topic string) Topic {
	for _, t := range Topics() {
		if t.Name == topic {
			return t
		}
	}

	return Topic{}
}

func mainType(topic string) string { return find(topic).Main }
func isLossy(topic string) bool    { return find(topic).Lossy }

// names of the queues beside the main queue of a topic, which has the topic's name.
func deadLetterQueue(topic string) string { return topic + ".dlq" }

func retryQueue(topic string, delay time.Duration) string {
	t, name := find(topic), config.FormatDelay(delay)
	switch {
	case t.Scope == config.ScopeShared:
		return "retry." + name
	case t.QueueType == config.QueueTypeClassic:
		return topic + ".retry." + name + ".classic"
	}

	return topic + ".retry." + name
}

// target is the queue into which a failed message is copied.
func target(topic string, failed Record) string {
	if failed.Delay > 0 {
		return retryQueue(topic, failed.Delay)
	}

	return deadLetterQueue(topic)
}
