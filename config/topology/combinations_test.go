package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Each accepted combination of what a policy says about the broker differs there from all others,
// or says why it does not. A field that multiplies them changes these numbers.
func TestEachAcceptedCombinationDiffersOnTheBroker(t *testing.T) {
	accepted, possible, byObjects := map[config.Mode]int{}, 0, map[string]string{}
	for _, mode := range config.ModeRetry.Choices() {
		for _, strategy := range config.StrategyQueues.Choices() {
			for _, protect := range config.ProtectionNone.Choices() {
				for _, classic := range []bool{false, true} {
					possible++
					policy := config.Policy{Mode: config.Mode(mode), Strategy: config.Strategy(strategy),
						Protect: config.Protection(protect), ClassicQueues: classic}
					if policy.Mode == config.ModeRetry {
						policy.Delays, policy.Retries = []time.Duration{time.Minute}, 3
					}
					declared, err := declared(policy)
					if err != nil {
						continue
					}
					accepted[policy.Mode]++
					name := fmt.Sprint(mode, " ", strategy, " ", protect, " ", classic)
					if same, known := byObjects[declared]; known {
						assert.Equal(t, config.ProtectionPolicy, policy.Protect, "%s declares what %s does", name, same)
						continue // its main queue has a policy of the broker, which an operator sets
					}
					byObjects[declared] = name
				}
			}
		}
	}
	assert.Equal(t, 108, possible)
	assert.Equal(t, map[config.Mode]int{config.ModeRetry: 25, config.ModeDeadLetter: 6, config.ModeOff: 3}, accepted)
	assert.Len(t, byObjects, 26)
}

// declared is all that the broker has under a policy, with the arguments that the main queue is
// declared with.
func declared(policy config.Policy) (string, error) {
	plan, err := topology.New("orders", policy, topology.Names{})
	if err != nil {
		return "", err
	}
	text := plan.String()
	if plan.Ladder != nil {
		text += plan.Ladder.Shared().String()
	}
	switch {
	case policy.Protect != config.ProtectionArguments:
	case plan.MainArguments != nil:
		text += fmt.Sprint(plan.MainArguments)
	default:
		text += fmt.Sprint(topology.ProtectArguments("orders.dlq"))
	}
	return text, nil
}
