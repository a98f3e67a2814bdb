package consumer

import (
	"math"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestPause(t *testing.T) {
	for name, test := range map[string]struct {
		headers amqp091.Table
		want    time.Duration
	}{
		"first":                   {nil, time.Second},
		"counted":                 {amqp091.Table{"x-delivery-count": int64(1)}, 2 * time.Second},
		"counted as RabbitMQ 4.3": {amqp091.Table{"x-acquired-count": int64(3)}, 8 * time.Second},
		"the larger one": {amqp091.Table{"x-acquired-count": int64(3), "x-delivery-count": int64(2)},
			8 * time.Second},
		"at most":                   {amqp091.Table{"x-delivery-count": int64(6)}, time.Minute},
		"for ever":                  {amqp091.Table{"x-delivery-count": int64(math.MaxInt64)}, time.Minute},
		"forged":                    {amqp091.Table{"x-delivery-count": int64(-5)}, time.Second},
		"not a number":              {amqp091.Table{"x-delivery-count": "5"}, time.Second},
		"counted by a small number": {amqp091.Table{"x-delivery-count": int32(1)}, 2 * time.Second},
	} {
		assert.Equal(t, test.want, pause(&amqp091.Delivery{Headers: test.headers}), name)
	}
}
