package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	var out exampletest.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	var calls int
	_, err := fmt.Sscanf(out.String(), "the bank was called %d times\n", &calls)
	require.NoError(t, err, "%q", &out)
	assert.Greater(t, calls, 20, "a plain nack spins")
}

// Five lines make the difference, as README says, and the error of the first of them.
func TestTheDifference(t *testing.T) {
	t.Parallel()

	read := func(file string) []string {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		_, text, found := strings.Cut(string(code), "\nimport (")
		require.True(t, found)

		return strings.Split(text, "\n")
	}
	before, after := read("main.go"), read("../after/main.go")
	var added []string
	for _, line := range after {
		if at := slices.Index(before, line); at >= 0 {
			before = slices.Delete(before, at, at+1)
		} else {
			added = append(added, strings.TrimSpace(line))
		}
	}
	assert.Equal(t, []string{"	subscriber, err := amqp.NewSubscriber(conf, logger)"}, before, "lines that go")
	assert.Equal(t, []string{
		`"github.com/amqpretry/watermill-retry/amqpretry"`, `"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"`,
		"retrier, err := amqpv2.New(conf, amqpretry.Options{Logger: logger}) // 1",
		"defer retrier.Close()                    // 2: after the router",
		"router.AddMiddleware(retrier.Middleware) // 3: before all other middlewares",
		"router.AddPlugin(retrier.CheckRouter)    // 4: Run fails if a middleware would lose retries",
		"subscriber, err := retrier.NewSubscriber() // 5: instead of amqp.NewSubscriber",
		"if err != nil {", "return err", "}",
	}, added, "lines that come")
}
