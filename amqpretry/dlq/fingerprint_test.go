package dlq

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/fingerprint"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()

	letter := func(errorType, handler, text string) *DeadLetter {
		return &DeadLetter{DeadLetter: retry.DeadLetter{
			Reason: retry.ReasonExhausted, ErrorType: errorType, Handler: handler, Error: text,
		}}
	}
	one := letter("*net.OpError", "bill", "dial tcp 10.0.0.7:443: refused").Fingerprint()
	assert.Equal(t, Fingerprint{ID: "a492b9c065e2", ErrorType: "*net.OpError", Handler: "bill",
		Pattern: "dial tcp <n>:<n>: refused"}, one, "it is in links, so it stays what it is")
	assert.True(t, fingerprint.IsID(one.ID))

	assert.Equal(t, one, letter("*net.OpError", "bill", "dial tcp 10.0.0.8:80: refused").Fingerprint())
	for _, other := range []*DeadLetter{
		letter("*net.Error", "bill", "dial tcp 10.0.0.7:443: refused"),
		letter("*net.OpError", "ship", "dial tcp 10.0.0.7:443: refused"),
		letter("*net.OpError", "bill", "dial tcp 10.0.0.7:443: reset"),
		letter("*net.OpErrorbill", "", "dial tcp 10.0.0.7:443: refused"),
	} {
		assert.NotEqual(t, one.ID, other.Fingerprint().ID)
	}

	assert.Equal(t, "exhausted", letter("", "", "").Fingerprint().Pattern)
	assert.Equal(t, "exhausted", letter("", "", " \n").Fingerprint().Pattern)
	assert.Empty(t, (&DeadLetter{}).Fingerprint().Pattern)
}
