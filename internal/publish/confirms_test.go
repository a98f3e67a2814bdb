package publish

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// A channel forgets which publishes were returned when they have been told so.
func TestConfirmChannel_ForgetsReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker()
		var mu sync.Mutex
		returned := map[string]bool{}
		b.OnPublish = func(u *fakebroker.Publish) {
			mu.Lock()
			again := returned[u.Exchange]
			returned[u.Exchange] = !again
			mu.Unlock()
			if again {
				u.Ack()
			} else {
				u.Return()
			}
		}
		queue := newTestForwarder(t, b).ForQueue(scriptedPlan(t, retryOnce))
		for range 20 {
			_, err := queue.Forward(t.Context(), failure(), isThere)
			require.NoError(t, err)
		}
		require.Len(t, b.Publishes(), 40)

		c := queue.sender.channels["q.retry"][0]
		require.NoError(t, c.Close())
		<-c.done
		assert.LessOrEqual(t, len(c.ids), 1, "what stands for all returns may stay")
	})
}
