package policyfile

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Names of topics are the user's, whatever is in them.
func TestInFile(t *testing.T) {
	for _, topic := range []string{"orders", "Orders.Paid", `a"B`, `A\`, `\"A.B`, "Ö", "a]B"} {
		name := "[" + strconv.Quote(topic) + "]"
		assert.Equal(t, "topics"+name+".max_age", inFile("Policies.Topics"+name+".MaxAge"), topic)
	}
	assert.Equal(t, "default.backoff.initial", inFile("Policies.Default.Backoff.Initial"))
	assert.Equal(t, "default.never_retry[2]", inFile("Policies.Default.NeverRetry[2]"))
	assert.Equal(t, "topics", inFile("Policies.Topics"))
}
