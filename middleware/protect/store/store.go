package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// MinLease is the shortest lease of a claim, and the shortest time that a value is kept for.
const MinLease = time.Millisecond

// CheckLease returns an error for a lease, or a time to keep a value for, that is shorter than
// [MinLease]. Stores call it, so that 0 never means for ever.
func CheckLease(d time.Duration) error {
	if d < MinLease {
		return fmt.Errorf("cannot claim or keep anything for %s: at least %s", d, MinLease)
	}

	return nil
}

// State is what an inbox knows of a message.
type State int

const (
	// New means that the handler has not handled the message. The claim is the caller's, who ends
	// it with Commit or Release.
	New State = iota + 1
	// InFlight means that somebody else has the claim, and his lease has not run out.
	InFlight
	// Done means that the handler has handled the message.
	Done
)

// String is the state in words.
func (s State) String() string {
	switch s {
	case New:
		return "new"
	case InFlight:
		return "in flight"
	case Done:
		return "done"
	default:
		return "unknown"
	}
}

// ErrLost is returned by a claim that is the caller's no longer: its lease has run out, and
// somebody else has taken the message over, or it has ended already.
var ErrLost = errors.New("the claim is lost: its lease has run out")

// Inbox remembers which messages handlers have handled. It is safe for concurrent use, by any
// number of processes.
type Inbox interface {
	// Begin claims a message, which has the key, for a handler. Nobody else gets it while the lease
	// runs, which the claim can renew. A claim whose process has died is taken over by the first
	// Begin after its lease. Keys of different handlers have nothing to do with each other. Handler
	// and key are any strings: empty, long, and with any bytes. Two that differ in one byte are
	// different.
	//
	// The lease is at least [MinLease], and runs on the clock of the store. An error means that the
	// store could not be asked; then nothing is claimed, or at most until the lease runs out.
	// Without an error the claim is not nil, and its state is one of the three.
	Begin(ctx context.Context, handler, key string, lease time.Duration) (Claim, error)
}

// Claim is the answer of an Inbox. Only one that is New is the caller's to renew, commit or
// release.
type Claim interface {
	// State says whose the message is.
	State() State
	// Rest is how long the lease of another still runs, for a claim that is InFlight; 0 where the
	// store cannot tell.
	Rest() time.Duration
	// Renew lets the lease run from now on. It fails with ErrLost when the claim is lost.
	Renew(ctx context.Context, lease time.Duration) error
	// Commit says that the message was handled: it is Done from then on, as long as the store keeps
	// it. It fails with ErrLost when the claim is lost: then somebody else handles the message, or
	// has handled it. A second Commit of a claim is none: it returns nil, so that one whose answer
	// was lost can be repeated.
	Commit(ctx context.Context) error
	// Release says that the message was not handled: the next Begin gets it. It does nothing, and
	// returns no error, for a claim that is lost, released or committed.
	Release(ctx context.Context) error
}

// TxInbox is an inbox whose claims are part of a transaction of the caller's. The effects of the
// handler in that transaction and the claim are committed together, or not at all. There is no
// lease, and a process that dies leaves nothing behind.
type TxInbox interface {
	// BeginTx claims a message in a transaction. The claim is committed and rolled back with it. A
	// transaction that has claimed the same message and is not at its end is waited for, until ctx
	// ends or the store's own limit, which gives InFlight; the transaction can then only be rolled
	// back.
	BeginTx(ctx context.Context, tx *sql.Tx, handler, key string) (State, error)
}

// ConflictTeller is a [TxInbox] that knows the errors of its database that say that a transaction
// met another one, and was rolled back for it: deadlocks and serialization failures. Run again, it
// may succeed.
type ConflictTeller interface {
	// IsConflict tells whether an error is such a one. It may be wrapped.
	IsConflict(err error) bool
}

// Values are small values by name, which many processes change.
type Values interface {
	// Update replaces the value of a name by what change makes of it, as if nobody else did so at
	// the same time: change is called again where somebody did. Now is the store's clock, the same
	// for all processes. The old value is nil where there is none. With a nil value and no error
	// nothing is changed. An error of change ends the Update, which returns it as it is, and
	// changes nothing.
	//
	// The value may be forgotten when it was not changed for the time keep, which is at least
	// [MinLease]. Names are any strings, as the keys of an [Inbox], and values any bytes, at least
	// up to 8 KB.
	Update(ctx context.Context, name string, keep time.Duration, change func(now time.Time, old []byte) ([]byte, error),
	) error
}
