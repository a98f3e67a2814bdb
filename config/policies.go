package config

// Policies are the policies of a service: one per topic that needs its own, and one for all others.
// The zero value means [Default] for every topic. [Load] reads them from a file.
type Policies struct {
	// Default holds for topics that are not in Topics. A zero Policy means Default().
	Default Policy `yaml:"default,omitempty" json:"default,omitzero" koanf:"default" mapstructure:"default"`
	// Topics holds by topic, as given to Subscribe. A zero Policy means the Default above. A policy replaces the
	// default as a whole: what it leaves out is not taken from Default.
	//
	// A key can be a glob: * stands for any characters, dots included, or none; ? for one. The topic's own name comes
	// first, then the glob with the most literal characters; among several, the one with the longest literal
	// beginning, with the fewest stars, or the first in the alphabet.
	Topics map[string]Policy `yaml:"topics,omitempty" json:"topics,omitzero" koanf:"topics" mapstructure:"topics"`
}

// For is the topic's policy with everything filled in.
func (p Policies) For(topic string) Policy {
	if key, ok := p.keyFor(topic); ok && !p.Topics[key].IsZero() {
		return p.Topics[key].WithDefaults()
	}
	return p.Default.WithDefaults()
}
