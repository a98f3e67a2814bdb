package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
)

// ErrorMatch is a kind of errors, for the lists of a [Policy]. [Is], [As] and [TypeName] make one.
// As text, in a file, it is the name that TypeName takes.
type ErrorMatch struct {
	target error        // of Is
	typ    reflect.Type // of As
	name   string       // of TypeName
}

// Is matches errors that have target in their chain: errors.Is(err, target).
//
//	NeverRetry: []config.ErrorMatch{config.Is(sql.ErrNoRows)}
func Is(target error) ErrorMatch { return ErrorMatch{target: target} }

// As matches errors that have a T in their chain: errors.As(err, new(T)).
//
//	RetryOnly: []config.ErrorMatch{config.As[net.Error](), config.As[*pq.Error]()}
func As[T error]() ErrorMatch { return ErrorMatch{typ: reflect.TypeFor[T]()} }

// TypeName matches errors that have one of the named type in their chain. The name is as the verb
// %T prints it, and as dead letters show it: with the package's name, and with the * of a pointer.
//
//	NeverRetry: []config.ErrorMatch{config.TypeName("*fs.PathError")}
//
// It is for files. In code As is better, which the compiler checks. Errors that are told apart by
// their value, such as io.EOF, have no type of their own and need Is.
func TypeName(name string) ErrorMatch { return ErrorMatch{name: name} }

// Match tells whether err is meant.
func (m ErrorMatch) Match(err error) bool {
	switch {
	case err == nil:
		return false
	case m.typ != nil:
		return errors.As(err, reflect.New(m.typ).Interface())
	case m.target != nil:
		return errors.Is(err, m.target)
	case m.name != "":
		return hasType(err, m.name)
	}
	return false
}

// maxChain bounds how many errors of one chain are looked at: one that contains itself has no end.
const maxChain = 1000

// hasType walks the chain as errors.As does.
func hasType(err error, name string) bool {
	open := []error{err}
	for n := 0; n < maxChain && len(open) > 0; n++ {
		err, open = open[len(open)-1], open[:len(open)-1]
		if err == nil {
			continue
		}
		if reflect.TypeOf(err).String() == name {
			return true
		}
		switch wrapper := err.(type) { //nolint:errorlint // this is the walk along the chain
		case interface{ Unwrap() error }:
			open = append(open, wrapper.Unwrap())
		case interface{ Unwrap() []error }:
			open = append(open, wrapper.Unwrap()...)
		}
	}
	return false
}

// IsZero tells whether the match is empty, which Validate refuses: it would match nothing.
func (m ErrorMatch) IsZero() bool { return m.typ == nil && m.target == nil && m.name == "" }

// typeNamePattern is what %T can print of an error: Name with its package, * of a pointer, [] of
// type arguments.
const typeNamePattern = `^\*?[\p{L}\p{N}_]+\.[\p{L}\p{N}_]+(\[.+\])?$`

var typeNameRegexp = regexp.MustCompile(typeNamePattern)

// common are the types that errors of any kind have: those of errors.New, and of wrappers.
var common = []string{
	"*errors.errorString", "*errors.joinError", "*fmt.wrapError", "*fmt.wrapErrors",
	"*errors.fundamental", "*errors.withStack", "*errors.withMessage", "*retry.MarkedError",
}

// values are no types, or interfaces, though they are what comes to mind first: no error has a type
// of this name.
var values = []string{
	"io.EOF", "io.ErrUnexpectedEOF", "sql.ErrNoRows", "sql.ErrTxDone", "context.Canceled", "context.DeadlineExceeded",
	"fs.ErrNotExist", "fs.ErrExist", "fs.ErrPermission", "os.ErrNotExist", "os.ErrExist", "os.ErrPermission",
	"os.ErrDeadlineExceeded",
	"net.ErrClosed", "net.Error", "http.ErrServerClosed", "redis.Nil", "pgx.ErrNoRows", "gorm.ErrRecordNotFound",
}

// validate says what is wrong with the match, and what is wanted instead.
func (m ErrorMatch) validate() (problem, wanted string) {
	switch {
	case m.IsZero():
		return "matches nothing", "made with config.Is, of an error that is not nil, config.As, or config.TypeName " +
			"of a name"
	case m.name == "":
		return "", ""
	case slices.Contains(common, m.name):
		return "matches errors of any kind", "the type of one kind of error; values such as io.EOF need config.Is, " +
			"in code"
	case slices.Contains(values, m.name):
		return "matches nothing: it is a value or an interface", "a type, such as *fs.PathError; values need " +
			"config.Is and interfaces config.As, in code"
	case !typeNameRegexp.MatchString(m.name):
		return "matches nothing", "a type as %T prints it and dead letters show it, with the package's name and no " +
			"path, such as *fs.PathError"
	}
	return "", ""
}

// same tells whether both match by the same type, or by the same error. Errors that cannot be
// compared, which errors.Is does not find either, are the same if their types are.
func (m ErrorMatch) same(o ErrorMatch) bool {
	a, b := reflect.ValueOf(m.target), reflect.ValueOf(o.target)
	if m.typ != o.typ || m.name != o.name || a.IsValid() != b.IsValid() {
		return false
	}
	if !a.IsValid() {
		return true
	}
	if !a.Comparable() || !b.Comparable() {
		return a.Type() == b.Type()
	}
	return a.Equal(b)
}

// String is as it is made: Is(sql: no rows in result set), As[net.Error], TypeName(*fs.PathError).
func (m ErrorMatch) String() string {
	switch {
	case m.typ != nil:
		return fmt.Sprintf("As[%s]", m.typ)
	case m.name != "":
		return fmt.Sprintf("TypeName(%s)", m.name)
	}
	return fmt.Sprintf("Is(%v)", m.target)
}

// UnmarshalText makes a [TypeName] of the text, for files. Validate refuses what is no such name.
func (m *ErrorMatch) UnmarshalText(text []byte) error {
	*m = TypeName(string(text))
	return nil
}

// MarshalText is the name of a [TypeName]. The others exist in code only, so they have no text.
func (m ErrorMatch) MarshalText() ([]byte, error) {
	if m.name == "" {
		return nil, fmt.Errorf("%s cannot be written to a file: only config.TypeName can", m)
	}
	return []byte(m.name), nil
}
