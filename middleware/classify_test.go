package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
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
		t.Run(name, func(t *testing.T) {
			class, after := middleware.Classify(config.Policy{}, middleware.ClassError, test.err)
			assert.Equal(t, test.want, class)
			assert.Zero(t, after)
		})
	}
}

// The order of precedence, as the comment on Classify has it.
func TestClassifyByLists(t *testing.T) {
	other := errors.New("other")
	never := config.Policy{NeverRetry: []config.ErrorMatch{config.Is(errBoom)}}
	only := config.Policy{RetryOnly: []config.ErrorMatch{config.Is(errBoom), config.As[*middleware.PanicError]()}}
	both := config.Policy{RetryOnly: only.RetryOnly, NeverRetry: never.NeverRetry}
	opinions := config.Policy{RetryOnly: []config.ErrorMatch{config.As[opinion]()}}
	const (
		failed, permanent = middleware.ClassError, middleware.ClassPermanent
		second            = time.Second
	)

	for name, test := range map[string]struct {
		policy   config.Policy
		happened middleware.Class
		err      error
		want     middleware.Class
		after    time.Duration
	}{
		"1 permanent":                     {only, failed, middleware.Permanent(errBoom), permanent, 0},
		"1 drop":                          {only, failed, middleware.Drop(errBoom), middleware.ClassDrop, 0},
		"1 transient, before never":       {never, failed, middleware.Transient(errBoom), failed, 0},
		"1 transient, before only":        {only, failed, middleware.Transient(other), failed, 0},
		"1 transient, before an opinion":  {config.Policy{}, failed, middleware.Transient(opinion(false)), failed, 0},
		"1 transient, a panic":            {never, failed, middleware.Transient(panicked(errBoom)), middleware.ClassPanic, 0},
		"1 retry after, before never":     {never, failed, middleware.RetryAfter(second, errBoom), failed, second},
		"1 retry after, wrapped":          {never, failed, fmt.Errorf("x: %w", middleware.RetryAfter(second, errBoom)), failed, second},
		"1 retry after, outermost":        {never, failed, middleware.RetryAfter(second, middleware.Permanent(errBoom)), failed, second},
		"1 retry after, inside":           {never, failed, middleware.Permanent(middleware.RetryAfter(second, errBoom)), permanent, 0},
		"1 retry after 0":                 {never, failed, middleware.RetryAfter(0, errBoom), failed, 1},
		"1 retry after less than 0":       {never, failed, middleware.RetryAfter(-second, errBoom), failed, 1},
		"1 retry after, in a panic":       {never, failed, panicked(middleware.RetryAfter(second, errBoom)), middleware.ClassPanic, second},
		"1 postpone":                      {only, failed, middleware.Postpone(second), middleware.ClassPostponed, second},
		"1 postpone, wrapped":             {never, failed, fmt.Errorf("%w: %w", errBoom, middleware.Postpone(second)), middleware.ClassPostponed, second},
		"1 postpone for nothing":          {only, failed, middleware.Postpone(0), middleware.ClassPostponed, 1},
		"1 a mark on what is undecodable": {never, middleware.ClassUndecodable, middleware.Drop(errBoom), middleware.ClassDrop, 0},
		"1 transient and undecodable":     {never, middleware.ClassUndecodable, middleware.Transient(errBoom), failed, 0},
		"1 retry after and undecodable":   {never, middleware.ClassUndecodable, middleware.RetryAfter(second, errBoom), failed, second},
		"1 transient and crashed":         {never, middleware.ClassCrashed, middleware.Transient(errBoom), middleware.ClassCrashed, 0},
		"1 retry after and unpublishable": {never, middleware.ClassUnpublishable, middleware.RetryAfter(second, errBoom), middleware.ClassUnpublishable, second},

		"2 undecodable":   {only, middleware.ClassUndecodable, other, middleware.ClassUndecodable, 0},
		"2 crashed":       {never, middleware.ClassCrashed, errBoom, middleware.ClassCrashed, 0},
		"2 unpublishable": {never, middleware.ClassUnpublishable, errBoom, middleware.ClassUnpublishable, 0},

		"3 never":             {never, failed, errBoom, permanent, 0},
		"3 never, wrapped":    {never, failed, fmt.Errorf("x: %w", errBoom), permanent, 0},
		"3 never, in a panic": {never, failed, panicked(errBoom), permanent, 0},
		"3 never, another":    {never, failed, other, failed, 0},
		"3 never, in both":    {both, failed, errBoom, permanent, 0},

		"4 only":                        {only, failed, fmt.Errorf("x: %w", errBoom), failed, 0},
		"4 only, another":               {only, failed, other, permanent, 0},
		"4 only, a panic that is in it": {only, failed, panicked("boom"), middleware.ClassPanic, 0},
		"4 only, a panic that is not":   {opinions, failed, panicked("boom"), permanent, 0},
		"4 only, before an opinion":     {opinions, failed, opinion(false), failed, 0},

		"5 an opinion": {never, failed, opinion(false), permanent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			class, after := middleware.Classify(test.policy, test.happened, test.err)
			assert.Equal(t, test.want, class)
			assert.Equal(t, test.after, after)
		})
	}
}

func TestMarks(t *testing.T) {
	for name, test := range map[string]struct {
		mark        func(error) error
		is, another error
	}{
		"permanent": {middleware.Permanent, middleware.ErrPermanent, middleware.ErrDrop},
		"drop":      {middleware.Drop, middleware.ErrDrop, middleware.ErrPermanent},
		"transient": {middleware.Transient, middleware.ErrTransient, middleware.ErrPermanent},
		"retry after": {
			func(err error) error { return middleware.RetryAfter(time.Second, err) }, middleware.ErrRetryAfter, middleware.ErrPostponed,
		},
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

func TestPostpone(t *testing.T) {
	err := fmt.Errorf("not there yet: %w", middleware.Postpone(time.Minute))
	assert.EqualError(t, err, "not there yet: postponed for 1m0s")
	assert.ErrorIs(t, err, middleware.ErrPostponed)
	assert.NotErrorIs(t, err, middleware.ErrRetryAfter)
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
