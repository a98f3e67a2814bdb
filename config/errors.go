package config

import "strings"

// FieldError is one thing that is wrong with a [Policy] or [Policies]. Validate joins as many as there are; walk them
// with errors.As or Unwrap() []error.
type FieldError struct {
	// Path of the field, such as `policies.topics["orders"].delays[2]`.
	Path string
	// Problem in few words, such as "too short".
	Problem string
	// Wanted is the bound, or the ways out: "at least 1ms".
	Wanted string
	// Found is the value as it is, such as "500µs".
	Found string
}

// Error reads `policies.topics["orders"].delays[2]: too short: must be at least 1ms, got 500µs`.
func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.Problem != "" {
		b.WriteString(": " + e.Problem)
	}
	if e.Wanted != "" {
		b.WriteString(": must be " + e.Wanted)
	}
	if e.Found != "" {
		b.WriteString(", got " + e.Found)
	}
	return b.String()
}
