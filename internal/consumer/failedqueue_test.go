package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// The headers of a message count when it has waited in a retry queue of its main queue for its
// delay, and only then.
func TestArriveFailed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	queue := Queue{
		Topic: "orders", Name: "orders.failed",
		Policy: config.Policy{Delays: []time.Duration{time.Second, time.Minute}}.WithDefaults(),
	}
	for name, test := range map[string]struct {
		count, delay, of string
		waited           []string
		failures         int
		replay           bool
	}{
		"fresh":          {},
		"retry":          {count: "1", delay: "1s", of: "orders", waited: []string{"orders.retry.1s"}, failures: 1},
		"shared":         {count: "2", delay: "1m", of: "orders", waited: []string{"x", "retry.1m"}, failures: 2},
		"exact":          {count: "2", delay: "1m", of: "orders", waited: []string{"orders.landing", "x"}, failures: 2},
		"not waited":     {count: "1", delay: "1s", of: "orders"},
		"too many":       {count: "1000", delay: "1s", of: "orders"},
		"fewer retries":  {count: "1000", delay: "1s", of: "orders", waited: []string{"orders.retry.1s"}, failures: 2},
		"another delay":  {count: "1", delay: "1m", of: "orders", waited: []string{"orders.retry.1s"}},
		"another's wait": {count: "1", delay: "1s", of: "orders", waited: []string{"mails.retry.1s"}},
		"another's":      {count: "1", delay: "1s", of: "mails", waited: []string{"orders.retry.1s"}},
		"failed queue's": {count: "1", delay: "1s", of: "orders.failed", waited: []string{"orders.failed.retry.1s"}},
		"no delay":       {count: "1", of: "orders", waited: []string{"orders.retry."}},
		"replay":         {count: "-1", of: "orders", replay: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := amqp091.Delivery{Headers: amqp091.Table{header.Version: "1", header.Count: test.count,
				header.Delay: test.delay, header.Queue: test.of, header.DeliveryCount: int64(100)}, Redelivered: true}
			a := queue.arriveFailed(&d, codec.Failed{Queue: "orders", Waited: test.waited}, now, watermill.NopLogger{})
			assert.Equal(t, test.failures, a.State.Count)
			assert.Equal(t, test.replay, a.Replay)
			assert.Equal(t, "orders", a.State.Queue)
			assert.NoError(t, a.Crash, "no handler runs here")
		})
	}
}

func TestWhyFailed(t *testing.T) {
	t.Parallel()
	queue, mains := &Queue{Topic: "orders", Name: "failed"}, []string{"mails", "orders"}
	for death, want := range map[string]retry.Reason{
		"rejected": retry.ReasonRejected, "expired": retry.ReasonExpired, "maxlen": retry.ReasonMaxLen,
		"delivery_limit": retry.ReasonDeliveryLimit,
	} {
		reason, err := queue.whyFailed(codec.Failed{Main: "orders", Queue: "orders", Reason: death}, mains)
		assert.Equal(t, want, reason)
		assert.Equal(t, &retry.RejectedError{Queue: "orders", Reason: want}, err)
		assert.ErrorContains(t, err, `queue "orders"`)
	}
	for want, failed := range map[string]codec.Failed{
		`published to the failed queue "failed"`:                                {Main: "orders"},
		`published to the failed queue`:                                         {},
		`by queue "bills" and not by one of its main queues ["mails" "orders"]`: {Queue: "bills", Reason: "rejected"},
		`unknown reason, "new"`:                                                 {Main: "orders", Queue: "orders", Reason: "new"},
		`queue "mails" dead-lettered the message for an unknown reason, ""`:     {Main: "orders", Queue: "mails"},
	} {
		reason, err := queue.whyFailed(failed, mains)
		assert.Equal(t, retry.ReasonPermanent, reason, failed)
		assert.ErrorContains(t, err, want)
	}

	rejected := codec.Failed{Main: "orders", Queue: "mails", Reason: "rejected"}
	_, err := queue.whyFailed(rejected, mains)
	assert.Equal(t, &retry.RejectedError{Queue: "mails", Reason: retry.ReasonRejected}, err, "the queue that did it")
	queue.Missing = func() error { return errors.New("does not exist") }
	reason, err := queue.whyFailed(rejected, mains)
	assert.Equal(t, retry.ReasonPermanent, reason)
	assert.ErrorContains(t, err, "does not exist")
}

func TestMainQueuesInWords(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `its main queue "a"`, list([]string{"a"}))
	assert.Equal(t, `one of its main queues ["a" "b"]`, list([]string{"a", "b"}))
	assert.Contains(t, list(make([]string, 13)), "and 3 more")
}

func TestMainQueueByName(t *testing.T) {
	t.Parallel()
	queue := Queue{Name: "failed", FailedOf: []*Queue{{Topic: "a"}, {Topic: "b"}, {Topic: "c"}}}
	for _, name := range queue.mains() {
		assert.Equal(t, name, queue.main(name).Topic)
	}
	for _, name := range []string{"", "0", "bb", "d", "failed"} {
		assert.Nil(t, queue.main(name), name)
	}
}
