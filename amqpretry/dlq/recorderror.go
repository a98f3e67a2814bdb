package dlq

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// RecordError is what is wrong in a line of an export.
type RecordError struct {
	// Field is its path as jq has it: .headers["amqpretry-count"]. Empty for the line itself.
	Field  string
	Wanted string
	Found  string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("%s: must be %s, got %s", cmp.Or(e.Field, "."), e.Wanted, e.Found)
}

// within puts a step before the path of an error.
func within(step string, err error) error {
	if e, ok := err.(*RecordError); ok { //nolint:errorlint // on its way up from where it was made
		e.Field = step + e.Field
	}

	return err
}

// wrong is the error for a value that is not what was wanted.
func wrong(value any, wanted string) error {
	found, err := encodeJSON(value)
	if err != nil {
		return err
	}

	return &RecordError{Wanted: wanted, Found: excerpt(string(found))}
}

func errTwice() error { return &RecordError{Wanted: "there once", Found: "it twice"} }

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)

// member is the step to a member of an object.
func member(key string) string {
	if identifier.MatchString(key) {
		return "." + excerpt(key)
	}

	return `["` + excerpt(key) + `"]`
}

// element is the step to an element of an array.
func element(i int) string { return "[" + strconv.Itoa(i) + "]" }

// excerpt makes foreign text fit for an error.
func excerpt(text string) string {
	const most = 60
	shown := text[:min(len(text), most+1)]

	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}

		return utf8.RuneError
	}, wire.Text(shown, most))
}
