package config_test

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
)

// byKey gives each key a policy of its own, by which For's choice is known.
func byKey(keys ...string) (config.Policies, func(topic string) string) {
	policies := config.Policies{Topics: map[string]config.Policy{}}
	for i, key := range keys {
		policies.Topics[key] = config.Policy{Retries: 10 + i} // none is the default
	}
	return policies, func(topic string) string {
		policy := policies.For(topic)
		for key, p := range policies.Topics {
			if p.Equal(policy) {
				return key
			}
		}
		return ""
	}
}

func TestGlobs(t *testing.T) {
	for _, test := range []struct {
		keys        []string
		topic, want string
	}{
		{[]string{"orders.*"}, "orders.created", "orders.*"},
		{[]string{"orders.*"}, "orders.created.v2", "orders.*"}, // a star stands for dots, too
		{[]string{"orders.*"}, "orders.", "orders.*"},           // and for nothing
		{[]string{"orders.*"}, "orders", ""},
		{[]string{"orders.*"}, "my.orders.created", ""}, // the whole topic
		{[]string{"Orders.*"}, "orders.created", ""},    // capitals count
		{[]string{"*.created"}, "orders.created", "*.created"},
		{[]string{"*.created"}, "orders.created.v2", ""},
		{[]string{"*a*b*"}, "xxaxxbxx", "*a*b*"},
		{[]string{"*a*b"}, "abab", "*a*b"}, // goes back to the last star
		{[]string{"*a*b"}, "aba", ""},
		{[]string{"a?c"}, "abc", "a?c"},
		{[]string{"a?c"}, "aéc", "a?c"}, // one character, however many bytes
		{[]string{"a?c"}, "ac", ""},
		{[]string{"*??"}, "€", ""},
		{[]string{"*é"}, "caf\u00e9", "*é"},
		{[]string{"*"}, "", "*"},
		{[]string{"*"}, "any", "*"},
		{[]string{"[a]", `\*`}, "a", ""}, // nothing else is special
		{[]string{`\*`}, `\x`, `\*`},

		// The topic's own name comes first, also when it looks like a glob.
		{[]string{"*", "orders.*", "orders.created"}, "orders.created", "orders.created"},
		{[]string{"*", "a*", "a*b"}, "a*", "a*"},
		{[]string{"a?", "a*b*"}, "a*b*", "a*b*"},
		// Then the most literal characters, whichever they are.
		{[]string{"*", "orders.*", "orders.cre*"}, "orders.created", "orders.cre*"},
		{[]string{"orders.*", "*.created.eu"}, "orders.created.eu", "*.created.eu"},
		{[]string{"??????", "*a*"}, "orders", "??????"},
		{[]string{"ééé*", "aa*"}, "ééé", "ééé*"}, // characters, not bytes
		{[]string{"é*", "*aa"}, "éaa", "*aa"},
		{[]string{"orders.eu.created", "*.created", "orders.*"}, "orders.us.created", "*.created"}, // as in the docs
		// Then the longer literal beginning.
		{[]string{"*.created", "orders.c*"}, "orders.created", "orders.c*"},
		{[]string{"*bcd", "abc*", "ab*d"}, "abcd", "abc*"},
		// Then fewer stars, and then the alphabet.
		{[]string{"a*c*", "a*b*"}, "abc", "a*b*"},
		{[]string{"a?", "a*"}, "ab", "a?"},
		{[]string{"a*?", "a?*"}, "abc", "a*?"},
	} {
		_, find := byKey(test.keys...)
		assert.Equal(t, test.want, find(test.topic), "%q among %q", test.topic, test.keys)
	}

	p := config.Policies{Default: config.Policy{Retries: 4}, Topics: map[string]config.Policy{"a.*": {Retries: 1},
		"a.b": {}, "a.c*": {}}}
	assert.Equal(t, 1, p.For("a.x").MaxRetries())
	assert.Equal(t, 4, p.For("a.b").MaxRetries(), "an empty policy is the default, not the next glob")
	assert.Equal(t, 4, p.For("a.c").MaxRetries())
	assert.NoError(t, p.Validate())
	assert.ErrorContains(t, config.Policies{Topics: map[string]config.Policy{"a.*": {Retries: -1}}}.Validate(),
		`Policies.Topics["a.*"].Retries`)
}

func TestGlobProperties(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab.é*?")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(text, 0, 9, rapid.ID).Draw(t, "keys")
		topic := text.Draw(t, "topic")
		policies, find := byKey(keys...)
		found := find(topic)

		// For does not depend on the order of a map, which is another at each walk and in each map.
		for range 10 {
			if again := find(topic); again != found {
				t.Fatalf("%q, then %q", found, again)
			}
			policies.Topics = maps.Collect(maps.All(policies.Topics))
		}
		// It is the best of those that match, by the rule as the docs spell it.
		var matching []string
		for _, key := range keys {
			if key == topic {
				matching = []string{key}
				break
			}
			// path.Match is another's opinion, where its separator and its special characters are
			// none.
			if ok, err := path.Match(key, topic); err == nil && ok && strings.ContainsAny(key, "*?") {
				matching = append(matching, key)
			}
		}
		slices.SortFunc(matching, func(a, b string) int {
			if d := literals(b) - literals(a); d != 0 {
				return d
			}
			if d := beginning(b) - beginning(a); d != 0 {
				return d
			}
			if d := strings.Count(a, "*") - strings.Count(b, "*"); d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		if want := append(matching, "")[0]; want != found {
			t.Fatalf("%q among %q: %q, want %q of %q", topic, keys, found, want, matching)
		}
	})
}

func literals(glob string) int {
	return len([]rune(strings.NewReplacer("*", "", "?", "").Replace(glob)))
}

func beginning(glob string) int {
	return len([]rune(glob[:strings.IndexAny(glob, "*?")]))
}

// Matching a glob made to be slow takes no time to speak of.
func TestGlobIsNoBomb(t *testing.T) {
	_, find := byKey(strings.Repeat("*a", 500) + "b")
	assert.Empty(t, find(strings.Repeat("a", 2000)))
}
