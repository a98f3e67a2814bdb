package policyfile

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
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
	// Here config.None means the same as what was left out, and is the only negative value.
	d := &p.Default
	d.Immediate, d.Jitter, d.MaxAge = max(d.Immediate, 0), max(d.Jitter, 0), max(d.MaxAge, 0)
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

type formatter struct {
	text strings.Builder
	errs []error
}

// fields writes those of a struct that are set, a line each.
func (f *formatter) fields(v reflect.Value, path, indent string) {
	for i, name := range fieldNames(v.Type()) {
		if !v.Field(i).IsZero() {
			f.text.WriteString(indent + name + ":")
			f.value(v.Field(i), inMapping(path, name), indent+"  ")
		}
	}
}

// value writes one behind its key, and ends the line.
func (f *formatter) value(v reflect.Value, path, indent string) {
	switch {
	case v.Kind() == reflect.Struct && v.IsZero():
		f.text.WriteString(" {}\n")
	case v.Kind() == reflect.Struct:
		f.text.WriteString("\n")
		f.fields(v, path, indent)
	case v.Kind() == reflect.Map:
		f.text.WriteString("\n")
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		for _, key := range keys {
			f.text.WriteString(indent + f.scalar(key, path) + ":")
			f.value(v.MapIndex(key), inMapping(path, key.String()), indent+"  ")
		}
	case v.Kind() == reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = f.scalar(v.Index(i), inList(path, i))
		}
		f.text.WriteString(" [" + strings.Join(items, ", ") + "]\n")
	default:
		f.text.WriteString(" " + f.scalar(v, path) + "\n")
	}
}

// scalar is a number, or a text as JSON has it, which is YAML as well. config.None is 0 in a file.
func (f *formatter) scalar(v reflect.Value, path string) string {
	value := v.Interface()
	switch of := value.(type) {
	case encoding.TextMarshaler:
		if _, err := of.MarshalText(); err != nil {
			f.errs = append(f.errs, &config.FieldError{Path: path, Problem: "exists in code only",
				Wanted: "config.TypeName, or added in code to what was loaded", Found: fmt.Sprint(value)})
			return ""
		}
	case time.Duration:
		return max(of, 0).String()
	case int:
		value = max(of, 0)
	case float64:
		value = max(of, 0)
	}
	text, _ := json.Marshal(value) // none of these fails
	return string(text)
}
