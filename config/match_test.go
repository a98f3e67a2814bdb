package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
)

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
		return config.Policy{NeverRetry: []config.ErrorMatch{a}}.Equal(config.Policy{NeverRetry: []config.ErrorMatch{b}})
	}
	assert.True(t, equal(config.Is(fs.ErrNotExist), config.Is(fs.ErrNotExist)))
	assert.False(t, equal(config.Is(errors.New("same")), config.Is(errors.New("same"))), "two errors of one text")
	assert.True(t, equal(config.Is(valueError{[]string{"a"}}), config.Is(valueError{[]string{"a"}})), "a policy is equal to itself, whatever is in it")
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
