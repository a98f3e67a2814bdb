package dlq

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/units"
	"github.com/amqpretry/watermill-retry/retry"
)

// filterKeys are the names of the fields of a filter; repeated those that can be given several
// times.
var (
	filterKeys = []string{"reason", "topic", "handler", "error-type", "fingerprint", "uuid", "older-than", "newer-than",
		"min-calls", "max-calls", "min-replays", "max-replays", "never-replayed", "parked", "error", "error-matches",
		"text", "header", "json-field"}
	// waitKeys are for messages that wait.
	waitKeys = []string{"due-within", "due-after"}
	repeated = []string{"reason", "topic", "handler", "error-type", "fingerprint", "uuid", "header", "json-field"}
)

// FilterKeys are the names that ParseFilter knows, which are those of the command line's flags and
// of the console's URLs. For messages that wait, see Waits, it also knows due-within and due-after.
func FilterKeys() []string { return slices.Clone(filterKeys) }

// ParseFilter reads a filter from texts by name, such as older-than: 36h, and reports everything
// that is wrong, as joined *[config.FieldError]s. A name that it does not know is wrong, as without
// it the filter would select more than was meant.
func ParseFilter(values map[string][]string) (Filter, error) {
	p := &filterParser{values: values}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(filterKeys, key) && !slices.Contains(waitKeys, key):
			p.errs = append(p.errs, &config.FieldError{Path: key, Problem: "is no filter",
				Wanted: "one of " + strings.Join(filterKeys, ", ")})
		case len(values[key]) > 1 && !slices.Contains(repeated, key):
			p.wrong(key, "one value", itoa(len(values[key])))
		case p.one(key) == "0" && (key == "min-calls" || key == "max-calls"):
			p.wrong(key, "1 or more", "0")
		}
	}
	never := p.one("never-replayed")
	f := Filter{
		Topics: values["topic"], Handlers: values["handler"], ErrorTypes: values["error-type"],
		Fingerprints: values["fingerprint"], UUIDs: values["uuid"],
		ErrorContains: p.one("error"), ErrorMatches: p.expression("error-matches"), Text: p.one("text"),
		OlderThan: p.age("older-than"), NewerThan: p.age("newer-than"),
		DueWithin: p.age("due-within"), DueAfter: p.age("due-after"),
		MinCalls: p.number("min-calls"), MaxCalls: p.number("max-calls"),
		MinReplays: p.number("min-replays"), MaxReplays: p.number("max-replays"),
		NeverReplayed: never != "" && never != "false" || p.one("max-replays") == "0", // in a Filter 0 means no bound
		Parked:        p.parked(),
		Headers:       p.headers(),
	}
	for _, reason := range values["reason"] {
		f.Reasons = append(f.Reasons, retry.Reason(reason))
	}
	for _, text := range values["json-field"] {
		field, ok := ParseField(text)
		if !ok {
			p.wrong("json-field", "path=value", quoted(text))
			continue
		}
		f.Fields = append(f.Fields, field)
	}
	if err := errors.Join(append(p.errs, f.Validate())...); err != nil {
		return Filter{}, err
	}

	return f, nil
}

type filterParser struct {
	values map[string][]string
	errs   []error
}

func (p *filterParser) wrong(key, wanted, found string) {
	p.errs = append(p.errs, &config.FieldError{Path: key, Wanted: wanted, Found: found})
}

// one is the value of a name that can be given once; empty if it was not.
func (p *filterParser) one(key string) string {
	if len(p.values[key]) == 0 {
		return ""
	}

	return p.values[key][0]
}

func (p *filterParser) age(key string) time.Duration {
	text := p.one(key)
	if text == "" {
		return 0
	}
	age, err := units.ParseAge(text)
	if err != nil {
		p.wrong(key, strings.TrimPrefix(err.Error(), "must be "), quoted(text))
	}

	return age
}

func (p *filterParser) number(key string) int {
	text := p.one(key)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		p.wrong(key, "a number, 0 or more", quoted(text))
	}

	return n
}

func (p *filterParser) parked() *bool {
	text := p.one("parked")
	if text == "" {
		return nil
	}
	is, err := strconv.ParseBool(text)
	if err != nil {
		p.wrong("parked", "true or false", quoted(text))
	}

	return &is
}

func (p *filterParser) expression(key string) *regexp.Regexp {
	text := p.one(key)
	if text == "" {
		return nil
	}
	expression, err := regexp.Compile(text)
	if err != nil {
		p.wrong(key, "a regular expression ("+err.Error()+")", quoted(text))
	}

	return expression
}

func (p *filterParser) headers() map[string]string {
	var headers map[string]string
	for _, text := range p.values["header"] {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			p.wrong("header", "name=value", quoted(text))
			continue
		}
		if before, twice := headers[name]; twice && before != value {
			p.wrong("header", "one value for "+name+", not two", quoted(value))
		}
		if headers == nil {
			headers = map[string]string{}
		}
		headers[name] = value
	}

	return headers
}
