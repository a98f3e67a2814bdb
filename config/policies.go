package config

// Policies are the policies of a service: one per topic that needs its own, and one for all others.
// The zero value means [Default] for every topic. Package config/policyfile reads them from a file.
type Policies struct {
	// Default holds for topics that are not in Topics. A zero Policy means Default().
	Default Policy `yaml:"default,omitempty" json:"default,omitzero" koanf:"default" mapstructure:"default"`
	// Topics holds by topic, as given to Subscribe. A policy takes the fields that it leaves out
	// from the Default above: one that says Retries: 3 keeps the Default's MaxAge and Strategy. The
	// schedule is one field: Delays and Backoff replace those of the Default, and Retries alone
	// takes so many of the Default's delays. Strategy and ClassicQueues are one field: a topic that
	// says its Strategy does not take the Default's ClassicQueues. [None] says that there is to be
	// none, as does an empty list of errors. It does not take fields that the topic's Mode has no
	// use for; a topic that has a schedule of its own is retried, whatever the Default's Mode.
	//
	// A key can be a glob: * stands for any characters, dots included, or none; ? for one. The
	// topic's own name comes first, then the glob with the most literal characters; among several,
	// the one with the longest literal beginning, with the fewest stars, or the first in the
	// alphabet.
	Topics map[string]Policy `yaml:"topics,omitempty" json:"topics,omitzero" koanf:"topics" mapstructure:"topics"`
}

// For is the topic's policy with everything filled in.
func (p Policies) For(topic string) Policy {
	if key, ok := p.keyFor(topic); ok {
		return p.Topics[key].over(p.Default).WithDefaults()
	}
	return p.Default.WithDefaults()
}
