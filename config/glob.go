package config

import (
	"cmp"
	"regexp"
	"strings"
	"unicode/utf8"
)

// wildcards of a glob: any run of characters, and one character.
const wildcards = "*?"

// keyFor finds the key of Topics that holds for a topic: its name, else the most specific glob.
func (p Policies) keyFor(topic string) (key string, found bool) {
	if _, ok := p.Topics[topic]; ok {
		return topic, true
	}
	for glob := range p.Topics {
		if strings.ContainsAny(glob, wildcards) && globMatches(glob, topic) && (!found || compareGlobs(glob, key) < 0) {
			key, found = glob, true
		}
	}
	return key, found
}

// compareGlobs puts the more specific one first: more literal characters, then a longer literal
// beginning, then fewer stars, then the alphabet. It is a total order, so what is found does not
// depend on the order of a map.
func compareGlobs(a, b string) int {
	return cmp.Or(
		cmp.Compare(literals(b), literals(a)),
		cmp.Compare(literalPrefix(b), literalPrefix(a)),
		cmp.Compare(strings.Count(a, "*"), strings.Count(b, "*")),
		cmp.Compare(a, b),
	)
}

func literals(glob string) int {
	return utf8.RuneCountInString(glob) - strings.Count(glob, "*") - strings.Count(glob, "?")
}

func literalPrefix(glob string) int {
	if i := strings.IndexAny(glob, wildcards); i >= 0 {
		glob = glob[:i]
	}
	return utf8.RuneCountInString(glob)
}

// globMatches tells whether a topic is one of those that a glob stands for. What is no UTF-8
// matches nothing.
func globMatches(glob, topic string) bool {
	pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(glob))
	matches, err := regexp.MatchString("(?s)^"+pattern+"$", topic)
	return err == nil && matches
}
