package dlq

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// Change is an edit of a message before it is replayed.
type Change struct {
	// Body is the new body; nil leaves it.
	Body *string `json:"body,omitempty"`
	// Set are headers by name, Remove names of headers. They must be the message's own: not those
	// of this library or of the broker.
	Set    map[string]HeaderValue `json:"set_headers,omitempty"`
	Remove []string               `json:"remove_headers,omitempty"`
}

// HeaderValue is the value of a header as text, with its AMQP type as an export has it, such as
// int64; empty means string.
type HeaderValue struct {
	// Type is that of AMQP, Value the text.
	Type  string `json:"type"`
	Value string `json:"value"`
}

// Any tells whether there is anything to change.
func (c *Change) Any() bool { return c != nil && (c.Body != nil || len(c.Set)+len(c.Remove) > 0) }

// Validate reports everything that cannot be right, as joined *[config.FieldError]s.
func (c *Change) Validate() error {
	if c == nil {
		return nil
	}
	var errs []error
	check := func(field, name string) {
		path := "Change." + field
		switch {
		case name == "" || len(name) > maxShort:
			errs = append(errs, &config.FieldError{Path: path, Wanted: "the name of a header, of 1 to 255 bytes",
				Found: fmt.Sprintf("%q, %d bytes", excerpt(name), len(name))})
		case header.IsOwn(name) || header.IsPoison(name) || header.IsBroker(name):
			errs = append(errs, &config.FieldError{Path: path, Problem: fmt.Sprintf("%q belongs to watermill-retry or "+
				"to the broker: only other headers can be changed", name)})
		}
	}

	for _, name := range slices.Sorted(maps.Keys(c.Set)) {
		check("Set", name)
		if slices.Contains(c.Remove, name) {
			errs = append(errs, &config.FieldError{Path: "Change.Set", Problem: fmt.Sprintf("%q is there twice", name)})
		}
		var wrong *RecordError
		if _, err := c.Set[name].parse(); errors.As(err, &wrong) {
			errs = append(errs, &config.FieldError{Path: fmt.Sprintf("Change.Set[%q]", excerpt(name)),
				Wanted: wrong.Wanted, Found: wrong.Found})
		}
	}
	for _, name := range c.Remove {
		check("Remove", name)
	}

	return errors.Join(errs...)
}

// apply changes a message.
func (c *Change) apply(m *amqp091.Publishing) error {
	if c.Body != nil {
		m.Body = []byte(*c.Body)
	}
	for _, name := range c.Remove {
		delete(m.Headers, name)
	}
	for name, value := range c.Set {
		parsed, err := value.parse()
		if err != nil {
			return err
		}
		if m.Headers == nil {
			m.Headers = amqp091.Table{}
		}
		m.Headers[name] = parsed
	}

	return nil
}

func (v HeaderValue) parse() (any, error) {
	var value any = v.Value
	if v.Type == "bool" && (v.Value == "true" || v.Value == "false") {
		value = v.Value == "true"
	}
	if v.Type == "array" || v.Type == "table" || v.Type == "void" {
		return nil, wrong(v.Type, "a type whose values are texts")
	}

	return readTyped(map[string]any{"type": cmp.Or(v.Type, "string"), "value": value})
}
