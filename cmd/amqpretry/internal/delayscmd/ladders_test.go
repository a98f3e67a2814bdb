package delayscmd

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// The default ladder for retries may be used by retries, whose services declare it again, and by
// delayed publishing.
func TestWhatDeclaresALadder(t *testing.T) {
	const service, publish = "each minute while messages of it wait", "the next delayed publish"
	s := &cli.Session{Getenv: func(string) string { return "" }}
	all, err := (&ladders{s}).candidates()
	assert.NoError(t, err)
	for _, c := range append(all, candidate{use: retries}, candidate{}) {
		name := c.Name()
		assert.Equal(t, c.use != delayed, strings.Contains(c.declare(), service), name)
		assert.Equal(t, c.use != retries, strings.Contains(c.declare(), publish), name)
		if c.use == delayed {
			assert.Equal(t, topology.Ladder{Config: config.ScheduleLadder()}.Name(), name)
		}
	}
	assert.Len(t, all, 2)
}
