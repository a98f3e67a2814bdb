package fate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestHandle(t *testing.T) {
	t.Parallel()
	handle := func(id string, attempt int) error {
		return fate.Handle(id, retry.Attempt{Number: attempt, Calls: attempt - 1})
	}
	for id, failures := range map[string]int{
		"ok-1": 0, "slow-1": 0, "once-1": 1, "twice-1": 2, "never-1": 4, "nonsense": 4,
	} {
		for attempt := 1; attempt <= 4; attempt++ {
			if attempt <= failures {
				require.ErrorIs(t, handle(id, attempt), fate.Err, "%s, attempt %d", id, attempt)
			} else {
				require.NoError(t, handle(id, attempt), "%s, attempt %d", id, attempt)
			}
		}
	}
	assert.Panics(t, func() { _ = handle("panic-1", 1) })
	require.Error(t, handle("postponed-1", 1))
	require.NoError(t, handle("postponed-1", 2))
	for _, id := range []string{"permanent-1", "dropped-1", "undecodable-1"} {
		require.Error(t, handle(id, 4), id)
	}
	for id, ends := range map[string][]bool{
		"ok-1": {true, false}, "never-1": {false, true}, "dropped-1": {false, false},
	} {
		f := fate.Of(id)
		assert.Equal(t, ends[0], f.Succeeds(), id)
		assert.Equal(t, ends[1], f.Dies(), id)
	}
	assert.Equal(t, []retry.Reason{retry.ReasonPanic}, fate.Of("panic-1").Reasons())
}
