package config

import (
	"errors"
	"fmt"
	"reflect"
)

// ErrorMatch is a kind of errors, for the lists of a [Policy]. [Is] and [As] make one.
type ErrorMatch struct {
	target error        // of Is
	typ    reflect.Type // of As
}

// Is matches errors that have target in their chain: errors.Is(err, target).
//
//	NeverRetry: []config.ErrorMatch{config.Is(sql.ErrNoRows)}
func Is(target error) ErrorMatch { return ErrorMatch{target: target} }

// As matches errors that have a T in their chain: errors.As(err, new(T)).
//
//	RetryOnly: []config.ErrorMatch{config.As[net.Error](), config.As[*pq.Error]()}
func As[T error]() ErrorMatch { return ErrorMatch{typ: reflect.TypeFor[T]()} }

// Match tells whether err is meant.
func (m ErrorMatch) Match(err error) bool {
	switch {
	case err == nil:
		return false
	case m.typ != nil:
		return errors.As(err, reflect.New(m.typ).Interface())
	case m.target != nil:
		return errors.Is(err, m.target)
	}
	return false
}

// IsZero tells whether the match is empty, which Validate refuses: it would match nothing.
func (m ErrorMatch) IsZero() bool { return m.typ == nil && m.target == nil }

// same tells whether both match by the same type, or by the same error. Errors that cannot be compared, which errors.Is does
// not find either, are the same if their types are.
func (m ErrorMatch) same(o ErrorMatch) bool {
	a, b := reflect.ValueOf(m.target), reflect.ValueOf(o.target)
	if m.typ != o.typ || a.IsValid() != b.IsValid() {
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

// String is as it is made: Is(sql: no rows in result set), As[net.Error].
func (m ErrorMatch) String() string {
	if m.typ != nil {
		return fmt.Sprintf("As[%s]", m.typ)
	}
	return fmt.Sprintf("Is(%v)", m.target)
}
