package connection

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
)

// A function of somebody else that panics, fails or never returns costs nothing but its answer.
func TestCredentials(t *testing.T) {
	type given = func(ctx context.Context, over chan struct{}) (config.Credentials, error)
	none := config.Credentials{}
	for name, test := range map[string]struct {
		gives given
		fails string
		takes time.Duration
	}{
		"given": {gives: func(context.Context, chan struct{}) (config.Credentials, error) {
			return config.Credentials{User: "service"}, nil
		}},
		"fails": {func(context.Context, chan struct{}) (config.Credentials, error) {
			return none, errors.New("no token today")
		}, "Options.Credentials: no token today", 0},
		"panics": {func(context.Context, chan struct{}) (config.Credentials, error) { panic("bad") },
			"Options.Credentials: panic: bad", 0},
		"never returns": {func(_ context.Context, over chan struct{}) (config.Credentials, error) {
			<-over
			return none, nil
		}, "Options.Credentials: no answer within 30s", askTimeout},
		"returns with its context": {func(ctx context.Context, _ chan struct{}) (config.Credentials, error) {
			<-ctx.Done()
			return none, context.Cause(ctx)
		}, "Options.Credentials: no answer within 30s", askTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over, asked := make(chan struct{}), atomic.Int64{}
				defer close(over)
				c := New(Settings{Credentials: func(ctx context.Context) (config.Credentials, error) {
					asked.Add(1)
					return test.gives(ctx, over)
				}}, watermill.NopLogger{})
				for range 2 {
					began := time.Now()
					got, err := c.credentials()
					assert.Equal(t, test.takes, time.Since(began))
					if test.fails != "" {
						assert.EqualError(t, err, test.fails)
						continue
					}
					assert.NoError(t, err)
					assert.Equal(t, &config.Credentials{User: "service"}, got)
				}
				want := int64(2)
				if name == "never returns" {
					want = 1
				}
				assert.Equal(t, want, asked.Load(), "one at a time")
			})
		})
	}
}

// A close does not wait for credentials.
func TestCredentialsAtAClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer close(over)
		c := New(Settings{Credentials: func(context.Context) (config.Credentials, error) {
			<-over
			return config.Credentials{}, nil
		}}, watermill.NopLogger{})
		began := time.Now()
		time.AfterFunc(time.Second, c.cancel)
		_, err := c.credentials()
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

func TestSeldom(t *testing.T) {
	var s seldom
	now := time.Now()
	assert.True(t, s.allow(now))
	assert.False(t, s.allow(now.Add(unsureEvery-1)))
	assert.True(t, s.allow(now.Add(unsureEvery)))
	assert.False(t, s.allow(now.Add(unsureEvery+1)))
}
