package postgresstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// SQLSTATE codes of PostgreSQL.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	uniqueViolation      = "23505"
	duplicateTable       = "42P07"
)

// code returns the SQLSTATE of an error, or "". The drivers pgx and lib/pq have errors with this
// method.
func code(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}

	return ""
}

const (
	tries    = 10
	minPause = 2 * time.Millisecond
)

// again calls do until it returns something else than one of these codes, at most 10 times.
func again(ctx context.Context, do func() error, codes ...string) error {
	pause := minPause
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == tries || !has(codes, code(err)) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause *= 2
	}
}

func has(codes []string, code string) bool {
	for _, c := range codes {
		if c == code {
			return true
		}
	}

	return false
}
