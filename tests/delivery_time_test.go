package tests

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// P1, P6: RabbitMQ 4.4 acts on x-opt-delivery-time, so that a copy with it is late, or stops its
// queue for good. No copy has it: in a retry queue, as a dead letter, replayed, moved or imported.
// The handler sees it at each attempt.
func TestP6_DeliveryTimeIsKeptAside(t *testing.T) {
	t.Parallel()
	for _, stock := range []bool{false, true} {
		t.Run(map[bool]string{false: "own subscriber", true: "stock subscriber"}[stock], func(t *testing.T) {
			t.Parallel()
			const far = int64(253402300799000) // year 9999
			var s seen
			c := setup{Tiers: true, URI: brokertest.URI(t), QueueType: "classic",
				Handler: s.handler(func(msg *message.Message) error {
					if msg.UUID == "permanent" {
						return retry.Permanent(errors.New("at once"))
					}

					return errors.New("again")
				})}
			c.Options.Policies = retries(50*time.Millisecond, time.Hour)
			var svc *service
			if stock {
				svc = startStock(t, c).service
			} else {
				svc = start(t, c)
			}
			other := uniqueName("other")
			svc.Broker.Declare(other, nil)

			messages := rabbit.Messages("permanent", "retried")
			for i := range messages {
				messages[i].Headers["x-opt-delivery-time"], messages[i].Headers["x-opt-more"] = far, []byte{0xff}
			}
			svc.Broker.Publish(svc.Queue, messages...)
			isClean := func(what, queue string) {
				t.Helper()
				for _, d := range svc.Broker.Take(queue, 1) {
					for key := range d.Headers {
						assert.NotContains(t, key, "x-opt-", what)
					}
					assert.JSONEq(t, `{"x-opt-delivery-time":"253402300799000","x-opt-more":"/w=="}`,
						rabbit.Text(d, header.Opt), what)
				}
			}
			isClean("waiting", svc.retryQueue(time.Hour))
			calls := s.of("retried")
			require.Len(t, calls, 2)
			for _, call := range calls {
				assert.Equal(t, "253402300799000", call.Metadata["x-opt-delivery-time"])
				assert.Equal(t, "/w==", call.Metadata["x-opt-more"])
			}

			letters := lettersOf(t, svc, c.URI)
			var exported bytes.Buffer
			await.Until(t, func() bool {
				report, err := letters.Export(t.Context(), &exported, dlq.ExportOptions{})
				return err == nil && report.Done == 1
			}, "a dead letter")
			line := bytes.Clone(exported.Bytes())

			_, err := letters.Import(t.Context(), bytes.NewReader(line), dlq.ImportOptions{To: other})
			require.NoError(t, err)
			isClean("imported", other)
			_, err = letters.Import(t.Context(), bytes.NewReader(line), dlq.ImportOptions{})
			require.NoError(t, err)
			_, err = letters.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: other, Limit: 1})
			require.NoError(t, err)
			isClean("moved", other)
			_, err = letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: other})
			require.NoError(t, err)
			isClean("replayed", other)
		})
	}
}
