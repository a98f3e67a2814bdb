package dlqcmd

import (
	"cmp"
	"errors"
	"regexp"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
)

// flagOf are the flags of the options of package dlq.
var flagOf = map[string]string{
	"Filter.Reasons": "reason", "Filter.UUIDs": "uuid", "Filter.OlderThan": "older-than",
	"Filter.NewerThan": "newer-than", "Filter.DueWithin": "due-within", "Filter.DueAfter": "due-after",
	"Filter.MinCalls": "min-calls", "Filter.MaxCalls": "max-calls", "Filter.MinReplays": "min-replays",
	"Filter.MaxReplays":    "max-replays",
	"Filter.NeverReplayed": "never-replayed", "Filter.Headers": "header", "Filter.Fields": "json-field",
	"Note": "note", "ToOrigin": "to-origin", "Origins": "origin", "To": "to", "Limit": "limit", "Rate": "rate",
	"Canary.Messages": "canary", "Canary.Watch": "watch",
	"Canary.Tolerate": "tolerate", "Addresses": "address", "Change.Set": "set-header", "Change.Remove": "remove-header",
}

var (
	// element is what follows the name of an option that has several values.
	element = regexp.MustCompile(`\[.*$`)
	// optionsType is where an option belongs: to a flag it is all one.
	optionsType = regexp.MustCompile(`^([A-Z][a-z]+Options|Plan)\.`)
	// another is an option that is named in the words about one.
	another = regexp.MustCompile(`\b[A-Z][a-z]+\.?[A-Z][A-Za-z]+\b`)
)

// asUsage makes wrong usage of what package dlq says about its options, in the words of the command
// line.
func asUsage(err error) error {
	options := optionErrors(err)
	if len(options) == 0 {
		return err
	}
	all := make([]error, len(options))
	for i, o := range options {
		path := strings.TrimPrefix(optionsType.ReplaceAllString(o.Path, ""), "Config.")
		name := cmp.Or(flagOf[element.ReplaceAllString(path, "")], path)
		wanted := another.ReplaceAllStringFunc(o.Wanted, func(word string) string {
			if flag := cmp.Or(flagOf["Filter."+word], flagOf[word]); flag != "" {
				return "--" + flag
			}
			return word
		})
		all[i] = &config.FieldError{Path: "--" + name, Problem: o.Problem, Wanted: wanted, Found: o.Found}
	}

	return cli.Usage("%w", errors.Join(all...))
}

// optionErrors are all of them in an error.
func optionErrors(err error) []*config.FieldError {
	switch e := err.(type) { //nolint:errorlint // it goes through the tree itself
	case *config.FieldError:
		return []*config.FieldError{e}
	case interface{ Unwrap() []error }:
		var all []*config.FieldError
		for _, one := range e.Unwrap() {
			all = append(all, optionErrors(one)...)
		}
		return all
	case interface{ Unwrap() error }:
		return optionErrors(e.Unwrap())
	default:
		return nil
	}
}

// checkQueue refuses a name of a queue that is an address: it would be printed, with its password.
func checkQueue(flag, name string) error {
	if scheme := strings.ToLower(name); strings.HasPrefix(scheme, "amqp://") || strings.HasPrefix(scheme, "amqps://") {
		return cli.Usage("%s: found an address instead of a queue: set %s, or --uri", flag, cli.EnvURI)
	}
	return nil
}
