package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/middleware/protect"
)

// A burst comes through at about the rate, also under delays that grow by factors: a message whose
// turn is between two of them waits in several short ones. The delays are those of the default
// policy, ten times faster, and so is the rate. It takes 1.2 s, and 6.5 s each time if each message
// waits in the one delay that is long enough; so where a busy machine makes it late, it is measured
// again.
func TestRateLimitKeepsItsRate(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for range 4 {
		took := rateLimitedBurst(t)
		if took < 4*time.Second {
			return
		}
		all = append(all, took)
	}
	assert.Fail(t, "a burst takes too long", "%s", all)
}

// rateLimitedBurst returns how long a burst takes.
func rateLimitedBurst(t *testing.T) time.Duration {
	t.Helper()
	const n, perSecond = 40, 40
	limit := must(protect.NewRateLimit(protect.RateLimitConfig{Limit: perSecond, Burst: 1,
		MaxWait: time.Second / 10}))(t)
	policy := config.Default()
	for i := range policy.Delays {
		policy.Delays[i] /= 10
	}
	var s seen
	svc := start(t, setup{
		QueueType: "quorum", Prefetch: 50,
		Options: amqpretry.Options{Concurrency: 8, Policies: config.Policies{Default: policy}},
		Route:   guarded(s.handler(succeed), limit.Middleware),
	})
	began := time.Now()
	svc.publish(rabbit.Numbered("m", n)...)
	await.Until(t, func() bool { return s.count() == n }, "all are handled")
	took := time.Since(began)

	assert.GreaterOrEqual(t, took, (n-1)*time.Second/perSecond*9/10)
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	svc.close()

	return took
}
