package dlqcmd

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/retry"
)

// filters are the flags that say which messages. All commands have the same.
type filters struct {
	flags                *pflag.FlagSet
	filter               dlq.Filter
	olderThan, newerThan age
	errorMatches         string
	reasons              []string
	headers, fields      []string
}

// FiltersTopic is the help topic about the filters.
func FiltersTopic(*cli.Session) *cobra.Command {
	text := `These filters select messages in dlq list, stat, replay, purge, move, export and import.

A message must match every filter. If you repeat a filter, one match is enough, except for --header and --json-field,
which must all match. A message without a reason, topic, handler or error type matches an empty text: --reason "".`

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
	f.flags.Var((*words)(&f.reasons), "reason", "reason, comma-separated: "+strings.Join(reasons(), ", "))
	f.flags.StringArrayVar(&f.filter.Topics, "topic", nil, "topic of the failed handler")
	f.flags.StringArrayVar(&f.filter.Handlers, "handler", nil, "name of the failed handler")
	f.flags.StringArrayVar(&f.filter.ErrorTypes, "error-type", nil, "Go type of the last error, such as *net.OpError")
	f.flags.Var((*words)(&f.filter.Fingerprints), "fingerprint", "fingerprints, comma-separated, as \"dlq stat "+
		"--by fingerprint\" prints them")
	f.flags.Var((*words)(&f.filter.UUIDs), "uuid", "UUIDs, comma-separated")
	f.flags.Var(cli.Text(&f.filter.ErrorContains), "error", "part of the last error's text")
	f.flags.Var(cli.Text(&f.errorMatches), "error-matches", "regular expression that matches a part of the "+
		"last error's text")
	f.flags.Var(cli.Text(&f.filter.Text), "text", "part of the last error's text, of a header's value or of the body, "+
		"in any case")
	f.flags.Var(&f.olderThan, "older-than", "last failure longer ago than this: 90s, 15m, 36h, 30d")
	f.flags.Var(&f.newerThan, "newer-than", "last failure more recent than this: 90s, 15m, 36h, 30d")
	f.flags.IntVar(&f.filter.MinCalls, "min-calls", 0, "minimum number of handler calls, those before replays included")
	f.flags.IntVar(&f.filter.MaxCalls, "max-calls", 0, "maximum number of handler calls")
	f.flags.IntVar(&f.filter.MinReplays, "min-replays", 0, "minimum number of replays")
	f.flags.IntVar(&f.filter.MaxReplays, "max-replays", 0, "maximum number of replays")
	f.flags.BoolVar(&f.filter.NeverReplayed, "never-replayed", false, "only messages that were never replayed")
	f.flags.StringArrayVar(&f.headers, "header", nil, "value of a header, as text: tenant=acme")
	f.flags.StringArrayVar(&f.fields, "json-field", nil, "value of a field of a JSON body: customer.id=17, "+
		"items.0.sku=A1")
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
	filter := f.filter
	var errs []error
	wrong := func(flag, wanted, found string) {
		errs = append(errs, fmt.Errorf("--%s: must be %s, got %q", flag, wanted, found))
	}
	for _, reason := range f.reasons {
		filter.Reasons = append(filter.Reasons, retry.Reason(reason))
		if reason != "" && !slices.Contains(reasons(), reason) {
			wrong("reason", "one of "+strings.Join(reasons(), ", "), reason)
		}
	}
	filter.OlderThan, filter.NewerThan = f.olderThan.Duration, f.newerThan.Duration
	for _, name := range []string{"min-calls", "max-calls"} {
		if flag := f.flags.Lookup(name); flag.Changed && flag.Value.String() == "0" {
			wrong(name, "1 or more", "0")
		}
	}
	if flag := f.flags.Lookup("max-replays"); flag.Changed && filter.MaxReplays == 0 {
		filter.NeverReplayed = true // in a Filter 0 means no bound
	}
	if f.errorMatches != "" {
		expression, err := regexp.Compile(f.errorMatches)
		if err != nil {
			wrong("error-matches", "a regular expression ("+err.Error()+")", f.errorMatches)
		}
		filter.ErrorMatches = expression
	}
	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			wrong("header", "name=value", header)
			continue
		}
		if before, twice := filter.Headers[name]; twice && before != value {
			wrong("header", "one value for "+name+", not two", value)
		}
		if filter.Headers == nil {
			filter.Headers = map[string]string{}
		}
		filter.Headers[name] = value
	}
	for _, field := range f.fields {
		parsed, ok := dlq.ParseField(field)
		if !ok {
			wrong("json-field", "path=value", field)
			continue
		}
		filter.Fields = append(filter.Fields, parsed)
	}
	if err := filter.Validate(); err != nil && len(errs) == 0 {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return dlq.Filter{}, asUsage(cli.Usage("%w", err))
	}

	return filter, nil
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
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
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
