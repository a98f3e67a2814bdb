package dlqcmd

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// keys are the names of the fields of a struct in JSON, in their order.
func keys(of reflect.Type) (all []string) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			all = append(all, keys(field.Type)...)
		case name != "" && name != "-" && name != "truncated" && name != "gone": // of an import, and of waits
			all = append(all, name)
		}
	}
	return all
}

// The help lists all keys of the JSON that a command prints.
func TestHelpListsTheKeys(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"replay", "move", "purge", "park", "unpark"} {
		found, _, err := (&tool{Session: &cli.Session{}}).command().Find([]string{command})
		require.NoError(t, err)
		all := keys(reflect.TypeFor[report]())
		if command == "replay" {
			all = append(all, keys(reflect.TypeFor[dlq.CanaryReport]())...)
		}
		for _, key := range all {
			only := slices.Contains([]string{"run", "canary", "origins", "edited", "edit_errors"}, key)
			if only && command != "replay" {
				continue
			}
			assert.Contains(t, listed(found), key, command)
		}
		require.Greater(t, len(all), 12)
	}
}

// listed are the words in quotes, or at the beginning of a line of the list of keys, of a help.
func listed(cmd *cobra.Command) (all []string) {
	_, help, _ := strings.Cut(cmd.Long, "With --json: ")
	for line := range strings.Lines(help) {
		if word, is := strings.CutPrefix(line, "  "); is && !strings.HasPrefix(word, " ") {
			all = append(all, strings.Fields(word)[0])
		}
		quoted := strings.Split(line, `"`)
		for i := 1; i < len(quoted); i += 2 {
			all = append(all, quoted[i])
		}
	}
	return all
}
