package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
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

func panicked(value any) error { return &retry.PanicError{Value: value} }

func TestClassify(t *testing.T) {
	permanent, drop := retry.Permanent, retry.Drop

	for name, test := range map[string]struct {
		err  error
		want retry.Class
	}{
		"any error":               {errBoom, retry.ClassError},
		"a cancelled context":     {context.Canceled, retry.ClassError},
		"wrapped":                 {fmt.Errorf("x: %w", errBoom), retry.ClassError},
		"the bare sentinel":       {retry.ErrPermanent, retry.ClassError},
		"permanent":               {permanent(errBoom), retry.ClassPermanent},
		"permanent, wrapped":      {fmt.Errorf("x: %w", permanent(errBoom)), retry.ClassPermanent},
		"permanent, with a stack": {pkgerrors.Wrap(permanent(errBoom), "x"), retry.ClassPermanent},
		"permanent, joined":       {errors.Join(errBoom, permanent(errBoom)), retry.ClassPermanent},
		"permanent, deep": {fmt.Errorf("%w and %w", errBoom,
			errors.Join(errBoom, fmt.Errorf("x: %w", permanent(errBoom)))), retry.ClassPermanent},
		"drop":          {drop(errBoom), retry.ClassDrop},
		"drop, wrapped": {fmt.Errorf("x: %w", drop(errBoom)), retry.ClassDrop},

		"outermost mark, drop":      {drop(permanent(errBoom)), retry.ClassDrop},
		"outermost mark, permanent": {permanent(fmt.Errorf("x: %w", drop(errBoom))), retry.ClassPermanent},
		"first mark, drop":          {errors.Join(drop(errBoom), permanent(errBoom)), retry.ClassDrop},
		"first mark, permanent":     {errors.Join(permanent(errBoom), drop(errBoom)), retry.ClassPermanent},

		"not retryable":            {opinion(false), retry.ClassPermanent},
		"not retryable, wrapped":   {fmt.Errorf("x: %w", opinion(false)), retry.ClassPermanent},
		"retryable":                {opinion(true), retry.ClassError},
		"outermost opinion, true":  {wrapping{true, opinion(false)}, retry.ClassError},
		"outermost opinion, false": {wrapping{false, opinion(true)}, retry.ClassPermanent},

		"a mark outweighs an opinion":        {permanent(opinion(true)), retry.ClassPermanent},
		"a mark inside outweighs an opinion": {wrapping{true, drop(errBoom)}, retry.ClassDrop},
		"a mark outweighs a bad opinion":     {wrapping{false, drop(errBoom)}, retry.ClassDrop},

		"panic":                        {panicked("boom"), retry.ClassPanic},
		"panic, wrapped":               {fmt.Errorf("x: %w", panicked("boom")), retry.ClassPanic},
		"panic with an error":          {panicked(errBoom), retry.ClassPanic},
		"panic with a permanent error": {panicked(permanent(errBoom)), retry.ClassPermanent},
		"panic with a drop":            {panicked(drop(errBoom)), retry.ClassDrop},
		"panic with a bad opinion":     {panicked(opinion(false)), retry.ClassPermanent},
		"panic with a good opinion":    {panicked(opinion(true)), retry.ClassPanic},
		"a mark around a panic":        {permanent(panicked("boom")), retry.ClassPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			class, after := engine.Classify(&config.Policy{}, retry.ClassError, test.err)
			assert.Equal(t, test.want, class)
			assert.Zero(t, after)
		})
	}
}

