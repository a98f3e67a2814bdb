package dlqweb_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// A visitor leaves while a message of a long queue is looked for, and the service ends: the console
// is closed when the messages are back.
func TestCancelledRequestKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const deadLetters, batch = 20_000, 5_000
	ctx, cancel := context.WithCancel(t.Context())
	passing := make(chan struct{}, 1)
	f := start(t, func(c *dlqweb.Config) {
		c.Broker.OnOrder = func(int, int) {
			if ctx.Err() == nil {
				return
			}
			select {
			case passing <- struct{}{}:
			default:
			}
		}
	})
	for first := 0; first < deadLetters; first += batch {
		f.fill(first, batch)
	}
	path := "/message?uuid=uuid-19999&queue=" + f.dead
	require.Equal(t, http.StatusOK, f.get(path).Status) // from now on all were given back before

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.console.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, path,
			http.NoBody))
	}()
	await.Until(t, func() bool { return f.Depth(f.dead) < deadLetters }, "the console takes messages")
	cancel()
	await.Closed(t, passing, "the request was cancelled, and passes the others")
	require.NoError(t, f.console.Close())
	await.Closed(t, ended, "the request ends")
	assert.Equal(t, deadletter.Bodies(deadLetters), rabbit.Bodies(drain.N(t, f.Client, f.dead, deadLetters)))
}
