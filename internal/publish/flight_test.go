package publish

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errEnded = errors.New("ended")

// A caller closes the channel as soon as DoWith returns. So DoWith must not return before the caller's declaration ends.
func TestFlight_DoWithWaitsForItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var flight Flight
		open, answer := true, make(chan error)
		returned := make(chan error)
		go func() {
			err := flight.DoWith(ctx, time.Now(), func() error {
				err := <-answer
				assert.True(t, open, "the channel was closed during the declaration")

				return err
			})
			open = false
			returned <- err
		}()

		synctest.Wait()
		cancel(errEnded)
		for _, do := range []func(context.Context, time.Time, func() error) error{flight.Do, flight.DoWith} {
			require.ErrorIs(t, do(ctx, time.Now(), nil), errEnded, "who joins gives up")
			require.ErrorContains(t, do(t.Context(), time.Now(), nil), "has not answered for 30s")
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

func TestFlight_DoesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flight Flight
		n := 0
		count := func() error {
			n++
			return nil
		}

		began := time.Now()
		<-time.After(time.Second)
		require.NoError(t, flight.Do(t.Context(), began, count))
		require.NoError(t, flight.DoWith(t.Context(), began, count))
		assert.Equal(t, 1, n, "it has succeeded since")

		<-time.After(time.Second)
		require.ErrorIs(t, flight.DoWith(t.Context(), time.Now(), func() error { return errEnded }), errEnded)
		require.NoError(t, flight.Do(t.Context(), time.Now(), count))
		assert.Equal(t, 2, n, "the last one has failed")
	})
}
