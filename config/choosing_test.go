package config_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// The numbers of docs/concepts/choosing-a-policy.md.
func TestChoosingAPolicy(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../docs/concepts/choosing-a-policy.md")
	require.NoError(t, err)
	second, minute := time.Second, time.Minute
	exponential := config.Backoff{Kind: config.BackoffExponential, Initial: second, Max: minute}
	for name, row := range map[string]struct {
		policy config.Policy
		waits  string
	}{
		"default":                                        {config.Policy{}, "12 min 36 s"},
		"`Delays: 1s, 1m`, `Retries: 5`":                 {config.Policy{Delays: []time.Duration{second, minute}, Retries: 5}, "4 min 1 s"},
		"`Immediate: 2`, `Delays: 1s, 1m`":               {config.Policy{Delays: []time.Duration{second, minute}, Immediate: 2}, "1 min 1 s"},
		"`Backoff: exponential, 1s to 1m`, `Retries: 8`": {config.Policy{Backoff: exponential, Retries: 8}, "3 min 3 s"},
	} {
		policy := config.Policies{Default: row.policy}.For("orders")
		attempts := policy.Retries + 1
		assert.Contains(t, string(page), fmt.Sprintf("| %s | %d | %d | %s |", name, attempts, attempts+policy.Immediate,
			row.waits))
		wait := policy.TotalWait()
		assert.Equal(t, row.waits, fmt.Sprintf("%.0f min %.0f s", wait.Truncate(minute).Minutes(),
			(wait%minute).Seconds()), name)
	}
}
