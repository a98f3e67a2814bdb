package retrytest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

func exactly(jitter float64, delays ...time.Duration) config.Policy {
	return config.Policy{Strategy: config.StrategyLadder, Delays: delays, Jitter: jitter}
}

// With exact delays a life waits what the policy or the error asks for, to the unit of the ladder.
func TestExactDelays(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		policy config.Policy
		random float64
		errs   []error
		waits  []time.Duration
	}{
		"the policy's": {policy: exactly(0, time.Second, 37*time.Second), errs: []error{errDown},
			waits: seconds(1, 37)},
		"rounded up to the unit": {policy: exactly(0, 12345*time.Millisecond), errs: []error{errDown},
			waits: []time.Duration{12400 * time.Millisecond}},
		"asked for": {policy: exactly(0, seconds(1, 1)...),
			errs:  []error{retry.RetryAfter(37*time.Second, errDown), retry.RetryAfter(time.Millisecond, errDown)},
			waits: []time.Duration{37 * time.Second, 100 * time.Millisecond}},
		"postponed": {policy: exactly(0, time.Second),
			errs:  []error{retry.Postpone(90500 * time.Millisecond), retry.Postpone(3 * time.Second), errDown},
			waits: []time.Duration{90500 * time.Millisecond, 3 * time.Second, time.Second}},
		"the shortest of jitter": {policy: exactly(0.8, time.Minute), random: 1 - 1e-9, errs: []error{errDown},
			waits: seconds(12)},
		"the middle of jitter": {policy: exactly(0.8, time.Minute), random: 0.5, errs: []error{errDown},
			waits: seconds(36)},
		"no jitter of what was asked for": {policy: exactly(0.8, time.Minute), random: 0.5, waits: seconds(37),
			errs: []error{retry.RetryAfter(37*time.Second, errDown), errDown}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := play(retrytest.Service{Policy: test.policy, Random: test.random,
				Clock: retrytest.NewClock(start), ConsumerHandler: returns(test.errs...)})
			r.AssertDeadLettered(t, retry.ReasonExhausted)
			r.AssertDelays(t, test.waits...)
			var total time.Duration
			for i, wait := range test.waits {
				total += wait
				assert.Equal(t, wait, r.Steps[i].Waited)
				assert.Equal(t, config.FormatDelay(wait), r.Steps[i].Headers[header.Delay])
			}
			assert.Equal(t, start.Add(total), r.Ended)
		})
	}
}
