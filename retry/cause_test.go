package retry_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/retry"
)

func TestCause_Fingerprint(t *testing.T) {
	t.Parallel()

	assert.Equal(t, "a492b9c065e2", (&retry.Cause{ErrorType: "*net.OpError", Handler: "bill",
		Error: "dial tcp 10.0.0.7:443: refused", Reason: retry.ReasonExhausted}).Fingerprint(), "as in package dlq")
	assert.NotEqual(t, (&retry.Cause{Reason: retry.ReasonExpired}).Fingerprint(),
		(&retry.Cause{Reason: retry.ReasonRejected}).Fingerprint(), "without a text")
	assert.Empty(t, (*retry.Cause)(nil).Fingerprint())
}
