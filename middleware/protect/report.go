package protect

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// StoreError is a store that did not answer, or a claim that was lost: then its cause is
// [store.ErrLost].
type StoreError struct {
	// Op is what was asked of the store: claim, renew, commit, release, begin a transaction,
	// update.
	Op string
	// Handler is what the store knows the handler by: Name, queue and handler, with slashes
	// between.
	Handler string
	// Key of the message; empty where it is not about one.
	Key string
	// Err is the store's error.
	Err error
}

// Error names the operation, the handler, the key and the cause.
func (e *StoreError) Error() string {
	of := "handler " + strconv.Quote(e.Handler)
	if e.Key != "" {
		of = "message " + strconv.Quote(e.Key) + " of " + of
	}

	return fmt.Sprintf("cannot %s: %s: %s", e.Op, of, e.Err)
}

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// quiet is how long a logger is told nothing more of a store that does not answer.
const quiet = 10 * time.Second

// reporter tells what no caller can be told.
type reporter struct {
	onError func(error)
	logger  watermill.LoggerAdapter

	mu    sync.Mutex
	until time.Time // quiet until then
}

// report tells an error. What is in a function of the user's must not end a goroutine of ours, and
// with it the process.
func (r *reporter) report(err error) {
	defer func() { _ = recover() }()

	if r.onError != nil {
		r.onError(err)
	}
	if r.logger != nil {
		r.logger.Error("Cannot use the store of a protection middleware", err, nil)
	}
}

// reportOften is for what every message meets while a store is down: it is logged once in a while.
func (r *reporter) reportOften(err error) {
	r.mu.Lock()
	now := time.Now()
	logged := now.Before(r.until)
	if !logged {
		r.until = now.Add(quiet)
	}
	r.mu.Unlock()

	if !logged {
		r.report(err)
		return
	}
	(&reporter{onError: r.onError}).report(err)
}

// safely makes an error of a panic in a store.
func safely(f func() error) (err error) {
	returned := false
	defer func() {
		if value := recover(); value != nil || !returned {
			err = fmt.Errorf("the store has panicked: %v", value)
		}
	}()
	err = f()
	returned = true

	return err
}
