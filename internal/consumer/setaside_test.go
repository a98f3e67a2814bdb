package consumer

import (
	"math"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestCrowd(t *testing.T) {
	c := newCrowd(10)
	full := func() bool {
		select {
		case <-c.full:
			return true
		default:
			return false
		}
	}
	c.begin(1)
	for range 4 {
		assert.False(t, c.enter(1))
	}
	assert.False(t, full(), "half of the prefetch is left")
	c.enter(1)
	assert.True(t, full())

	c.enter(1)
	c.begin(2)
	assert.False(t, full(), "those of the consumer before take none of the next one's prefetch")
	for range 4 {
		c.enter(2)
	}
	c.leave(1)
	c.enter(1)
	assert.False(t, full())
	c.leave(2)
	c.enter(2)
	assert.False(t, full())
	c.enter(2)
	assert.True(t, full())

	all := 11
	for ; all < mostSetAside-1; all++ {
		assert.False(t, c.enter(2))
	}
	full()
	assert.True(t, c.enter(2), "too many")
	assert.False(t, full(), "no more room is made")
	assert.False(t, c.enter(2), "told once")
	for range mostSetAside {
		c.leave(2)
	}
	for range mostSetAside - 2 {
		c.enter(2)
	}
	assert.True(t, c.enter(2), "and again")
}

func TestCrowdOfOne(t *testing.T) {
	c := newCrowd(1)
	c.begin(1)
	c.enter(1)
	assert.Len(t, c.full, 1)
}

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
