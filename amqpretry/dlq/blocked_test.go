package dlq_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// In an alarm a replay waits, and says so.
func TestReplayInAnAlarm_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	f := on(t, broker.URI, nil)
	f.fill(20)
	told := make(chan error, 8)
	client, err := dlq.Open(t.Context(), dlq.Config{URI: broker.URI, NoDeliveryLimitPolicy: true,
		OnBlocked: func(why error) { told <- why }})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()

	broker.Ctl("set_vm_memory_high_watermark", "0.00001")
	ended := make(chan dlq.Report, 1)
	go func() {
		report, err := client.Queue(f.main).Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
		assert.NoError(t, err)
		ended <- report
	}()
	require.ErrorContains(t, await.Value(t, told, "somebody is told"), "memory")

	broker.Ctl("set_vm_memory_high_watermark", "0.6")
	require.NoError(t, await.Value(t, told, "somebody is told of the end"))
	assert.Equal(t, 20, await.Value(t, ended, "the replay ends").Done)
	f.Has(f.main, 20)
}
