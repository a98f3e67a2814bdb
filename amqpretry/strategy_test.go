package amqpretry

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func TestCheckNative(t *testing.T) {
	t.Parallel()
	native := topology.Plan{Queue: "orders", Strategy: config.StrategyNative}
	assert.NoError(t, checkNative(native, "4.3.0"))
	for _, version := range []string{"4.2.9", "0.0.0", ""} {
		assert.Equal(t, &topology.StrategyError{Queue: "orders", Strategy: config.StrategyNative, Version: version},
			checkNative(native, version))
		assert.NoError(t, checkNative(topology.Plan{Queue: "orders", Strategy: config.StrategyCycle}, version))
	}
}
