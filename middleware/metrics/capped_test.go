package metrics

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCapped(t *testing.T) {
	t.Parallel()
	made := 0
	c := newCapped(2, "other", func(key string) string { made++; return "of " + key })

	assert.Equal(t, "of a", c.of("a"))
	assert.Equal(t, "of b", c.of("b"))
	assert.Equal(t, 2, made, "other is not made before it is needed")
	assert.Equal(t, "of other", c.of("c"))
	assert.Equal(t, "of other", c.add("c"), "of two that add at the same time, the second finds it full")
	assert.Equal(t, "of a", c.add("a"), "or there")
	assert.Equal(t, "of b", c.of("b"))
	assert.Equal(t, 3, made)
}
