package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/brokertest"
)

// TestQuickstart checks the whole output, apart from what differs from run to run.
func TestQuickstart(t *testing.T) {
	topic := "quickstart-" + watermill.NewShortUUID()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), topic, &out))

	got := strings.ReplaceAll(out.String(), topic, "orders")

	attempts, letters, found := strings.Cut(got, "\norders.dlq:\n")
	require.True(t, found, got)

	for _, line := range []string{
		"  0.0s  order-1  attempt 1 of 3  shipped",
		"  0.0s  order-2  attempt 1 of 3  failed: the warehouse does not answer",
		"  1.0s  order-2  attempt 2 of 3  failed: the warehouse does not answer",
		"  3.0s  order-2  attempt 3 of 3  shipped",
		"  0.0s  order-3  attempt 1 of 3  shipped",
		"  0.0s  order-4  attempt 1 of 3  failed: the warehouse does not answer",
		"  1.0s  order-4  attempt 2 of 3  failed: the warehouse does not answer",
		"  3.0s  order-4  attempt 3 of 3  failed: the warehouse does not answer",
		"  0.0s  order-5  attempt 1 of 3  failed: the warehouse does not answer",
		"  1.0s  order-5  attempt 2 of 3  failed: the warehouse does not answer",
		"  3.0s  order-5  attempt 3 of 3  shipped",
	} {
		// Tenths of a second are what the example prints; a busy machine may be late by some.
		pattern := `(?m)^` + regexp.MustCompile(`\\\.0s`).ReplaceAllString(regexp.QuoteMeta(line), `\.\ds`) + `$`
		require.Regexp(t, pattern, attempts)
	}
	require.Equal(t, 11, strings.Count(attempts, "\n"), attempts)

	// The undecodable message dies first.
	undecodable, exhausted, found := strings.Cut(letters, `{"id":"order-4","failures":-1}`)
	require.True(t, found, letters)
	require.Contains(t, undecodable, "order-6 is not JSON")
	for _, want := range []string{"amqpretry-reason +undecodable", "amqpretry-error +the body is not JSON", "amqpretry-count +-1"} {
		require.Regexp(t, want, undecodable)
	}
	for _, want := range []string{
		"amqpretry-reason +exhausted", "amqpretry-error +the warehouse does not answer", "amqpretry-attempts +3",
		"amqpretry-queue +orders", "amqpretry-handler +ship", "topic_poisoned +orders", `amqpretry-history +\[\{"n":1,`,
	} {
		require.Regexp(t, want, exhausted)
	}
}
