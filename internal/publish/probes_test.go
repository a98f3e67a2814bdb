package publish

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// A broker that does not say whether dead letters may be published is asked once, on one channel,
// however many topics there are.
func TestCheckAccess_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil) // it does not know the question
		f := newTestForwarder(t, b)
		plan := scriptedPlan(t, config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared})
		for range 3 {
			began := time.Now()
			require.NoError(t, f.CheckAccess(plan), "nothing is known to be wrong")
			assert.Equal(t, accessTimeout, time.Since(began))
		}
		assert.Equal(t, 1, b.Open())
	})
}
