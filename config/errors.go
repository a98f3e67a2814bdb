package config

import (
	"errors"
	"strconv"
	"strings"
)

// FieldError is one thing that is wrong with what a program was configured with: a [Policy] or
// [Policies], the file that they come from, or the options of another package of
// this module. All of them come joined: var e *FieldError; errors.As(err, &e) finds the first, and
// Unwrap() []error has all.
type FieldError struct {
	// File and Line say where the value is, if it comes from a file. They are empty otherwise.
	File string
	Line int
	// Path of the field as it is written: `Policies.Topics["orders"].Delays[2]` in Go,
	// `topics["orders"].delays[2]` in a file. Empty for what is not about a field: a file that is
	// no YAML.
	Path string
	// Problem in few words, such as "too short".
	Problem string
	// Wanted is the bound, or the ways out: "at least 1ms".
	Wanted string
	// Found is the value as it is, such as "500µs".
	Found string
}

// Error reads `Policies.Topics["orders"].Delays[2]: too short: must be at least 1ms, got 500µs`,
// with where it comes from in front: `retry.yaml:7: ` or `line 7: `.
func (e *FieldError) Error() string {
	parts := make([]string, 0, 4)
	for _, part := range []string{e.origin(), e.Path, e.Problem} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.Wanted != "" {
		parts = append(parts, "must be "+e.Wanted)
	}
	text := strings.Join(parts, ": ")
	if e.Found != "" {
		text += ", got " + e.Found
	}
	return text
}

func (e *FieldError) origin() string {
	switch {
	case e.File != "" && e.Line != 0:
		return e.File + ":" + strconv.Itoa(e.Line)
	case e.Line != 0:
		return "line " + strconv.Itoa(e.Line)
	}
	return e.File
}

// WithPath returns the errors that are joined in err, with a path in front of that of each
// [*FieldError]: for options that policies are a part of. It changes these errors.
func WithPath(path string, err error) []error {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		var fault *FieldError
		if errors.As(one, &fault) {
			fault.Path = path + "." + fault.Path
		}
	}

	return all
}