// The order of precedence, as the comment on Classify has it.
func TestClassifyByLists(t *testing.T) {
	other := errors.New("other")
	never := config.Policy{NeverRetry: []config.ErrorMatch{config.Is(errBoom)}}
	only := config.Policy{RetryOnly: []config.ErrorMatch{config.Is(errBoom), config.As[*retry.PanicError]()}}
	both := config.Policy{RetryOnly: only.RetryOnly, NeverRetry: never.NeverRetry}
	opinions := config.Policy{RetryOnly: []config.ErrorMatch{config.As[opinion]()}}
	const (
		failed, permanent = retry.ClassError, retry.ClassPermanent
		second            = time.Second
	)

	for name, test := range map[string]struct {
		policy   config.Policy
		happened retry.Class
		err      error
		want     retry.Class
		after    time.Duration
	}{
		"1 permanent":                    {only, failed, retry.Permanent(errBoom), permanent, 0},
		"1 drop":                         {only, failed, retry.Drop(errBoom), retry.ClassDrop, 0},
		"1 transient, before never":      {never, failed, retry.Transient(errBoom), failed, 0},
		"1 transient, before only":       {only, failed, retry.Transient(other), failed, 0},
		"1 transient, before an opinion": {config.Policy{}, failed, retry.Transient(opinion(false)), failed, 0},
		"1 transient, a panic":           {never, failed, retry.Transient(panicked(errBoom)), retry.ClassPanic, 0},
		"1 retry after, before never":    {never, failed, retry.RetryAfter(second, errBoom), failed, second},
		"1 retry after, wrapped": {never, failed, fmt.Errorf("x: %w", retry.RetryAfter(second, errBoom)),
			failed, second},
		"1 retry after, outermost": {never, failed, retry.RetryAfter(second, retry.Permanent(errBoom)), failed,
			second},
		"1 retry after, inside": {never, failed, retry.Permanent(retry.RetryAfter(second, errBoom)),
			permanent, 0},
		"1 retry after 0":           {never, failed, retry.RetryAfter(0, errBoom), failed, 1},
		"1 retry after less than 0": {never, failed, retry.RetryAfter(-second, errBoom), failed, 1},
		"1 retry after, in a panic": {never, failed, panicked(retry.RetryAfter(second, errBoom)),
			retry.ClassPanic, second},
		"1 postpone": {only, failed, retry.Postpone(second), retry.ClassPostponed, second},
		"1 postpone, wrapped": {never, failed, fmt.Errorf("%w: %w", errBoom, retry.Postpone(second)),
			retry.ClassPostponed, second},
		"1 postpone for nothing":          {only, failed, retry.Postpone(0), retry.ClassPostponed, 1},
		"1 a mark on what is undecodable": {never, retry.ClassUndecodable, retry.Drop(errBoom), retry.ClassDrop, 0},
		"1 transient and undecodable":     {never, retry.ClassUndecodable, retry.Transient(errBoom), failed, 0},
		"1 retry after and undecodable": {never, retry.ClassUndecodable, retry.RetryAfter(second, errBoom), failed,
			second},
		"1 transient and crashed": {never, retry.ClassCrashed, retry.Transient(errBoom), retry.ClassCrashed, 0},
		"1 retry after and unpublishable": {never, retry.ClassUnpublishable, retry.RetryAfter(second, errBoom),
			retry.ClassUnpublishable, second},

		"2 undecodable":   {only, retry.ClassUndecodable, other, retry.ClassUndecodable, 0},
		"2 crashed":       {never, retry.ClassCrashed, errBoom, retry.ClassCrashed, 0},
		"2 unpublishable": {never, retry.ClassUnpublishable, errBoom, retry.ClassUnpublishable, 0},

		"3 never":             {never, failed, errBoom, permanent, 0},
		"3 never, wrapped":    {never, failed, fmt.Errorf("x: %w", errBoom), permanent, 0},
		"3 never, in a panic": {never, failed, panicked(errBoom), permanent, 0},
		"3 never, another":    {never, failed, other, failed, 0},
		"3 never, in both":    {both, failed, errBoom, permanent, 0},

		"4 only":                        {only, failed, fmt.Errorf("x: %w", errBoom), failed, 0},
		"4 only, another":               {only, failed, other, permanent, 0},
		"4 only, a panic that is in it": {only, failed, panicked("boom"), retry.ClassPanic, 0},
		"4 only, a panic that is not":   {opinions, failed, panicked("boom"), permanent, 0},
		"4 only, before an opinion":     {opinions, failed, opinion(false), failed, 0},

		"5 an opinion": {never, failed, opinion(false), permanent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			class, after := engine.Classify(&test.policy, test.happened, test.err)
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
		"permanent": {retry.Permanent, retry.ErrPermanent, retry.ErrDrop},
		"drop":      {retry.Drop, retry.ErrDrop, retry.ErrPermanent},
		"transient": {retry.Transient, retry.ErrTransient, retry.ErrPermanent},
		"retry after": {func(err error) error { return retry.RetryAfter(time.Second, err) }, retry.ErrRetryAfter,
			retry.ErrPostponed},
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
	err := fmt.Errorf("not there yet: %w", retry.Postpone(time.Minute))
	assert.EqualError(t, err, "not there yet: postponed for 1m0s")
	assert.ErrorIs(t, err, retry.ErrPostponed)
	assert.NotErrorIs(t, err, retry.ErrRetryAfter)
}

func TestPanicError(t *testing.T) {
	err := &retry.PanicError{Value: errBoom, Stack: []byte("the stack")}
	assert.EqualError(t, err, "handler panicked: boom")
	assert.ErrorIs(t, err, errBoom)

	err.ShowStack = true
	assert.EqualError(t, err, "handler panicked: boom\nthe stack")

	assert.NoError(t, (&retry.PanicError{Value: 42}).Unwrap())
	assert.EqualError(t, &retry.PanicError{Value: 42}, "handler panicked: 42")
}
