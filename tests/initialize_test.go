package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqpretry"
)

// SubscribeInitialize has no context: a broker that does not answer it must not keep it from ending with its subscriber
// or retrier.
func TestSubscribeInitializeEndsWithClose(t *testing.T) {
	t.Parallel()

	for name, end := range map[string]func(*service) error{
		"subscriber": func(s *service) error { return s.Sub.Close() },
		"retrier":    func(s *service) error { return s.Retrier.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			network := newProxy(t, brokertest.URI(t))
			svc := newService(t, setup{URI: network.URI, Handler: byFate})
			network.stallAnswers(subscriber)
			result := make(chan error, 1)
			go func() { result <- svc.Sub.SubscribeInitialize(svc.Queue) }()
			await.Stays(t, 200*time.Millisecond, func() bool { return len(result) == 0 }, "it waits for the broker")

			closed := make(chan error, 1)
			go func() { closed <- end(svc) }()
			select {
			case err := <-result:
				require.ErrorIs(t, err, amqpretry.ErrClosed)
			case <-time.After(time.Second): // before the close gives up the connection, after CloseTimeout
				t.Fatal("SubscribeInitialize outlives Close")
			}
			network.resume()
			require.NoError(t, <-closed)
		})
	}
}
