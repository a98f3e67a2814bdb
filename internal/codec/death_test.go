package codec

import (
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func TestRejections(t *testing.T) {
	death := func(queue, reason string, count any) amqp091.Table {
		return amqp091.Table{"queue": queue, "reason": reason, "count": count}
	}
	died := func(queue, reason string, deaths ...any) amqp091.Table {
		return amqp091.Table{"x-death": deaths, "x-first-death-queue": queue, "x-first-death-reason": reason}
	}
	and := func(queue, reason string) amqp091.Table {
		return died("orders", "rejected", death("orders.retry.30s", "expired", int64(2)),
			death("orders", "rejected", int64(2)), death(queue, reason, int64(1)))
	}
	back, away := death("orders.retry.30s", "expired", int64(2)), death("orders", "rejected", int64(2))
	for name, test := range map[string]struct {
		headers amqp091.Table
		n       int64
		ok      bool
	}{
		"fresh":                     {amqp091.Table{"mine": 1}, 0, true},
		"rejected twice":            {died("orders", "rejected", back, away), 2, true},
		"counted in 32 bits":        {died("orders", "rejected", back, death("orders", "rejected", int32(3))), 3, true},
		"by two retry queues":       {and("orders.retry.5s", "expired"), 2, true},
		"in another order":          {died("orders", "rejected", away, back), 2, true},
		"never waited":              {died("orders", "rejected", away), 0, false},
		"never rejected":            {died("orders", "rejected", back), 0, false},
		"first died elsewhere":      {died("other", "rejected", back, away), 0, false},
		"first died otherwise":      {died("orders", "expired", back, away), 0, false},
		"expired in the main queue": {and("orders", "expired"), 0, false},
		"rejected elsewhere":        {and("other", "rejected"), 0, false},
		"reached a limit":           {and("orders", "delivery_limit"), 0, false},
		"no table":                  {died("orders", "rejected", "expired"), 0, false},
		"no list": {amqp091.Table{"x-death": "x", "x-first-death-queue": "orders",
			"x-first-death-reason": "rejected"}, 0, false},
		"a first death only": {amqp091.Table{"x-first-death-reason": "rejected"}, 0, false},
		"other types": {amqp091.Table{"x-first-death-queue": []any{},
			"x-first-death-reason": amqp091.Table{}}, 0, false},
		"no count": {died("orders", "rejected", back, death("orders", "rejected", "2")), 0, false},
	} {
		n, ok := Rejections(test.headers, "orders")
		assert.Equal(t, test.n, n, name)
		assert.Equal(t, test.ok, ok, name)
	}
}

// A copy of an older version, which goes on waiting until a time, was not sent by an operator.
func TestSentNow(t *testing.T) {
	deaths := []any{amqp091.Table{"queue": "orders.retry.30s", "reason": "rejected"}}
	for name, test := range map[string]struct {
		headers amqp091.Table
		sent    bool
	}{
		"rejected":            {amqp091.Table{"amqpretry-due": "x", "x-death": deaths}, true},
		"copy":                {amqp091.Table{"amqpretry-id": "x"}, true},
		"in time":             {amqp091.Table{"amqpretry-id": "x", "amqpretry-due": "x"}, false},
		"of an older version": {amqp091.Table{"amqpretry-id": "x", "amqpretry-not-before": "x"}, false},
		"foreign":             {amqp091.Table{}, false},
	} {
		assert.Equal(t, test.sent, SentNow(test.headers), name)
	}
}

func TestFits(t *testing.T) {
	plan, err := topology.New("orders", config.Policy{}, topology.Names{})
	require.NoError(t, err)
	returns := NewReturns(plan)
	d := amqp091.Delivery{Headers: amqp091.Table{"large": strings.Repeat("x", 3000)}, UserId: "me"}
	assert.True(t, returns.Fits(&d, 0), "no limit")
	size := headerFrameSize(returning(&d)) + returns.once + 2*returns.hop
	assert.True(t, returns.Fits(&d, size))
	assert.False(t, returns.Fits(&d, size-1))
	d.UserId = "somebody"
	assert.False(t, returns.Fits(&d, size))
}
