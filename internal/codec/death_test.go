package codec

import (
	"math"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestNewestDeath(t *testing.T) {
	death := func(queue any) amqp091.Table { return amqp091.Table{"queue": queue, "reason": "expired"} }

	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"one":             {[]any{death("a")}, "a"},
		"the first":       {[]any{death("a"), death("b")}, "a"},
		"void":            {nil, ""},
		"empty":           {[]any{}, ""},
		"text":            {"a", ""},
		"a table":         {death("a"), ""},
		"texts":           {[]any{"a", death("b")}, ""},
		"no queue":        {[]any{amqp091.Table{}, death("b")}, ""},
		"queue of bytes":  {[]any{death([]byte("a"))}, ""},
		"queue is a list": {[]any{death([]any{"a"})}, ""},
		"void inside":     {[]any{nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, NewestDeath(amqp091.Table{"x-death": test.value}))
		})
	}
	assert.Empty(t, NewestDeath(nil))
	assert.Empty(t, NewestDeath(amqp091.Table{"x-first-death-queue": "a"}))
}

func TestDeliveryCount(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  int64
	}{
		"int64":    {int64(7), 7},
		"int32":    {int32(7), 7},
		"highest":  {int64(math.MaxInt64), math.MaxInt64},
		"negative": {int64(-1), -1},
		"void":     {nil, 0},
		"text":     {"7", 0},
		"float":    {7.0, 0},
		"list":     {[]any{int64(7)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, DeliveryCount(amqp091.Table{"x-delivery-count": test.value}))
		})
	}
	assert.Zero(t, DeliveryCount(nil))
}
