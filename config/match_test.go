package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"testing"

	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// loopError has no end.
type loopError struct{}

func (e *loopError) Error() string   { return "a loop" }
func (e *loopError) Unwrap() []error { return []error{e, nil, e} }

type genericError[T any] struct{ value T }

func (e genericError[T]) Error() string { return fmt.Sprint("generic: ", e.value) }

// Names are those that dead letters show.
func TestTypeName(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
	for name, test := range map[string]struct {
		name string
		err  error
		want bool
	}{
		"itself":  {"*fs.PathError", path, true},
		"wrapped": {"*fs.PathError", fmt.Errorf("x: %w", fmt.Errorf("y: %w", path)), true},
		"joined": {"*fs.PathError",
			errors.Join(errors.New("x"), fmt.Errorf("%w, %w", errors.New("y"), path)), true},
		"of another library": {"*fs.PathError", pkgerrors.WithStack(pkgerrors.Wrap(path, "x")), true},
		"in what it wraps":   {"syscall.Errno", &fs.PathError{Err: syscall.ENOENT}, true},
		"no pointer":         {"fs.PathError", path, false},
		"a value":            {"config_test.valueError", fmt.Errorf("x: %w", valueError{}), true},
		"a pointer":          {"*config_test.valueError", valueError{}, false},
		"generic":            {"config_test.genericError[int]", genericError[int]{}, true},
		"generic, another":   {"config_test.genericError[int]", genericError[string]{}, false},
		"another":            {"*fs.PathError", &net.DNSError{}, false},
		"not found in loop":  {"*fs.PathError", &loopError{}, false},
		"found in loop":      {"*config_test.loopError", &loopError{}, true},
		"none":               {"*fs.PathError", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			match := config.TypeName(test.name)
			assert.Equal(t, test.want, match.Match(test.err))
			assert.NoError(t, config.Policy{RetryOnly: []config.ErrorMatch{match}}.Validate())
		})
	}
}

func TestTypeNameRefuses(t *testing.T) {
	refused := func(name, problem string) {
		t.Helper()
		err := config.Policy{NeverRetry: []config.ErrorMatch{config.TypeName(name)}}.Validate()
		assert.ErrorContains(t, err, "NeverRetry[0]: "+problem, "%q", name)
	}
	inner := errors.New("x")
	for _, err := range []error{
		inner, fmt.Errorf("x"), fmt.Errorf("%w", inner), fmt.Errorf("%w, %w", inner, inner), errors.Join(inner, inner),
		io.EOF,
		pkgerrors.New("x"), pkgerrors.WithStack(inner), pkgerrors.WithMessage(inner, "x"), pkgerrors.Wrap(inner, "x"),
	} {
		refused(fmt.Sprintf("%T", err), "matches errors of any kind: must be the type of one kind of error")
	}
	for _, name := range []string{
		"", " ", "*", "error", "PathError", "*PathError", "**fs.PathError", "&fs.PathError", "io/fs.PathError",
		"*io/fs.PathError", ".PathError", "fs.",
		"*fs.PathError ", "fs.*PathError", "*fs.Path*", "a.b.c", "a.b[]", "struct { error }", "*fs.PathError\n",
	} {
		refused(name, "matches nothing: must be ")
	}
}

