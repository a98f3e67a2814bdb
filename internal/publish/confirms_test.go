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
		b := newTestBroker(nil)
		var returned sync.Map
		b.OnPublish = func(u *fakebroker.Publish) {
			if _, again := returned.LoadAndDelete(u.Exchange); again {
				u.Ack()
			} else {
				returned.Store(u.Exchange, true)
				u.Return()
			}
		}
		queue := b.forward(t, retryOnce)
		for range 20 {
			queue.forward(t, failure())
		}
		require.Len(t, b.Publishes(), 40)

		c := queue.sender.channels["q.retry"][0]
		require.NoError(t, c.Close())
		<-c.done
		assert.LessOrEqual(t, len(c.ids), 1, "what stands for all returns may stay")
	})
}
