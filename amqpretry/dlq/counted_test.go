package dlq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// RabbitMQ says that a quorum queue has 0 messages when its leader does not answer for a quarter of
// a second. A run must not take that for the end of its work.
func TestScanOfAQueueWhoseLeaderIsSlow_OwnBroker(t *testing.T) {
	const n = 5
	broker := brokertest.Start(t)
	f := on(t, broker.URI, nil)
	f.fill(n)
	f.Has(f.queue.Name(), n)
	leader := func(do string) {
		broker.Ctl("eval", `{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"`+f.queue.Name()+
			`">>)), {Leader, _} = amqqueue:get_pid(Q), sys:`+do+`(Leader).`)
	}

	leader("suspend")
	require.Zero(t, f.Depth(f.queue.Name()), "this broker waits for the leader")
	timer := time.AfterFunc(3*time.Second, func() { leader("resume") })
	defer timer.Stop()
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	require.Equal(t, n, report.Done)
	f.Has(f.main, n)
}
