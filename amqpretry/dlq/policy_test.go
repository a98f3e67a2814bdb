package dlq_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// The lock is gone with its connection, and so must be the run.
func TestRunEndsWithItsLock_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	f := on(t, broker.URI, nil)
	f.fill(60)
	begun, ended, once := make(chan struct{}), make(chan error, 1), sync.Once{}
	go func() {
		// Slow enough that it does not end by itself, however long rabbitmqctl takes.
		_, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Rate: 0.2, Progress: func(p dlq.Progress) {
			if p.Matched == 1 {
				once.Do(func() { close(begun) })
			}
		}})
		ended <- err
	}()
	<-begun
	closed := false
	for _, line := range strings.Split(broker.Ctl("list_queues", "-q", "name", "owner_pid"), "\n") {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == f.queue.Name()+".lock" {
			broker.Ctl("close_connection", fields[1], "test")
			closed = true
		}
	}
	require.True(t, closed)
	require.Error(t, <-ended)
	await.Until(t, func() bool {
		left, err := f.queue.Depth(t.Context())
		back := f.Depth(f.main)
		return err == nil && left+back >= 60 && left+back <= 61 && back > 0
	})
}

// Up to 4.2 a policy with a delivery limit wins against the argument of our dead-letter queues;
// only the management API shows it.
func TestBrowsingUnderAPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	const vhost = "limited"
	broker.API(http.MethodPut, struct{}{}, "vhosts", vhost)
	broker.API(http.MethodPut, map[string]string{"configure": ".*", "write": ".*", "read": ".*"}, "permissions", vhost,
		"guest")
	// First, as the API tells of a policy some seconds after it is set.
	broker.API(http.MethodPut, map[string]any{"pattern": `\.dlq$`, "apply-to": "queues",
		"definition": map[string]int{"delivery-limit": 3}}, "policies", vhost, "limit")
	uri := broker.URI + vhost
	f := on(t, uri, nil)
	f.fill(10)

	client, err := dlq.Open(t.Context(),
		dlq.Config{URI: uri, Management: management.API{URL: broker.ManagementURL}})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	queue := client.Queue(f.main)

	unsafe := (*dlq.UnsafeError)(nil)
	if f.countsNoBrowses() {
		await.Until(t, func() bool {
			_, err = queue.Stat(t.Context(), dlq.Filter{})
			return errors.As(err, &unsafe)
		})
	}
	for range 10 { // also while it does not know the queue yet
		_, err = queue.Stat(t.Context(), dlq.Filter{})
		require.ErrorAs(t, err, &unsafe)
	}
	f.Has(f.queue.Name(), 10)

	broker.API(http.MethodDelete, nil, "policies", vhost, "limit")
	await.Until(t, func() bool {
		_, err := queue.Stat(t.Context(), dlq.Filter{})
		return err == nil
	})
	assert.Equal(t, deadletter.Bodies(10), rabbit.Bodies(f.drained(f.queue.Name(), 10)))
}

// From 4.3 on a browse counts only when its process dies. The lower one of policy and argument is
// the limit there as well, so whoever does not see the policies goes by the counts.
func TestBrowsersThatDieUnderAPolicyUnseen_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	f := on(t, broker.URI, nil)
	broker.Ctl("set_policy", "-p", "/", f.main, "^"+f.queue.Name()+"$", `{"delivery-limit": 5}`, "--apply-to", "queues")
	f.fill(1)
	client, err := dlq.Open(t.Context(), dlq.Config{URI: broker.URI})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()

	unsafe := (*dlq.UnsafeError)(nil)
	for deaths := range 6 {
		connection := f.Dial()
		channel, err := connection.Channel()
		require.NoError(t, err)
		if _, err = client.Queue(f.main).Stat(t.Context(), dlq.Filter{}); err == nil {
			require.True(t, f.countsNoBrowses())
			require.Less(t, deaths, 3, "browsed after so many deaths")
			require.NoError(t, channel.Qos(1, 0, false))
			deliveries, err := channel.Consume(f.queue.Name(), "", false, false, false, false, nil)
			require.NoError(t, err)
			<-deliveries
			require.NoError(t, connection.Close())
			f.Has(f.queue.Name(), 1)
			continue
		}
		require.NoError(t, connection.Close())
		require.ErrorAs(t, err, &unsafe)
		if f.countsNoBrowses() {
			assert.Contains(t, unsafe.Found, "from clients that died")
			assert.NotContains(t, unsafe.Found, "each browse")
		} else {
			assert.Contains(t, unsafe.Found, "counts each browse")
		}
	}
	require.NotNil(t, unsafe, "refused in the end")
	f.Has(f.queue.Name(), 1)
}

// Before 4.3 a policy that nobody sees may make browses the end of messages: so nobody browses who
// has not ruled that out.
func TestBrowsingWherePoliciesAreUnseen(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(3)
	client, err := dlq.Open(t.Context(), dlq.Config{URI: brokertest.URI(t)})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()

	_, err = client.Queue(f.main).Stat(t.Context(), dlq.Filter{})
	if f.countsNoBrowses() {
		require.NoError(t, err)
		return
	}
	unsafe := (*dlq.UnsafeError)(nil)
	require.ErrorAs(t, err, &unsafe)
	assert.Contains(t, err.Error(), "counts each browse")
	for _, d := range f.drained(f.queue.Name(), 3) {
		assert.Contains(t, []any{nil, int64(0)}, d.Headers["x-delivery-count"], "nothing was handed out")
	}
}
