package engine

import (
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// hopFor is the delay in which a message waits next that is to wait so long. It is 0 only for a policy that retries
// nothing.
//
// No wait that an error asks for ends early. So a message takes one delay that is long enough if that is not much
// longer; else it goes through the longest one that is shorter, and then on with the rest. A wait that is longer than
// all delays takes the longest as often as it takes: that costs the broker one republished message for each, and nobody
// a call of a handler.
func hopFor(policy config.Policy, wait time.Duration) time.Duration {
	over := policy.DelayFor(wait)
	if over <= wait+wait/hopTolerance {
		return over
	}
	under := longestUnder(policy, wait)
	if under == 0 {
		return over
	}
	// What the way through the shorter ones takes in all, if the rest is one more of them.
	hops := (wait + under - 1) / under
	if hops > mostHops || hops*under >= over {
		return over
	}

	return under
}

const (
	// hopTolerance is the part of a wait, one fourth, by which a single delay may be longer: it saves republishing.
	hopTolerance = 4
	// mostHops is how many shorter delays may take the place of a single one that is too long. The steps of the default
	// policy are factors of 4 to 6.
	mostHops = 10
)

// longestUnder is the longest delay of the policy that is shorter than wait, 0 if there is none.
func longestUnder(policy config.Policy, wait time.Duration) time.Duration {
	var found time.Duration
	for retry := range policy.MaxRetries() {
		if d := policy.Delay(retry + 1); d < wait {
			found = max(found, d)
		}
	}

	return found
}
