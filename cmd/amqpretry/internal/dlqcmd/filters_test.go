package dlqcmd

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

func parse(t *testing.T, args ...string) (*filters, error) {
	t.Helper()
	cmd := &cobra.Command{Use: "x"}
	f := filterFlags(cmd)

	return f, cmd.ParseFlags(args)
}

func TestFlagsMakeAFilter(t *testing.T) {
	f, err := parse(t,
		"--reason", "exhausted,permanent", "--reason", "", "--topic", "a,b", "--topic", "c", "--handler", "h",
		"--error-type", "*x.Error[int,string]",
		"--uuid", "u1,u2", "--uuid", "u3", "--error", "declined", "--error-matches", "^card", "--older-than", "1d",
		"--newer-than", "720h",
		"--min-calls", "2", "--max-calls", "9", "--min-replays", "1", "--max-replays", "3",
		"--header", "tenant=acme", "--header", "expr=a=b", "--json-field", "customer.id=17", "--json-field",
		`items.#(sku=="A=1").n=5`,
	)
	require.NoError(t, err)
	filter, err := f.build()
	require.NoError(t, err)
	require.NotNil(t, filter.ErrorMatches)
	assert.True(t, filter.ErrorMatches.MatchString("card 1"))
	filter.ErrorMatches = nil
	assert.Equal(t, dlq.Filter{
		Reasons: []retry.Reason{"exhausted", "permanent", ""}, Topics: []string{"a,b", "c"}, Handlers: []string{"h"},
		ErrorTypes: []string{"*x.Error[int,string]"},
		UUIDs:      []string{"u1", "u2", "u3"}, ErrorContains: "declined", OlderThan: 24 * time.Hour,
		NewerThan: 720 * time.Hour,
		MinCalls:  2, MaxCalls: 9, MinReplays: 1, MaxReplays: 3, Headers: map[string]string{"tenant": "acme",
			"expr": "a=b"},
		Fields: []dlq.Field{{Path: "customer.id", Value: "17"}, {Path: `items.#(sku=="A=1").n`, Value: "5"}},
	}, filter)
	assert.True(t, f.given())
}

func TestNoFlagsMatchAll(t *testing.T) {
	f, err := parse(t)
	require.NoError(t, err)
	filter, err := f.build()
	require.NoError(t, err)
	assert.Equal(t, dlq.Filter{}, filter)
	assert.False(t, f.given())
}

// What is wrong is said of the flags; package dlq tests the rest.
func TestFiltersThatCannotBe(t *testing.T) {
	for text, args := range map[string][]string{
		"--reason: must be one of exhausted, permanent":                  {"--reason", "exausted"},
		"--header: must be name=value":                                   {"--header", "x", "--reason", "y"},
		"--max-calls: must be 1 or more":                                 {"--max-calls", "0"},
		"--min-replays: must be 0 (no bound) or more, got -1":            {"--min-replays", "-1"},
		"--older-than: must be less than --newer-than (24h0m0s)":         {"--older-than", "2d", "--newer-than", "1d"},
		"--error-matches: must be a regular expression (error parsing r": {"--error-matches", "("},
	} {
		f, err := parse(t, args...)
		require.NoError(t, err)
		_, err = f.build()
		assert.ErrorContains(t, err, text)
	}
	for _, args := range [][]string{{"--older-than", "30"}, {"--older-than", "yesterday"}, {"--min-calls", "many"}} {
		_, err := parse(t, args...)
		assert.Error(t, err, args)
	}
}
