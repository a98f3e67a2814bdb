package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// SubscribeInitialize has no context: a broker that does not answer it must not keep it from ending
// with its subscriber or retrier.
func TestSubscribeInitializeEndsWithClose(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(*service) error{
		"subscriber": func(s *service) error { return s.Sub.Close() },
		"retrier":    func(s *service) error { return s.Retrier.Close() },
	}, func(t *testing.T, _ string, end func(*service) error) {
		network := newProxy(t, brokertest.URI(t))
		svc := newService(t, setup{
			URI: network.URI, Handler: byFate, Options: amqpretry.Options{CloseTimeout: time.Minute},
		})
		network.stallAnswers(subscriber)
		result := make(chan error, 1)
		go func() { result <- svc.Sub.SubscribeInitialize(svc.Queue) }()
		await.Stays(t, 200*time.Millisecond, func() bool { return len(result) == 0 }, "it waits for the broker")

		closed := make(chan error, 1)
		began := time.Now()
		go func() { closed <- end(svc) }()
		require.ErrorIs(t, await.Value(t, result, "the end of SubscribeInitialize"), amqpretry.ErrClosed)
		assert.Less(t, time.Since(began), 30*time.Second,
			"after CloseTimeout it ends with the connection, which the close then gives up")
		network.resume()
		require.NoError(t, await.Value(t, closed, "the end of the close"))
	})
}
