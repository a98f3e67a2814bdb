package dlqweb

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
)

// chip is a filter of a view, as people read it.
type chip struct {
	Name, Value string
	// Without is the query of the view without it.
	Without url.Values
}

// chipNames are the labels of the filters.
var chipNames = map[string]string{"text": "Text", "reason": "Reason", "error": "Error has",
	"error-matches": "Error matches", "error-type": "Error type", "handler": "Handler", "topic": "Topic",
	"fingerprint": "Cause", "uuid": "UUID", "older-than": "Older than", "newer-than": "Newer than",
	"header": "Header", "json-field": "Field", "min-replays": "Replays, at least", "max-replays": "Replays, at most",
	"min-calls": "Calls, at least", "max-calls": "Calls, at most", "never-replayed": "Never replayed",
	"parked": "Parked", "due-within": "Due within", "due-after": "Due after"}

// chips are the filters of a view. A cause is told by its text.
func (v viewOf) chips(s *snapshot.Snapshot, who visitor) []chip {
	var chips []chip
	for _, key := range filterKeys {
		for i, value := range v.Filter[key] {
			c := chip{Name: chipNames[key], Value: value, Without: v.Query()}
			if c.Name == "" {
				c.Name = key
			}
			if key == "fingerprint" && s != nil {
				if f, ok := s.Fingerprint(value); ok {
					c.Value = causeText(f, who)
				}
			}
			c.Without[key] = slices.Delete(slices.Clone(v.Filter[key]), i, i+1)
			chips = append(chips, c)
		}
	}

	return chips
}

// causeText describes a cause: its error text, or without the role view its error type.
func causeText(f dlq.Fingerprint, who visitor) string {
	if f.Pattern != "" && who.CanView() {
		return f.Pattern
	}
	if f.ErrorType != "" {
		return f.ErrorType
	}

	return f.ID
}

// mostChoices is how many of a kind the search box offers.
const mostChoices = 30

// choices are what the search box offers: what a snapshot has, and the forms of other filters.
func choices(s *snapshot.Snapshot, who visitor, waits bool) []string {
	var all []string
	add := func(key string, values []string) {
		for _, value := range values[:min(len(values), mostChoices)] {
			if value != "" && len(value) < maxName {
				all = append(all, key+":"+value)
			}
		}
	}
	if s != nil {
		known := s.Names()
		add("reason", known.Reasons)
		add("handler", known.Handlers)
		add("topic", known.Topics)
		add("error-type", known.ErrorTypes)
	}
	if waits {
		all = append(all, "due-within:15m", "due-after:1h")
	}
	all = append(all, "newer-than:1h", "newer-than:1d", "older-than:7d", "max-replays:0", "min-replays:1")
	if who.CanView() {
		all = append(all, "error:", "header:name=value", "json-field:path=value")
	}

	return all
}

// search adds what was typed to the filters of a view. key:value is a filter of that name, anything
// else a text.
func (c *Console) search(w http.ResponseWriter, query url.Values, who visitor, page string) error {
	t, err := c.targetOf(query)
	if err != nil {
		return err
	}
	typed := strings.TrimSpace(query.Get("search"))
	query.Del("search")
	query.Del("page")
	query.Del("refresh")
	key, value, ok := strings.Cut(typed, ":")
	if key = strings.ToLower(strings.TrimSpace(key)); ok && key == "cause" {
		key = "fingerprint"
	}
	if value = strings.TrimSpace(value); !ok || !slices.Contains(filterKeys, key) {
		key, value = "text", typed
		if typed != "" && !who.CanView() {
			return badRequest("search", "key:value with one of "+strings.Join(openKeys(), ", "), typed)
		}
	}
	if value != "" && !slices.Contains(query[key], value) {
		switch key {
		case "uuid", "reason", "handler", "topic", "error-type", "fingerprint", "header", "json-field":
			query.Add(key, value)
		default: // there can be one only
			query.Set(key, value)
		}
	}
	if _, err := c.viewIn(query, who); err != nil {
		return err
	}
	query.Set("queue", t.Queue)
	w.Header().Set("Location", page+"?"+query.Encode())
	w.WriteHeader(http.StatusSeeOther)

	return nil
}

// openKeys are the filters that everybody may use.
func openKeys() []string {
	return slices.DeleteFunc(slices.Clone(filterKeys), func(key string) bool {
		return slices.Contains(closedKeys, key)
	})
}
