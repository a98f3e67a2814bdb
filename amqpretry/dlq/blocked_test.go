package dlq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
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
	ended := make(chan dlq.ReplayReport, 1)
	go func() {
		report, err := client.Queue(f.main).Replay(t.Context(), dlq.ReplayOptions{})
		assert.NoError(t, err)
		ended <- report
	}()
	select {
	case why := <-told:
		require.ErrorContains(t, why, "memory")
	case <-time.After(time.Minute):
		require.Fail(t, "nobody was told")
	}

	broker.Ctl("set_vm_memory_high_watermark", "0.6")
	select {
	case why := <-told:
		require.NoError(t, why)
	case <-time.After(time.Minute):
		require.Fail(t, "nobody was told of the end")
	}
	assert.Equal(t, 20, (<-ended).Done)
	f.Has(f.main, 20)
}
