//go:build cluster

package cluster

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/health"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// A consumer of a queue whose members are all on another node hears nothing when that node is
// killed. The probe tells of it, and the service stays ready and alive for its other queue.
func TestHealth_NoLeader_OwnBroker(t *testing.T) {
	cluster := brokertest.StartCluster(t)
	here, there := cluster.Nodes[0], cluster.Nodes[1]
	lonely, usual := "q-"+watermill.NewShortUUID(), "q-"+watermill.NewShortUUID()
	rabbit.New(t, there.URI).Declare(lonely, amqp091.Table{"x-queue-type": "quorum", "x-quorum-initial-group-size": 1})
	rabbit.New(t, here.URI).Declare(usual, amqp091.Table{"x-queue-type": "quorum", "x-quorum-initial-group-size": 3})

	retrier, err := adapter.New(amqp.NewDurableQueueConfig(here.URI), amqpretry.Options{
		AssumeTopology: true, Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	defer func() { require.NoError(t, retrier.Close()) }()
	subscriber, err := retrier.NewSubscriber()
	require.NoError(t, err)
	for _, queue := range []string{lonely, usual} {
		_, err := subscriber.Subscribe(t.Context(), queue)
		require.NoError(t, err)
	}
	well := func() bool { h := retrier.Health(); return h.Ready && len(h.Problems) == 0 }
	await.Stays(t, 15*time.Second, well, "a queue with a leader has no problem")

	there.Kill()
	killed := time.Now()
	await.Until(t, func() bool {
		h := retrier.Health()
		i := slices.IndexFunc(h.Problems, func(p retry.Problem) bool { return p.Kind == retry.ProblemLeader })
		return i >= 0 && assert.Equal(t, lonely, h.Problems[i].Queue) && assert.True(t, h.Ready)
	}, "the queue has no leader")
	t.Logf("told after %s", time.Since(killed).Round(time.Second))
	answer := httptest.NewRecorder()
	health.Handler(retrier).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz?verbose", nil))
	assert.Contains(t, answer.Body.String(), "[!]leader warning: queue \""+lonely+"\" gets no messages")

	there.Start()
	await.Until(t, well, "it has a leader again")
	t.Logf("well again after %s", time.Since(killed).Round(time.Second))
}
