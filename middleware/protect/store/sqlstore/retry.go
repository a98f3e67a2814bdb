package sqlstore

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	tries    = 10
	minPause = 2 * time.Millisecond
)

// again calls do until it returns something else than a conflict or one of these codes, at most 10
// times.
func (s *Store) again(ctx context.Context, do func() error, codes ...string) error {
	pause := minPause
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == tries || !s.IsConflict(err) && !s.dialect.is(err, codes...) {
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

// IsConflict implements [store.ConflictTeller].
func (s *Store) IsConflict(err error) bool {
	return s.dialect.is(err, s.dialect.conflicts...)
}
