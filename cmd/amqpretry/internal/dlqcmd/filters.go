package dlqcmd

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/retry"
)

// filters are the flags that say which messages. All commands have the same.
type filters struct{ flags *pflag.FlagSet }

// FiltersTopic is the help topic about the filters.
func FiltersTopic(*cli.Session) *cobra.Command {
	text := `These filters select messages in dlq list, stat, replay, purge, move, park, unpark, export and import.

A message must match every filter. If you repeat a filter, one match is enough, except for --header and --json-field,
which must all match. A message without a reason, topic, handler or error type matches an empty text: --reason "".
A message that tells no time of failure matches neither --older-than nor --newer-than; a note counts these messages.`

	return cli.HelpTopic("filters", "How to select dead letters", text, newFilters().flags)
}

func filterFlags(cmd *cobra.Command) *filters {
	f := newFilters()
	cmd.Flags().AddFlagSet(f.flags)
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(reasons(), cobra.ShellCompDirectiveNoFileComp))

	return f
}

func newFilters() *filters {
	f := &filters{flags: pflag.NewFlagSet("filters", pflag.ContinueOnError)}
	list := func(name, usage string) { f.flags.Var(new(words), name, usage) }
	text := func(name, usage string) { f.flags.Var(cli.Text(new(string)), name, usage) }
	list("reason", "reason, comma-separated: "+strings.Join(reasons(), ", "))
	f.flags.StringArray("topic", nil, "topic of the failed handler")
	f.flags.StringArray("handler", nil, "name of the failed handler")
	f.flags.StringArray("error-type", nil, "type of the last error, such as *net.OpError")
	list("fingerprint", "fingerprints, comma-separated, as \"dlq stat --by fingerprint\" prints them")
	list("uuid", "UUIDs, comma-separated")
	text("error", "part of the last error's text")
	text("error-matches", "regular expression that matches a part of the last error's text")
	text("text", "part of the last error's text, of a header's value or of the body, in any case")
	f.flags.Var(new(age), "older-than", "last failure longer ago than this: 90s, 15m, 36h, 30d")
	f.flags.Var(new(age), "newer-than", "last failure more recent than this: 90s, 15m, 36h, 30d")
	f.flags.Int("min-calls", 0, "minimum number of handler calls, those before replays included")
	f.flags.Int("max-calls", 0, "maximum number of handler calls")
	f.flags.Int("min-replays", 0, "minimum number of replays")
	f.flags.Int("max-replays", 0, "maximum number of replays")
	f.flags.Bool("never-replayed", false, "only messages that were never replayed")
	f.flags.Bool("parked", false, "only parked messages; --parked=false: only others")
	f.flags.StringArray("header", nil, "value of a header, as text: tenant=acme")
	f.flags.StringArray("json-field", nil, "value of a field of a JSON body: customer.id=17, items.0.sku=A1")
	cli.DescribeInTopic(f.flags, "Filters", "filters")

	return f
}

func reasons() []string {
	var names []string
	for _, reason := range retry.Reasons() {
		names = append(names, string(reason))
	}
	return names
}

// build gives the filter, or says all that is wrong with the flags.
func (f *filters) build() (dlq.Filter, error) {
	values := map[string][]string{}
	f.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			values[flag.Name] = flagValues(flag)
		}
	})
	filter, err := dlq.ParseFilter(values)

	return filter, asUsage(err)
}

// flagValues are the values of a flag, of which a list has several.
func flagValues(flag *pflag.Flag) []string {
	switch value := flag.Value.(type) {
	case *words:
		return *value
	case pflag.SliceValue:
		return value.GetSlice()
	default:
		return []string{value.String()}
	}
}

// given tells whether there is a filter that not every message matches: --min-replays 0 and
// --never-replayed=false are none.
func (f *filters) given() bool {
	filter, err := f.build()
	return err == nil && !reflect.ValueOf(filter).IsZero()
}

// String is the filters as flags.
func (f *filters) String() string {
	var all []string
	f.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			all = append(all, fmt.Sprintf("--%s=%s", flag.Name, flag.Value))
		}
	})
	return strings.Join(all, " ")
}

// others are the other flags of the command that are set, as they can be typed again: the filters
// and those of dlq itself are not among them.
func (f *filters) others(cmd *cobra.Command) []string {
	var all []string
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		values := flagValues(flag)
		switch {
		case !flag.Changed || f.flags.Lookup(flag.Name) != nil:
		case flag.Value.Type() == "bool" && values[0] == "true":
			all = append(all, "--"+flag.Name)
		default:
			for _, value := range values {
				all = append(all, "--"+flag.Name+"="+value)
			}
		}
	})

	return all
}

// words is a flag that can be given several times, and with commas. An empty one is one empty text.
type words []string

func (l *words) Set(text string) error {
	for _, element := range strings.Split(text, ",") {
		*l = append(*l, strings.TrimSpace(element))
	}
	return nil
}

func (l *words) String() string { return strings.Join(*l, ",") }

func (l *words) Type() string { return "list" }
