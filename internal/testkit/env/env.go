// Package env reads the settings of a test run from the environment.
package env

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Int returns a number of the environment, or otherwise where the name is not set.
func Int[N int | int64 | uint64](t testing.TB, name string, otherwise N) N {
	t.Helper()
	given := os.Getenv(name)
	if given == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(given, 10, 63)
	require.NoError(t, err, name)

	return N(n)
}

// Random returns a source of random numbers, seeded with SEED if that is set, and logs its seed:
// with the same seed a test draws the same again.
func Random(t testing.TB) (random *rand.Rand, seed uint64) {
	t.Helper()
	seed = Int(t, "SEED", rand.Uint64N(1_000_000))
	t.Logf("SEED=%d", seed)

	return rand.New(rand.NewPCG(seed, 0)), seed
}
