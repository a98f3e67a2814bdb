package config

// Policies are the policies of a service: one per topic that needs its own, and one for all others.
// The zero value means [Default] for every topic.
type Policies struct {
	// Default holds for topics that are not in Topics. A zero Policy means Default().
	Default Policy
	// Topics holds by topic, as given to Subscribe. A zero Policy means the Default above. A policy replaces the
	// default as a whole: what it leaves out is not taken from Default.
	Topics map[string]Policy
}

// For is the topic's policy with everything filled in.
func (p Policies) For(topic string) Policy {
	if policy, ok := p.Topics[topic]; ok && !policy.IsZero() {
		return policy.WithDefaults()
	}
	return p.Default.WithDefaults()
}
