package dlqweb

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/units"
	"github.com/amqpretry/watermill-retry/retry"
)

// filterKeys are the names of the filters in a URL, which are those of the command line's flags;
// open those that RoleMetadata may use: the others would tell what it may not see.
var (
	openKeys = []string{"reason", "topic", "handler", "error-type", "fingerprint", "uuid", "older-than", "newer-than",
		"min-calls", "max-calls", "min-replays", "max-replays", "never-replayed"}
	closedKeys = []string{"error", "error-matches", "text", "header", "json-field"}
	filterKeys = slices.Concat(openKeys, closedKeys)
)

// isSingle tells the filters that can be given once.
func isSingle(key string) bool {
	return !slices.Contains([]string{"reason", "topic", "handler", "error-type", "fingerprint", "uuid", "header",
		"json-field"}, key)
}

// filterValues are the filters of a page's query or a form, in their order, without what was left
// empty. Blanks around a value are not meant, but for a UUID, which may be anything.
func filterValues(query url.Values) url.Values {
	values := url.Values{}
	for _, key := range filterKeys {
		for _, value := range query[key] {
			if key != "uuid" {
				value = strings.TrimSpace(value)
			}
			if value != "" && !slices.Contains(values[key], value) {
				values.Add(key, value)
			}
		}
	}

	return values
}

// checkKeys refuses what is no filter: a mistyped one would select more than was meant. others are
// allowed as well.
func checkKeys(query url.Values, others ...string) error {
	var errs []error
	for _, key := range sortedKeys(query) {
		if !slices.Contains(filterKeys, key) && !slices.Contains(others, key) {
			errs = append(errs, &config.FieldError{Path: key, Problem: "is no filter",
				Wanted: "one of " + strings.Join(filterKeys, ", ")})
		}
		if slices.Contains(query[key], "") {
			errs = append(errs, &config.FieldError{Path: key, Wanted: "a value", Found: `""`})
		}
	}

	return errors.Join(errs...)
}

// parseFilter makes a filter of the filters of a query, or says all that is wrong with them. A text
// of one that means "does not tell" is -.
func parseFilter(values url.Values, who visitor) (dlq.Filter, error) {
	p := filterParser{values: values}
	for _, key := range closedKeys {
		if len(values[key]) > 0 && !who.CanView() {
			return dlq.Filter{}, who.needs(RoleView)
		}
	}
	for _, key := range []string{"min-calls", "max-calls"} {
		if values.Get(key) == "0" {
			p.wrong(key, "1 or more", "0")
		}
	}
	for _, key := range filterKeys {
		if isSingle(key) && len(values[key]) > 1 {
			p.wrong(key, "one value", strconv.Itoa(len(values[key])))
		}
	}
	f := dlq.Filter{
		Topics: p.texts("topic"), Handlers: p.texts("handler"), ErrorTypes: p.texts("error-type"),
		Fingerprints: p.values["fingerprint"], UUIDs: p.values["uuid"],
		ErrorContains: values.Get("error"), Text: values.Get("text"),
		OlderThan: p.age("older-than"), NewerThan: p.age("newer-than"),
		MinCalls: p.number("min-calls"), MaxCalls: p.number("max-calls"),
		MinReplays: p.number("min-replays"), MaxReplays: p.number("max-replays"),
		NeverReplayed: values.Get("never-replayed") != "" || values.Get("max-replays") == "0",
	}
	for _, reason := range p.texts("reason") {
		f.Reasons = append(f.Reasons, retry.Reason(reason))
	}
	if expression := values.Get("error-matches"); expression != "" {
		var err error
		if f.ErrorMatches, err = regexp.Compile(expression); err != nil {
			p.wrong("error-matches", "a regular expression", strconv.Quote(expression))
		}
	}
	for _, header := range values["header"] {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			p.wrong("header", "name=value", strconv.Quote(header))
			continue
		}
		if f.Headers == nil {
			f.Headers = map[string]string{}
		}
		f.Headers[name] = value
	}
	for _, field := range values["json-field"] {
		parsed, ok := dlq.ParseField(field)
		if !ok {
			p.wrong("json-field", "path=value", strconv.Quote(field))
			continue
		}
		f.Fields = append(f.Fields, parsed)
	}
	if err := errors.Join(p.errs...); err != nil {
		return dlq.Filter{}, err
	}

	return f, f.Validate()
}

