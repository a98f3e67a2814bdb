package dlqcmd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// headers are the rows of a table: first those of the message, then what this library and the broker have added.
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
		rows[i] = []string{name, kind(table[name]), codec.HeaderText(table[name])}
	}

	return rows
}

// isForeign holds for headers that are not the message's own.
func isForeign(name string) bool {
	return header.IsOwn(name) || header.IsPoison(name) || header.IsBroker(name)
}

// kind is the type of a header, as an export calls it.
func kind(value any) string {
	switch value.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case time.Time:
		return "time"
	case amqp091.Decimal:
		return "decimal"
	case amqp091.Table:
		return "table"
	case []any:
		return "array"
	default: // string, bool, int8 to int64, uint8 to uint32, float32, float64
		return fmt.Sprintf("%T", value)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
