package policyfile

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// Format writes policies as YAML, so that operators can give policies written in Go to the
// amqpretry command. [Parse] reads the same policies from it.
//
// It returns an error for policies that are invalid, and for errors of RetryOnly and NeverRetry
// that a file cannot name: those of config.Is and config.As. Clear the two lists before the call if
// only delays and queues matter.
func Format(p config.Policies) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("cannot format policies: %w", err)
	}
	p.Default = withoutNone(p.Default)
	if len(p.Topics) == 0 {
		p.Topics = nil
	}
	var f formatter
	f.fields(reflect.ValueOf(p), "", "")
	if err := errors.Join(f.errs...); err != nil {
		return nil, fmt.Errorf("cannot format policies: %w", err)
	}
	data := []byte(f.text.String())
	read, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("cannot format policies: %w", err)
	}
	if !reflect.DeepEqual(read, p) { // such as the name of a topic that is no UTF-8
		return nil, errors.New("cannot format policies: a file cannot express them; use names of topics in UTF-8")
	}
	return data, nil
}

// withoutNone has the zero value in place of config.None, which means the same in the default.
func withoutNone(p config.Policy) config.Policy {
	if p.Immediate == config.None {
		p.Immediate = 0
	}
	if p.Jitter == config.None {
		p.Jitter = 0
	}
	if p.MaxAge == config.None {
		p.MaxAge = 0
	}
	return p
}

type formatter struct {
	text strings.Builder
	errs []error
}

// fields writes those of a struct that are set, a line each.
func (f *formatter) fields(v reflect.Value, path, indent string) {
	for _, field := range fieldsOf(v.Type()) {
		value, inside := v.Field(field.index), inStruct(path, field.name)
		if value.IsZero() {
			continue
		}
		f.text.WriteString(indent + field.name + ":")
		f.value(value, inside, indent+"  ")
	}
}

// value writes one behind its key, and ends the line.
func (f *formatter) value(v reflect.Value, path, indent string) {
	switch v.Kind() {
	case reflect.Struct:
		if v.IsZero() {
			f.text.WriteString(" {}\n")
			return
		}
		f.text.WriteString("\n")
		f.fields(v, path, indent)
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		f.text.WriteString("\n")
		for _, key := range keys {
			f.text.WriteString(indent + quoted(key.String()) + ":")
			f.value(v.MapIndex(key), inMapping(path, key.String()), indent+"  ")
		}
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = f.scalar(v.Index(i), inSequence(path, i))
		}
		f.text.WriteString(" [" + strings.Join(items, ", ") + "]\n")
	default:
		f.text.WriteString(" " + f.scalar(v, path) + "\n")
	}
}

func (f *formatter) scalar(v reflect.Value, path string) string {
	switch value := v.Interface().(type) {
	case encoding.TextMarshaler:
		text, err := value.MarshalText()
		if err != nil {
			f.errs = append(f.errs, &config.FieldError{Path: path, Problem: "exists in code only",
				Wanted: "config.TypeName, or added in code to what was loaded", Found: fmt.Sprint(value)})
		}
		return quoted(string(text))
	case time.Duration:
		if value == config.None {
			return "0s"
		}
		return value.String()
	case bool:
		return strconv.FormatBool(value)
	case int:
		if value == config.None {
			return "0"
		}
		return strconv.Itoa(value)
	case float64:
		if value == config.None {
			return "0"
		}
		return strconv.FormatFloat(value, 'f', -1, 64)
	default:
		return quoted(v.String())
	}
}

// quoted is a text as JSON has it, which is YAML as well.
func quoted(text string) string {
	data, _ := json.Marshal(text) // no text makes it fail
	return string(data)
}
