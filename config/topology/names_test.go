package topology_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// Queues from which messages go on to a main queue are known by their names.
func TestNamesReturns(t *testing.T) {
	odd := topology.Names{Shared: "wait (here)", RetryQueue: func(p topology.RetryQueueParams) string {
		return "[" + p.Delay + "] " + p.Queue + map[bool]string{true: "!"}[p.Classic]
	}, Landing: func(target topology.Target) string { return "to " + target.Key }}
	hashed := topology.Names{RetryQueue: func(p topology.RetryQueueParams) string {
		return strings.Repeat("x", len(p.Queue))
	}}
	twice := topology.Names{RetryQueue: func(p topology.RetryQueueParams) string {
		return p.Queue + p.Delay + p.Queue + p.Delay
	}}
	for _, test := range []struct {
		names   topology.Names
		do, not []string
	}{
		{topology.Names{}, []string{"orders.retry.30s", "orders.retry.1500ms.classic", "another.retry.1h", "retry.5m",
			"retry.5m.classic", "a.retry.b.retry.30s", "a\nb.retry.30s", "orders.landing"},
			[]string{"orders", "orders.dlq", "orders.retry", "orders.retry.", ".retry.30s", "orders.retry.60s",
				"orders.retry.soon", "orders.retry.30s.old", "retry.orders", "another.landing", "landing", ""}},
		{odd, []string{"[30s] orders", "[1h] a b!", "wait (here).30s", "to orders"},
			[]string{"[60s] orders", "orders.retry.30s", "[30s] ", "wait here.30s", "to others"}},
		{hashed, []string{"retry.30s", "orders.landing"}, []string{"xxxxxx"}},
		{twice, nil, []string{"a1sa1s", "a1sb1s"}},
	} {
		for _, name := range test.do {
			assert.True(t, test.names.Returns(name, "orders"), name)
		}
		for _, name := range test.not {
			assert.False(t, test.names.Returns(name, "orders"), name)
		}
	}
}
