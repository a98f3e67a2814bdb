package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// tree is all commands, as cli.Run puts them together.
func tree() *cobra.Command {
	root := &cobra.Command{Use: "amqpretry"}
	root.PersistentFlags().Bool("json", false, "")
	s := cli.NewSession()
	for _, command := range commands {
		root.AddCommand(command(s))
	}

	return root
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, child := range cmd.Commands() {
		visit(child)
		walk(child, visit)
	}
}

func TestHelpIsComplete(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	walk(tree(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		assert.NotEmpty(t, cmd.Short, path)
		assert.NotEmpty(t, cmd.Long, path)
		assert.False(t, strings.HasSuffix(cmd.Short, "."), path)
		assert.NotRegexp(t, `(?m)(^|[.;] )(What|Who)(ever)? `, cmd.Short+"\n"+cmd.Long, path+": name the subject")
		if cmd.HasSubCommands() {
			return
		}
		if cmd.IsAdditionalHelpTopicCommand() {
			assert.Contains(t, cmd.Long, "\nFlags:\n      --", path)
			return
		}
		assert.Contains(t, cmd.Parent().Long+cmd.Long, "Exit codes", path)
		assert.GreaterOrEqual(t, strings.Count(cmd.Example, "  amqpretry "), 2, path)
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			assert.NotEmpty(t, flag.Usage, path+" --"+flag.Name)
			assert.Regexp(t, kebab, flag.Name, path)
			assert.NotRegexp(t, `^(what|who|how|why|whether) `, flag.Usage, path+" --"+flag.Name+": name the value")
		})
	})
}

// cobra's annotations of the flags of a group.
const (
	exclude = "cobra_annotation_mutually_exclusive"
	need    = "cobra_annotation_required_if_others_set"
)

// Flags that exclude or need each other are named in the error, without cobra's words about groups.
func TestGroupsOfFlags(t *testing.T) {
	texts := map[string]string{exclude: " exclude each other: pass only one of them\n",
		need: " need each other: add --"}
	seen := map[string]int{}
	walk(tree(), func(cmd *cobra.Command) {
		groups := map[string][]string{} // by their annotation and their names
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			for kind := range texts {
				for _, names := range flag.Annotations[kind] {
					groups[kind+" "+names] = strings.Fields(names)
				}
			}
		})
		for key, names := range groups {
			kind, _, _ := strings.Cut(key, " ")
			seen[kind]++
			args := strings.Fields(cmd.CommandPath())[1:]
			for argument := []string{}; cmd.Args != nil && cmd.Args(cmd, argument) != nil; {
				argument = append(argument, "x")
				args = append(args, "x")
			}
			if kind == need {
				names = names[:1]
			}
			for _, name := range names {
				args = append(args, "--"+name+map[bool]string{false: "=1"}[cmd.Flag(name).Value.Type() == "bool"])
			}
			var errs strings.Builder
			s := cli.NewSession()
			s.Out, s.Err = &errs, &errs
			assert.Equal(t, cli.ExitUsage, cli.Run(t.Context(), s, args, commands...), args)
			assert.Contains(t, errs.String(), texts[kind], args)
			for _, name := range names {
				assert.Contains(t, errs.String(), "--"+name, args)
			}
			assert.NotContains(t, errs.String(), "group", args)
		}
	})
	assert.Greater(t, seen[exclude], 10)
	assert.Positive(t, seen[need])
}

var words = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)

// Each command line in an example names a command that is there, with flags that it has.
func TestExamplesCanBeTyped(t *testing.T) {
	walk(tree(), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			_, line, ok := strings.Cut(line, "amqpretry ")
			if !ok {
				continue
			}
			var args []string
			for _, word := range words.FindAllString(line, -1) {
				if strings.ContainsAny(word[:1], "|>&;<#") || word == "2>" {
					break
				}
				args = append(args, strings.Trim(word, `'"`))
			}
			canBeTyped(t, args)
		}
	})
}

// canBeTyped asserts that arguments name a command, and that it takes the others.
func canBeTyped(t *testing.T, args []string) {
	t.Helper()
	found, rest, err := tree().Find(args)
	require.NoError(t, err, args)
	assert.True(t, found.Runnable(), args)
	assert.NoError(t, found.ParseFlags(rest), args)
	if found.Args != nil {
		assert.NoError(t, found.Args(found, found.Flags().Args()), args)
	}
}

// Flags that many commands have are in a help topic, which the help of each of them names in one
// line.
func TestHelpNamesTopics(t *testing.T) {
	topics := map[string][]string{
		"connection": {"topology plan", "topology prune", "dlq", "dlq list", "dlq import", "doctor"},
		"filters": {"dlq list", "dlq stat", "dlq replay", "dlq purge", "dlq move", "dlq export", "dlq import",
			"dlq park", "dlq unpark"},
	}
	help := func(args ...string) string {
		var out strings.Builder
		s := cli.NewSession()
		s.Out = &out
		require.Equal(t, cli.ExitOK, cli.Run(t.Context(), s, append([]string{"help"}, args...), commands...))
		return out.String()
	}
	for topic, users := range topics {
		flags := regexp.MustCompile(`(?m)^ +(--[a-z-]+)`).FindAllStringSubmatch(help(topic), -1)
		require.Greater(t, len(flags), 8)
		for _, user := range users {
			text := help(strings.Fields(user)...)
			assert.Contains(t, text, `: see "amqpretry help `+topic+`"`+"\n", user)
			for _, flag := range flags {
				assert.NotRegexp(t, `(?m)^ +`+flag[1]+`\b[^-]`, text, user)
			}
			found, _, err := tree().Find(strings.Fields(user))
			require.NoError(t, err)
			for _, flag := range flags { // which the command still takes, and the shell completes
				f := found.Flag(strings.TrimPrefix(flag[1], "--"))
				require.NotNil(t, f, user+" "+flag[1])
				assert.False(t, f.Hidden, user+" "+flag[1])
			}
		}
	}
}

// An address in the environment is in no help.
func TestHelpHasNoCredentials(t *testing.T) {
	t.Setenv(cli.EnvURI, "amqp://user:s3cret@host")
	t.Setenv(cli.EnvManagement, "http://user:s3cret@host")
	walk(tree(), func(cmd *cobra.Command) {
		assert.NotContains(t, cmd.UsageString()+cmd.Long, "s3cret", cmd.CommandPath())
	})
}

// The filters of the web console have the names of the flags.
func TestFiltersOfTheConsole(t *testing.T) {
	text, err := os.ReadFile("../../amqpretry/dlqweb/openapi.json")
	require.NoError(t, err)
	var document struct {
		Paths map[string]struct {
			Get struct {
				Parameters []struct{ Name, In string }
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &document))
	var inTheConsole, flags []string
	for _, p := range document.Paths["/queues/{queue}"].Get.Parameters {
		if p.In == "query" && p.Name != "main-queue" && p.Name != "refresh" {
			inTheConsole = append(inTheConsole, p.Name)
		}
	}
	stat, _, err := tree().Find([]string{"dlq", "stat"})
	require.NoError(t, err)
	others := []string{"by", "top", "json", "help"}
	stat.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(others, flag.Name) {
			flags = append(flags, flag.Name)
		}
	})
	assert.ElementsMatch(t, flags, inTheConsole)
}
