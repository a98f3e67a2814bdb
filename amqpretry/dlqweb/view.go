package dlqweb

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
)

// filterKeys are the names of the filters in a URL; closedKeys those that RoleMetadata may not use,
// as they would tell what it may not see.
var (
	filterKeys = append(dlq.FilterKeys(), "due-within", "due-after")
	closedKeys = []string{"error", "error-matches", "text", "header", "json-field"}
	emptyKeys  = []string{"reason", "topic", "handler", "error-type"} // - stands for the empty text
)

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
			errs = append(errs, noFilter(key))
		}
		if slices.Contains(query[key], "") {
			errs = append(errs, &config.FieldError{Path: key, Wanted: "a value", Found: `""`})
		}
	}

	return errors.Join(errs...)
}

// parseFilter makes a filter of the filters of a query, or says all that is wrong with them. A text
// of one that means "does not tell" is -: a form leaves out what is empty.
func parseFilter(values url.Values, who visitor) (dlq.Filter, error) {
	for _, key := range closedKeys {
		if len(values[key]) > 0 && !who.CanView() {
			return dlq.Filter{}, who.needs(RoleView)
		}
	}
	values = maps.Clone(values)
	for _, key := range emptyKeys {
		if i := slices.Index(values[key], "-"); i >= 0 {
			values[key] = slices.Replace(slices.Clone(values[key]), i, i+1, "")
		}
	}

	return dlq.ParseFilter(values)
}

// target is a dead-letter queue as a query names it: by its own name, and by its main queue where
// that does not follow from it. Waits means the messages that wait for the main queue.
type target struct {
	Queue, MainQueue string
	Waits            bool
}

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

	return target{Queue: queue, MainQueue: mainQueue}, nil
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
