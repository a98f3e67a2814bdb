package dlq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/brokertest"
	"github.com/amqpretry/watermill-retry/internal/management"
)

// Up to 4.2 a policy with a delivery limit wins against the argument of our dead-letter queues; only the management API shows it.
func TestLookingUnderAPolicy(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	f := on(t, broker.URI, nil)
	f.fill(10)
	broker.Ctl("set_policy", "-p", "/", "limit", `\.dlq$`, `{"delivery-limit": 3}`, "--apply-to", "queues")

	client, err := dlq.Open(t.Context(), dlq.Config{URI: broker.URI, Management: topology.Management{URL: broker.ManagementURL}})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	queue := client.Queue(f.main)
	api, err := management.New(broker.ManagementURL, "/", nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // looks would count until it knows
		found, err := api.Queue(t.Context(), queue.Name())
		return err == nil && found.Effective["delivery-limit"] == int64(3)
	}, time.Minute, 100*time.Millisecond)

	unsafe := (*dlq.UnsafeError)(nil)
	_, err = queue.Stat(t.Context(), dlq.Filter{})
	require.ErrorAs(t, err, &unsafe)
	f.depth(f.queue.Name(), 10)

	broker.Ctl("clear_policy", "-p", "/", "limit")
	require.Eventually(t, func() bool {
		_, err := queue.Stat(t.Context(), dlq.Filter{})
		return err == nil
	}, time.Minute, 500*time.Millisecond)
	assert.Equal(t, numbered(10), bodies(f.drained(f.queue.Name(), 10)))
}
