package codec

import (
	"bytes"

	"github.com/rabbitmq/amqp091-go"
)

// CloneTable is a copy that shares nothing with a table; an empty one of nil.
func CloneTable(t amqp091.Table) amqp091.Table {
	clone := make(amqp091.Table, len(t))
	for key, value := range t {
		clone[key] = cloneValue(value)
	}

	return clone
}

func cloneValue(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		return CloneTable(v)
	case []any:
		clone := make([]any, len(v))
		for i, element := range v {
			clone[i] = cloneValue(element)
		}

		return clone
	case []byte:
		return bytes.Clone(v)
	default:
		return value
	}
}