func TestErrorMatchText(t *testing.T) {
	var policy config.Policy
	require.NoError(t, json.Unmarshal([]byte(`{"never_retry": ["*fs.PathError", "", "x"]}`), &policy))
	assert.Equal(t, []config.ErrorMatch{config.TypeName("*fs.PathError"), config.TypeName(""), config.TypeName("x")},
		policy.NeverRetry)
	assert.Error(t, policy.Validate())
	assert.True(t, policy.NeverRetry[1].IsZero())
	assert.False(t, policy.NeverRetry[0].IsZero())

	text, err := json.Marshal(policy.NeverRetry[:1])
	require.NoError(t, err)
	assert.JSONEq(t, `["*fs.PathError"]`, string(text))
	for _, m := range []config.ErrorMatch{config.Is(io.EOF), config.As[net.Error](), {}} {
		_, err := m.MarshalText()
		assert.ErrorContains(t, err, m.String()+" cannot be written to a file")
	}

	equal := func(a, b config.ErrorMatch) bool {
		return config.Policy{NeverRetry: []config.ErrorMatch{a}}.Equal(
			config.Policy{NeverRetry: []config.ErrorMatch{b}})
	}
	assert.True(t, equal(config.TypeName("a.B"), config.TypeName("a.B")))
	assert.False(t, equal(config.TypeName("a.B"), config.TypeName("a.C")))
	assert.False(t, equal(config.TypeName("*fs.PathError"), config.As[*fs.PathError]()))
	assert.Equal(t, "TypeName(*fs.PathError)", config.TypeName("*fs.PathError").String())
}

// valueError is an error by value, of a type that == cannot compare.
type valueError struct{ parts []string }

func (valueError) Error() string { return "a value" }

func TestErrorMatch(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
	dns := &net.DNSError{Err: "no such host"}

	for name, test := range map[string]struct {
		match config.ErrorMatch
		err   error
		want  bool
	}{
		"is":                    {config.Is(fs.ErrNotExist), fs.ErrNotExist, true},
		"is, wrapped":           {config.Is(fs.ErrNotExist), fmt.Errorf("x: %w", path), true},
		"is, joined":            {config.Is(fs.ErrNotExist), errors.Join(errors.New("x"), path), true},
		"is not":                {config.Is(fs.ErrNotExist), errors.New("file does not exist"), false},
		"is, not comparable":    {config.Is(valueError{[]string{"a"}}), valueError{[]string{"a"}}, false},
		"as":                    {config.As[*fs.PathError](), path, true},
		"as, wrapped":           {config.As[*fs.PathError](), fmt.Errorf("x: %w", path), true},
		"as an interface":       {config.As[net.Error](), fmt.Errorf("x: %w", dns), true},
		"as a value":            {config.As[valueError](), fmt.Errorf("x: %w", valueError{}), true},
		"as not":                {config.As[*fs.PathError](), dns, false},
		"as not, an interface":  {config.As[net.Error](), path, false},
		"no error":              {config.As[net.Error](), nil, false},
		"nothing matches zero":  {config.ErrorMatch{}, path, false},
		"nothing matches a nil": {config.Is(nil), path, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, test.match.Match(test.err)) })
	}

	equal := func(a, b config.ErrorMatch) bool {
		return config.Policy{NeverRetry: []config.ErrorMatch{a}}.Equal(
			config.Policy{NeverRetry: []config.ErrorMatch{b}})
	}
	assert.True(t, equal(config.Is(fs.ErrNotExist), config.Is(fs.ErrNotExist)))
	assert.False(t, equal(config.Is(errors.New("same")), config.Is(errors.New("same"))), "two errors of one text")
	assert.True(t, equal(config.Is(valueError{[]string{"a"}}), config.Is(valueError{[]string{"a"}})),
		"a policy is equal to itself, whatever is in it")
	assert.False(t, equal(config.Is(valueError{}), config.Is(fs.ErrNotExist)))
	assert.True(t, equal(config.As[net.Error](), config.As[net.Error]()))
	assert.False(t, equal(config.As[net.Error](), config.As[*fs.PathError]()))
	assert.False(t, equal(config.As[net.Error](), config.Is(fs.ErrNotExist)))

	assert.Equal(t, "Is(file does not exist)", config.Is(fs.ErrNotExist).String())
	assert.Equal(t, "As[*fs.PathError]", config.As[*fs.PathError]().String())
	assert.Equal(t, "As[net.Error]", config.As[net.Error]().String())
	assert.True(t, config.Is(nil).IsZero())
	assert.False(t, config.As[net.Error]().IsZero())
}
