package publish

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

var errEnded = errors.New("ended")

// A caller closes the channel as soon as DeclareHere returns. So DeclareHere must not return before
// the caller's declaration ends.
func TestObject_DeclareHereWaitsForItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var object Object
		open, answer := true, make(chan error)
		returned := make(chan error)
		go func() {
			err := object.DeclareHere(ctx, nil, time.Now(), func() error {
				err := <-answer
				assert.True(t, open, "the channel was closed during the declaration")

				return err
			})
			open = false
			returned <- err
		}()

		synctest.Wait()
		cancel(errEnded)
		for _, do := range []func(context.Context, *connection.Link, time.Time, func() error) error{
			object.Declare, object.DeclareHere} {
			require.ErrorIs(t, do(ctx, nil, time.Now(), nil), errEnded, "who joins gives up")
			require.ErrorContains(t, do(t.Context(), nil, time.Now(), nil), "has not answered for 30s")
		}

		select {
		case err := <-returned:
			t.Fatalf("returned %v before the answer", err)
		default:
		}
		answer <- nil
		require.NoError(t, <-returned, "the answer, although the context has ended")
	})
}

func TestObject_DoesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var object Object
		n := 0
		count := func() error {
			n++
			return nil
		}

		began := time.Now()
		<-time.After(time.Second)
		require.NoError(t, object.Declare(t.Context(), nil, began, count))
		require.NoError(t, object.DeclareHere(t.Context(), nil, began, count))
		assert.Equal(t, 1, n, "it has succeeded since")

		<-time.After(time.Second)
		require.ErrorIs(t, object.DeclareHere(t.Context(), nil, time.Now(), func() error { return errEnded }), errEnded)
		require.NoError(t, object.Declare(t.Context(), nil, time.Now(), count))
		assert.Equal(t, 2, n, "the last one has failed")
	})
}

// Each link is asked for what is there: a connection that comes back may lead to another broker. A
// declaration that an earlier link does not answer holds up nobody.
func TestObject_OncePerLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &connection.Link{}, &connection.Link{}
		var object Object
		n := 0
		count := func() error {
			n++
			return nil
		}
		assert.False(t, object.WasDeclared())
		for i, link := range []*connection.Link{first, first, second, second, first} {
			require.NoError(t, object.Declare(t.Context(), link, time.Time{}, count))
			assert.Equal(t, []int{1, 1, 2, 2, 3}[i], n)
		}
		require.NoError(t, object.Declare(t.Context(), nil, time.Time{}, count))
		assert.Equal(t, 3, n, "over whatever link")
		assert.True(t, object.WasDeclared())
		object.Forget()
		assert.False(t, object.WasDeclared())

		silent := make(chan error)
		go func() { _ = object.Declare(t.Context(), first, time.Time{}, func() error { return <-silent }) }()
		synctest.Wait()
		require.NoError(t, object.Declare(t.Context(), second, time.Time{}, count))
		silent <- nil
		synctest.Wait()
		require.NoError(t, object.Declare(t.Context(), second, time.Time{}, count))
		assert.Equal(t, 4, n, "the late answer of the first link changes nothing")
	})
}
