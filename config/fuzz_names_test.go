package config

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzDelay: a delay has one spelling, and what is spelled otherwise is refused. Both are parts of
// queue names.
func FuzzDelay(f *testing.F) {
	for _, text := range []string{"30s", "1500ms", "2h", "87600h", "315360000000ms", "60s", "01s", "+1s", "-1s", "0s",
		"1e3s", "1.5s", "1m30s", "٣s", "s", "", "1 s", "1S", "1ns", "99999999999999999999h", "1msms", "1hms"} {
		f.Add(text, int64(len(text))*1_000_000)
	}
	f.Fuzz(func(t *testing.T, text string, nanoseconds int64) {
		if d, err := ParseDelay(text); err == nil {
			require.Equal(t, text, FormatDelay(d))
			require.True(t, d >= minDelay && d <= MaxDelay)
		}

		spelled := FormatDelay(time.Duration(nanoseconds))
		d, err := ParseDelay(spelled)
		require.NoError(t, err)
		if want := time.Duration(nanoseconds).Round(minDelay); want >= minDelay && want <= MaxDelay {
			require.Equal(t, want, d)
		}
		std, err := time.ParseDuration(spelled)
		require.NoError(t, err)
		require.Equal(t, std, d, "it means what Go takes it for")
	})
}

// FuzzGlob holds globs against regular expressions, and requires one winner whatever the order.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][3]string{
		{"orders.*", "orders.created", "orders.?reated"}, {"*", "", "**"}, {"?", "世", "*世"},
		{"a*b*c", "aXbYbZc", "a*c"},
		{strings.Repeat("a*", 30) + "b", strings.Repeat("a", 200), "*"}, {"\xff*", "\xffx", "?x"},
		{"[a-z]", "[a-z]", `\*`}, {"*\n*", "a\nb", "a?b"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, glob, topic, other string) {
		if utf8.ValidString(glob) && utf8.ValidString(topic) && len(glob) < 200 {
			pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(glob))
			require.Equal(t, regexp.MustCompile(`(?s)^`+pattern+`$`).MatchString(topic), globMatches(glob, topic),
				"%q %q", glob, topic)
		}

		require.Equal(t, glob == other, compareGlobs(glob, other) == 0)
		require.Equal(t, compareGlobs(glob, other), -compareGlobs(other, glob))
		topics := Policies{Topics: map[string]Policy{glob: {}, other: {}}}
		key, found := topics.keyFor(topic)
		for range 3 {
			again, _ := topics.keyFor(topic)
			require.Equal(t, key, again)
		}
		if found && key != topic {
			require.True(t, globMatches(key, topic))
		}
	})
}
