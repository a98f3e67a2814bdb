package connection

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSeldom(t *testing.T) {
	var s seldom
	now := time.Now()
	assert.True(t, s.allow(now))
	assert.False(t, s.allow(now.Add(unsureEvery-1)))
	assert.True(t, s.allow(now.Add(unsureEvery)))
	assert.False(t, s.allow(now.Add(unsureEvery+1)))
}
