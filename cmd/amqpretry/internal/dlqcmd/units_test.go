package dlqcmd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/units"
)

func TestUnitsOfFlags(t *testing.T) {
	var a age
	require.NoError(t, a.Set("1d12h"))
	assert.Equal(t, 36*time.Hour, a.Duration)
	assert.ErrorIs(t, a.Set("1w"), units.ErrAge)
	assert.Zero(t, a.Duration)
	var r rate
	require.NoError(t, r.Set("30/m"))
	assert.InDelta(t, 0.5, float64(r), 1e-9)
	assert.ErrorIs(t, r.Set("1/d"), units.ErrRate)

	assert.Equal(t, "-", since(time.Time{}, now))
	assert.Equal(t, "1m01s", since(now.Add(-61*time.Second), now))
}