type filterParser struct {
	values url.Values
	errs   []error
}

func (p *filterParser) wrong(key, wanted, found string) {
	p.errs = append(p.errs, &config.FieldError{Path: key, Wanted: wanted, Found: found})
}

// notTold stands for the empty text: a form leaves out what is empty.
const notTold = "-"

func (p *filterParser) texts(key string) []string {
	texts := slices.Clone(p.values[key])
	for i, text := range texts {
		if text == notTold {
			texts[i] = ""
		}
	}

	return texts
}

func (p *filterParser) age(key string) time.Duration {
	text := p.values.Get(key)
	if text == "" {
		return 0
	}
	age, err := units.ParseAge(text)
	if err != nil {
		p.wrong(key, "a duration above 0, such as 90s, 15m, 36h, 30d or 1d12h", strconv.Quote(text))
	}

	return age
}

func (p *filterParser) number(key string) int {
	text := p.values.Get(key)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		p.wrong(key, "a number, 0 or more", strconv.Quote(text))
		return 0
	}

	return n
}

// target is a dead-letter queue as a query names it: by its own name, and by its main queue where
// that does not follow from it.
type target struct{ Queue, MainQueue string }

// targetOf reads queue and main-queue of a query.
func (c *Console) targetOf(query url.Values) (target, error) {
	return c.target(query.Get("queue"), query.Get("main-queue"))
}

func (c *Console) target(queue, mainQueue string) (target, error) {
	switch {
	case queue == "" || len(queue) > maxName:
		return target{}, badRequest("queue", "the name of a dead-letter queue", strconv.Quote(queue))
	case len(mainQueue) > maxName || mainQueue == queue:
		return target{}, badRequest("main-queue", "the name of a main queue", strconv.Quote(mainQueue))
	}
	if mainQueue == "" {
		mainQueue = c.mainQueueOf(queue)
	}
	if mainQueue == "" || c.config.Broker.Names.DeadLetterQueue(mainQueue) != queue {
		return target{}, &problem{Status: http.StatusNotFound, Title: "That is no dead-letter queue",
			Detail: "The console shows queues that are named as the dead-letter queue of a main queue.",
			Do:     "If your services use other names, set Config.Broker.Names to theirs."}
	}

	if c.config.Broker.Management.URL == "" && !slices.Contains(c.config.Queues, mainQueue) {
		return target{}, &problem{Status: http.StatusNotFound, Title: "This console does not show that queue",
			Detail: "Without the management API, a console shows only the queues that it was given.",
			Do:     "Add the main queue with --queue (Config.Queues), or set the management API."}
	}

	return target{queue, mainQueue}, nil
}

// mainQueueOf is the main queue that a dead-letter queue is named for; empty if that is not known.
func (c *Console) mainQueueOf(queue string) string {
	names := c.config.Broker.Names
	for _, mainQueue := range c.config.Queues {
		if names.DeadLetterQueue(mainQueue) == queue {
			return mainQueue
		}
	}
	before, after, ok := strings.Cut(names.DeadLetterQueue(marker), marker)
	if !ok {
		return ""
	}
	mainQueue, begins := strings.CutPrefix(queue, before)
	mainQueue, ends := strings.CutSuffix(mainQueue, after)
	if !begins || !ends || names.DeadLetterQueue(mainQueue) != queue {
		return ""
	}

	return mainQueue
}

// marker is a name that is in no other.
const marker = "\x00"
