package dlqcmd

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// headers are the rows of a table: first those of the message, then what this library and the
// broker have added.
func headers(table amqp091.Table) [][]string {
	added := func(name string) int {
		if isForeign(name) {
			return 1
		}
		return 0
	}
	names := slices.SortedFunc(maps.Keys(table), func(a, b string) int {
		return cmp.Or(added(a)-added(b), cmp.Compare(a, b))
	})
	rows := make([][]string, len(names))
	for i, name := range names {
		rows[i] = []string{name, codec.HeaderType(table[name]), codec.HeaderText(table[name])}
	}

	return rows
}

// isForeign holds for headers that are not the message's own.
func isForeign(name string) bool {
	return header.IsOwn(name) || header.IsPoison(name) || header.IsBroker(name)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
