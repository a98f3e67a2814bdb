package transport

import (
	"testing"

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
