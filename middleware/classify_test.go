package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/middleware"
)

var errBoom = errors.New("boom")

// opinion is an error that decides for itself.
type opinion bool

func (opinion) Error() string     { return "an opinion" }
func (o opinion) Retryable() bool { return bool(o) }

// wrapping is an opinion around another error.
type wrapping struct {
	opinion
	inner error
}

func (w wrapping) Unwrap() error { return w.inner }

func panicked(value any) error { return &middleware.PanicError{Value: value} }

func TestClassify(t *testing.T) {
	permanent, drop := middleware.Permanent, middleware.Drop

	for name, test := range map[string]struct {
		err  error
		want middleware.Class
	}{
		"any error":               {errBoom, middleware.ClassError},
		"a cancelled context":     {context.Canceled, middleware.ClassError},
		"wrapped":                 {fmt.Errorf("x: %w", errBoom), middleware.ClassError},
		"the bare sentinel":       {middleware.ErrPermanent, middleware.ClassError},
		"permanent":               {permanent(errBoom), middleware.ClassPermanent},
		"permanent, wrapped":      {fmt.Errorf("x: %w", permanent(errBoom)), middleware.ClassPermanent},
		"permanent, with a stack": {pkgerrors.Wrap(permanent(errBoom), "x"), middleware.ClassPermanent},
		"permanent, joined":       {errors.Join(errBoom, permanent(errBoom)), middleware.ClassPermanent},
		"permanent, deep":         {fmt.Errorf("%w and %w", errBoom, errors.Join(errBoom, fmt.Errorf("x: %w", permanent(errBoom)))), middleware.ClassPermanent},
		"drop":                    {drop(errBoom), middleware.ClassDrop},
		"drop, wrapped":           {fmt.Errorf("x: %w", drop(errBoom)), middleware.ClassDrop},

		"outermost mark, drop":      {drop(permanent(errBoom)), middleware.ClassDrop},
		"outermost mark, permanent": {permanent(fmt.Errorf("x: %w", drop(errBoom))), middleware.ClassPermanent},
		"first mark, drop":          {errors.Join(drop(errBoom), permanent(errBoom)), middleware.ClassDrop},
		"first mark, permanent":     {errors.Join(permanent(errBoom), drop(errBoom)), middleware.ClassPermanent},

		"not retryable":            {opinion(false), middleware.ClassPermanent},
		"not retryable, wrapped":   {fmt.Errorf("x: %w", opinion(false)), middleware.ClassPermanent},
		"retryable":                {opinion(true), middleware.ClassError},
		"outermost opinion, true":  {wrapping{true, opinion(false)}, middleware.ClassError},
		"outermost opinion, false": {wrapping{false, opinion(true)}, middleware.ClassPermanent},

		"a mark outweighs an opinion":        {permanent(opinion(true)), middleware.ClassPermanent},
		"a mark inside outweighs an opinion": {wrapping{true, drop(errBoom)}, middleware.ClassDrop},
		"a mark outweighs a bad opinion":     {wrapping{false, drop(errBoom)}, middleware.ClassDrop},

		"panic":                        {panicked("boom"), middleware.ClassPanic},
		"panic, wrapped":               {fmt.Errorf("x: %w", panicked("boom")), middleware.ClassPanic},
		"panic with an error":          {panicked(errBoom), middleware.ClassPanic},
		"panic with a permanent error": {panicked(permanent(errBoom)), middleware.ClassPermanent},
		"panic with a drop":            {panicked(drop(errBoom)), middleware.ClassDrop},
		"panic with a bad opinion":     {panicked(opinion(false)), middleware.ClassPermanent},
		"panic with a good opinion":    {panicked(opinion(true)), middleware.ClassPanic},
		"a mark around a panic":        {permanent(panicked("boom")), middleware.ClassPermanent},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, middleware.Classify(test.err)) })
	}
}

func TestMarks(t *testing.T) {
	for name, test := range map[string]struct {
		mark        func(error) error
		is, another error
	}{
		"permanent": {middleware.Permanent, middleware.ErrPermanent, middleware.ErrDrop},
		"drop":      {middleware.Drop, middleware.ErrDrop, middleware.ErrPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, test.mark(nil))

			err := test.mark(fmt.Errorf("x: %w", errBoom))
			assert.EqualError(t, err, "x: boom")
			assert.ErrorIs(t, err, errBoom)
			assert.ErrorIs(t, fmt.Errorf("y: %w", err), test.is)
			assert.NotErrorIs(t, err, test.another)
			assert.NotErrorIs(t, errBoom, test.is)
		})
	}
}

func TestPanicError(t *testing.T) {
	err := &middleware.PanicError{Value: errBoom, Stack: []byte("the stack")}
	assert.EqualError(t, err, "handler panicked: boom")
	assert.ErrorIs(t, err, errBoom)

	err.ShowStack = true
	assert.EqualError(t, err, "handler panicked: boom\nthe stack")

	assert.NoError(t, (&middleware.PanicError{Value: 42}).Unwrap())
	assert.EqualError(t, &middleware.PanicError{Value: 42}, "handler panicked: 42")
}
