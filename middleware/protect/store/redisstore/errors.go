package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// errForeign is the cause when a key of the store has a value that is not the store's.
var errForeign = errors.New("the key holds something that is not of this store")

// Error is an operation that Redis did not do, or whose answer was lost: then it may be done all
// the same.
type Error struct {
	// Op is the operation in words, such as "claim a message".
	Op string
	// Handler and Key are those of the message. They are empty for a value.
	Handler, Key string
	// Name of the value. It is empty for a message.
	Name string
	// Err is the cause: an error of the Redis client, or of the context.
	Err error
}

// Error reads `cannot claim a message for handler "orders": key "1234": <cause>; <what to do>`.
func (e *Error) Error() string {
	of := fmt.Sprintf("for handler %q: key %s", e.Handler, quoted(e.Key))
	if e.Op == opUpdate {
		of = quoted(e.Name)
	}

	return fmt.Sprintf("cannot %s %s: %v; %s", e.Op, of, e.Err, advice(e.Err))
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// advice is what an operator can do about a cause.
func advice(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "the caller has given up"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout):
		return "see whether Redis is slow or frozen, or allow more time"
	case errors.Is(err, redis.ErrClosed):
		return "close the client after the router"
	case errors.Is(err, errForeign), redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "give the store a Prefix that nothing else uses"
	case errors.Is(err, errContention):
		return "update the value less often, or from fewer processes"
	case redis.IsOOMError(err):
		return "raise maxmemory of Redis, or lower Config.Retention"
	case redis.IsReadOnlyError(err):
		return "connect to the master: by a Sentinel or Cluster client, or its address"
	case redis.IsPermissionError(err):
		return "allow the Redis user what docs/reference/stores.md#redis lists"
	case redis.IsAuthError(err):
		return "set user and password of the Redis client"
	case redis.IsLoadingError(err), redis.IsClusterDownError(err), redis.IsMasterDownError(err),
		redis.IsTryAgainError(err):
		return "wait until Redis is ready"
	case redis.IsNoReplicasError(err):
		return "see whether its replicas run, or lower min-replicas-to-write"
	case redis.HasErrorPrefix(err, "MISCONF"):
		return "see the log of Redis: it cannot write to its disk"
	}

	return "see whether Redis runs and the client has its address"
}

// quoted is a key or name for people: at most 100 bytes of it.
func quoted(s string) string {
	const most = 100
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
	}

	return strconv.Quote(s)
}
