package codec

import (
	"slices"
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
			if test.want.Queue == "orders" {
				test.want.Main = "orders"
			}
			assert.Equal(t, test.want, ReadFailed(&d, func(queue string) bool { return queue == "orders" }))
			assert.Equal(t, []string{test.exchange, test.key, test.expiration},
				[]string{d.Exchange, d.RoutingKey, d.Expiration})
		})
	}
}

// The routing key chooses the main queue if a dead-lettering has given it, else the queue that
// dead-lettered last.
func TestReadFailed_ChoosesTheMainQueue(t *testing.T) {
	t.Parallel()
	death := func(queue, key string) amqp091.Table {
		return amqp091.Table{"queue": queue, "reason": "rejected", "exchange": "x", "routing-keys": []any{key}}
	}
	mains := []string{"mails", "orders"}
	for name, test := range map[string]struct {
		key    string
		deaths []any
		want   string
	}{
		"key of the failed queue":      {"failed", []any{death("orders", "orders")}, "orders"},
		"key of the main queue":        {"orders", []any{death("orders", "order.created")}, "orders"},
		"key after a retry":            {"orders", []any{death("orders", "orders")}, "orders"},
		"key of another main queue":    {"mails", []any{death("orders", "order.created")}, "mails"},
		"key by an unknown queue":      {"mails", []any{death("unknown", "k")}, "mails"},
		"key of the publisher":         {"mails", []any{death("orders", "mails")}, "orders"},
		"key of the publisher only":    {"mails", []any{death("unknown", "mails")}, ""},
		"key that is almost a name":    {"orders.", []any{death("unknown", "k")}, ""},
		"newest death":                 {"failed", []any{death("mails", "k"), death("orders", "k")}, "mails"},
		"newest death unknown":         {"failed", []any{death("unknown", "k"), death("orders", "k")}, ""},
		"death without keys":           {"mails", []any{amqp091.Table{"queue": "orders"}}, "mails"},
		"published by the routing key": {"orders", nil, "orders"},
		"published to the queue":       {"failed", nil, ""},
		"no key and no death":          {"", nil, ""},
		"no table":                     {"orders", []any{"text"}, "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := amqp091.Delivery{Exchange: "dlx", RoutingKey: test.key, Headers: amqp091.Table{}}
			if test.deaths != nil {
				d.Headers[header.Death] = test.deaths
			}
			f := ReadFailed(&d, func(queue string) bool { return slices.Contains(mains, queue) })
			assert.Equal(t, test.want, f.Main)
			if f.Main == "" || f.Queue == "" {
				assert.Equal(t, []string{"dlx", test.key}, []string{d.Exchange, d.RoutingKey}, "as it came")
				return
			}
			first, _ := test.deaths[0].(amqp091.Table)
			exchange, _ := first["exchange"].(string)
			assert.Equal(t, []string{exchange, firstKey(first)}, []string{d.Exchange, d.RoutingKey})
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
