package amqpretry

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func TestNativeError(t *testing.T) {
	t.Parallel()

	refused := errors.New("access refused")

	for name, broker := range map[string]struct {
		version string
		delays  bool
		untried error
	}{
		"seen to delay":                       {version: "4.3.6", delays: true},
		"seen to delay, of no known version":  {version: "", delays: true},
		"of a version that delays, not tried": {version: "4.3.0", untried: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			assert.NoError(t, nativeError("orders", broker.version, broker.delays, broker.untried))
		})
	}
	t.Run("seen not to delay", func(t *testing.T) {
		t.Parallel()

		var none *topology.StrategyError
		require.ErrorAs(t, nativeError("orders", "4.3.6", false, nil), &none)
		assert.Equal(t, &topology.StrategyError{Queue: "orders", Strategy: config.StrategyNative, Version: "4.3.6"},
			none)
	})
	t.Run("of no known version, not tried", func(t *testing.T) {
		t.Parallel()

		err := nativeError("orders", "", false, refused)
		require.ErrorIs(t, err, refused)
		assert.ErrorContains(t, err, `its version, "", does not prove it; grant the user configure, write and `+
			`read on queues named orders.trial.*, or use the strategy queues`)
	})
}
