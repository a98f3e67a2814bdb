package cli

import (
	"errors"

	"github.com/spf13/pflag"
)

// Text is a flag whose text must not be empty: an empty one is most often a variable of a script
// that is not set, and would mean the default, which can be another broker, another queue, or all
// messages.
func Text(into *string) pflag.Value { return (*text)(into) }

type text string

var errEmpty = errors.New("must not be empty; is a variable not set?")

func (t *text) Set(value string) error {
	if value == "" {
		return errEmpty
	}
	*t = text(value)

	return nil
}

func (t *text) String() string { return string(*t) }

func (t *text) Type() string { return "string" }
