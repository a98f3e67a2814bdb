package protect

import (
	"fmt"
	"reflect"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// problems collects what is wrong with a config, below a path that ends in a dot.
type problems struct {
	path string
	errs []error
}

func (p *problems) add(field, problem, wanted, found string) {
	p.errs = append(p.errs, &config.FieldError{Path: p.path + field, Problem: problem, Wanted: wanted, Found: found})
}

func (p *problems) notNegative(field string, d time.Duration) {
	if d < 0 {
		p.add(field, "negative", "more than 0, or 0 for the default", d.String())
	}
}

// unused reports a field that is set and has no effect, and what it must be: its zero value.
func (p *problems) unused(isSet bool, field, when, zero, found string) {
	if isSet {
		p.add(field, "not used "+when, zero, found)
	}
}

// notNilPointer reports a nil pointer in an interface. It is no nil interface, and would panic at
// the first message.
func (p *problems) notNilPointer(field string, value any, wanted string) {
	if value != nil && isNilPointer(value) {
		p.add(field, "a nil pointer", wanted, fmt.Sprintf("(%T)(nil)", value))
	}
}

func isNilPointer(value any) bool {
	v := reflect.ValueOf(value)

	return v.Kind() == reflect.Pointer && v.IsNil()
}
