package codec

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// What a main queue has dead-lettered gets back how it was published; nothing else is changed.
func TestReadFailed(t *testing.T) {
	t.Parallel()
	died := func(queue, reason string) amqp091.Table {
		return amqp091.Table{"queue": queue, "reason": reason, "exchange": "x-" + queue, "count": int64(1),
			"routing-keys": []any{"key-" + queue, "cc"}}
	}
	expiring := died("orders", "expired")
	expiring["original-expiration"] = "5000"
	for name, test := range map[string]struct {
		death      any
		want       Failed
		exchange   string
		key        string
		expiration string
	}{
		"none":      {nil, Failed{}, "dlx", "failed", ""},
		"no list":   {"text", Failed{}, "dlx", "failed", ""},
		"empty":     {[]any{}, Failed{}, "dlx", "failed", ""},
		"no tables": {[]any{"text", int64(1)}, Failed{}, "dlx", "failed", ""},
		"no texts":  {[]any{amqp091.Table{"queue": int64(1), "reason": []any{}}}, Failed{}, "dlx", "failed", ""},
		"another": {[]any{died("mails", "rejected")}, Failed{Queue: "mails", Reason: "rejected"},
			"dlx", "failed", ""},
		"first": {[]any{died("orders", "rejected")}, Failed{Queue: "orders", Reason: "rejected"},
			"x-orders", "key-orders", ""},
		"expiration": {[]any{expiring}, Failed{Queue: "orders", Reason: "expired"}, "x-orders", "key-orders", "5000"},
		"bare": {[]any{amqp091.Table{"queue": "orders", "reason": "maxlen"}}, Failed{Queue: "orders", Reason: "maxlen"},
			"", "", ""},
		"waited": {[]any{died("orders", "rejected"), died("level", "expired"), "text", died("other", "rejected"),
			died("orders.landing", "expired")},
			Failed{Queue: "orders", Reason: "rejected", Waited: []string{"level", "orders.landing"}},
			"x-orders", "key-orders", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := amqp091.Delivery{Exchange: "dlx", RoutingKey: "failed", Headers: amqp091.Table{}}
			if test.death != nil {
				d.Headers[header.Death] = test.death
			}
			assert.Equal(t, test.want, ReadFailed(&d, "orders"))
			assert.Equal(t, []string{test.exchange, test.key, test.expiration},
				[]string{d.Exchange, d.RoutingKey, d.Expiration})
		})
	}
}

func TestIsReplay(t *testing.T) {
	t.Parallel()
	assert.True(t, IsReplay(amqp091.Table{header.Queue: "orders", header.Count: "-1"}, "orders"))
	assert.False(t, IsReplay(amqp091.Table{header.Queue: "mails", header.Count: "-1"}, "orders"))
	assert.False(t, IsReplay(amqp091.Table{header.Queue: "orders", header.Count: int64(-1)}, "orders"))
	assert.False(t, IsReplay(nil, "orders"))
}
