package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			under tally
			stop  = make(chan struct{})
			began = time.Now()
		)
		assert.True(t, under.within(time.Minute, stop), "nothing is under way")
		under.Wait()

		under.Add(3)
		time.AfterFunc(time.Second, under.Done)
		assert.False(t, under.within(10*time.Second, stop), "two take longer")
		assert.Equal(t, 10*time.Second, time.Since(began))

		began = time.Now()
		assert.False(t, under.within(10*time.Second, stop), "they are under way")
		assert.Zero(t, time.Since(began), "and not waited for again")

		under.Add(1)
		time.AfterFunc(time.Second, under.Done)
		assert.False(t, under.within(10*time.Second, stop))
		assert.Equal(t, time.Second, time.Since(began), "another one is")

		time.AfterFunc(time.Hour, under.Done)
		time.AfterFunc(2*time.Hour, under.Done)
		under.Wait()
		assert.Equal(t, 2*time.Hour+time.Second, time.Since(began), "Wait has no bound")
		assert.True(t, under.within(0, stop))

		under.Add(1)
		assert.False(t, under.within(0, stop))
		under.Done()
		under.Add(1)
		began = time.Now()
		time.AfterFunc(time.Second, func() { close(stop) })
		assert.False(t, under.within(time.Minute, stop), "the one that was late is over, this is another")
		assert.Equal(t, time.Second, time.Since(began), "the stop ends the wait")
		under.Done()
	})
}
