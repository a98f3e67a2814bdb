package dlqcmd

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// Dead letters of other libraries are shown with what their headers tell. Those without a time of
// failure are counted wherever time filters.
func TestForeignOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.Publish(p.main+suffix,
		amqp091.Publishing{MessageId: "mt", Headers: amqp091.Table{
			"MT-Fault-Message": "No stock", "MT-Fault-ExceptionType": "Shop.StockException",
			"MT-Fault-Timestamp": "2026-01-02T03:04:05.6789012Z", "MT-Fault-InputAddress": "rabbitmq://b/" + p.main,
			"MT-Fault-ConsumerType": "Shop.BillConsumer", "MT-Fault-MessageType": "Shop.Order",
		}},
		amqp091.Publishing{MessageId: "spring", Headers: amqp091.Table{"x-exception-message": "boom"}},
		amqp091.Publishing{MessageId: "by hand"})
	out, errs := p.ok("list", p.main)
	assert.Regexp(t, `\n1 +mt +\S+ +rejected +0 +0 +Shop.BillConsumer/Shop.Order +No stock\n`, out)
	assert.Regexp(t, `\n2 +spring +- +rejected +0 +0 +- +boom\n3 +by hand +- +- `, out)
	assert.NotContains(t, errs, "no time of failure")
	out, _ = p.ok("show", p.main, "mt")
	assert.Regexp(t, `\n  error type +Shop.StockException\n`, out)
	assert.Regexp(t, `\n  queue +`+p.main+`\n`, out)
	assert.Regexp(t, `\n  last failure +2026-01-02T03:04:05Z `, out)

	const both = "2 messages tell no time of failure: --older-than and --newer-than leave them out\n"
	export, undo := p.file("export.jsonl"), p.file("undo.jsonl")
	p.ok("export", p.main, "-o", p.file("all.jsonl"))
	for _, args := range [][]string{
		{"list", p.main, "--older-than", "1h"}, {"list", p.main, "--older-than", "1h", "--json"},
		{"stat", p.main, "--newer-than", "1h"}, {"export", p.main, "--older-than", "1h", "-o", export},
		{"import", p.main, p.file("all.jsonl"), "--dry-run", "--newer-than", "1h"},
		{"replay", p.main, "--older-than", "1h"}, {"purge", p.main, "--older-than", "1h", "--undo", undo, "--yes"},
	} {
		_, errs := p.ok(args...)
		assert.Contains(t, errs, both, args)
	}
	_, errs = p.ok("list", p.main, "--older-than", "1h", "--error", "boom")
	assert.Contains(t, errs, "1 message tells no time of failure: --older-than and --newer-than leave it out\n")
	for _, args := range [][]string{
		{"stat", p.main, "--older-than", "1h", "--json"}, {"replay", p.main, "--older-than", "1h", "--json"},
		{"import", p.main, p.file("all.jsonl"), "--dry-run", "--newer-than", "1h", "--json"},
		{"export", p.main, "--newer-than", "1h", "-o", export, "--force", "--json"},
	} {
		out, _ := p.ok(args...)
		assert.Contains(t, out, `"untimed_left_out": 2`, args)
	}
}
