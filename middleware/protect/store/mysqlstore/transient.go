package mysqlstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Error numbers of MySQL and MariaDB.
const (
	recordChanged   = 1020 // MariaDB with innodb_snapshot_isolation: since the transaction has begun
	duplicateKey    = 1062
	lockWaitTimeout = 1205
	deadlock        = 1213
)

// number returns the number of an error of the server, or 0.
func number(err error) uint16 {
	var numbered *mysql.MySQLError
	if errors.As(err, &numbered) {
		return numbered.Number
	}

	return 0
}

func isConflict(err error) bool {
	return slices.Contains([]uint16{deadlock, recordChanged}, number(err))
}

// IsConflict implements [store.ConflictTeller].
func (s *Store) IsConflict(err error) bool { return isConflict(err) }

const (
	tries    = 10
	minPause = 2 * time.Millisecond
)

// again calls do until it returns something else than a deadlock or a record that has changed, at
// most 10 times.
func again(ctx context.Context, do func() error) error {
	pause := minPause
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == tries || !isConflict(err) {
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
