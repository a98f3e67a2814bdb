package env_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/env"
)

func TestEnvironment(t *testing.T) {
	t.Setenv("KILLS", "")
	assert.Equal(t, 6, env.Int(t, "KILLS", 6))
	t.Setenv("KILLS", "7")
	assert.Equal(t, 7, env.Int(t, "KILLS", 6))

	t.Setenv("SEED", "42")
	one, seed := env.Random(t)
	again, _ := env.Random(t)
	assert.EqualValues(t, 42, seed)
	assert.Equal(t, one.Uint64(), again.Uint64())
}
