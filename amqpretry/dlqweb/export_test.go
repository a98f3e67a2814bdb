package dlqweb

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// CausesOf returns a function that looks for new causes of a queue now.
func CausesOf(t *testing.T, c *Console, queue, mainQueue string) (look func()) {
	t.Helper()
	k := &causes{console: c, seen: map[string]lastRead{}, known: map[string]map[string]bool{}}

	return func() { require.NoError(t, k.read(t.Context(), target{Queue: queue, MainQueue: mainQueue})) }
}
