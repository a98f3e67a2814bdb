package dlqweb_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// A visitor leaves while a long queue is read, and the service ends: the console is closed when the
// messages are back.
func TestCancelledRequestKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const deadLetters, batch = 20_000, 5_000
	f := start(t, nil)
	for first := 0; first < deadLetters; first += batch {
		f.fill(first, batch)
	}
	api := "/api/v1/queues/" + f.dead
	require.Equal(t, http.StatusOK, f.get(api).Status) // from now on all were given back before

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.console.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet,
			api+"?refresh=now", http.NoBody))
	}()
	await.Until(t, func() bool { return f.Depth(f.dead) < deadLetters }, "the console takes messages")
	cancel()
	await.Closed(t, ended, "the request ends")
	require.NoError(t, f.console.Close())
	assert.Equal(t, deadletter.Bodies(deadLetters), rabbit.Bodies(drain.N(t, f.Client, f.dead, deadLetters)))
}
