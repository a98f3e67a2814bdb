package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// defaultMaxWait is how long a message waits in place by default: as long as the shortest delay of
// the default policy.
const defaultMaxWait = time.Second

// maxTurn is the longest time for which a message is postponed: what was foreseen then need not
// hold, and it looks again.
const maxTurn = time.Hour

// ErrRateLimited is the cause of a message that the rate limit postpones.
var ErrRateLimited = errors.New("the rate limit is reached")

// RateLimitConfig says how often a handler may be called.
type RateLimitConfig struct {
	// Limit is how many calls there may be in a second; [rate.Every] makes one of an interval.
	// Required.
	Limit rate.Limit
	// Burst is how many of them may come at once, after a pause. Required.
	Burst int
	// MaxWait is how long a message waits for its turn in place, holding up those behind it as
	// Watermill's Throttle does; one whose turn is later is postponed until then. One second by
	// default.
	MaxWait time.Duration

	// Shared keeps the turns of all instances of a service: the limit holds for them together. By
	// default each instance has the limit for itself, and so has each while Shared does not answer.
	// The handler's name and Name tell limits apart.
	Shared store.Values
	// Name is put before the names of handlers in Shared. Services that share a server need it.
	Name string
	// OnError is called with a [*StoreError] when Shared does not answer. It must not block.
	OnError func(error)
	// Logger gets the same errors, one in 10 seconds at most.
	Logger watermill.LoggerAdapter
}

// Validate reports all problems in one error, as joined [*config.FieldError]s.
func (c RateLimitConfig) Validate() error {
	p := problems{path: "RateLimitConfig."}
	if !(c.Limit > 0) { // not <=: it may be no number
		p.add("Limit", "out of bounds", "more than 0 calls in a second", strconv.FormatFloat(float64(c.Limit), 'g', -1,
			64))
	}
	if c.Burst < 1 {
		p.add("Burst", "out of bounds", "1 or more: how many calls may come at once", strconv.Itoa(c.Burst))
	}
	p.notNegative("MaxWait", c.MaxWait)
	p.notNilPointer("Shared", c.Shared, "a store, or nil for a limit in this process")

	return errors.Join(p.errs...)
}

// RateLimit keeps the calls of each handler below a rate, in this process or in all instances of a
// service. A message waits for its turn in place while that is near, and is postponed until then
// while it is not.
type RateLimit struct {
	config RateLimitConfig
	reporter
}

// NewRateLimit makes a RateLimit.
func NewRateLimit(c RateLimitConfig) (*RateLimit, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.MaxWait = cmp.Or(c.MaxWait, defaultMaxWait)

	return &RateLimit{config: c, reporter: reporter{onError: c.OnError, logger: c.Logger}}, nil
}

// Middleware wraps a handler with a limit of its own.
func (l *RateLimit) Middleware(h message.HandlerFunc) message.HandlerFunc {
	t := newTurns(l.config.Limit, l.config.Burst)
	if l.config.Shared != nil && l.config.Limit != rate.Inf {
		t.shared = newSharedTurns(l.config, l.reportOften)
		t.service = l.config.Name
	}

	return func(msg *message.Message) ([]*message.Message, error) {
		if err := l.await(msg.Context(), t); err != nil {
			return nil, err
		}

		return h(msg)
	}
}

// await returns when it is the message's turn, or an error that postpones it until then.
func (l *RateLimit) await(ctx context.Context, t *turns) error {
	within, canPostpone := l.patience(ctx)
	turn, wait := t.take(ctx, within)
	switch {
	case turn == nil:
		return postponed(ctx, ErrRateLimited, wait)
	case wait == 0:
		return nil
	}

	timer := time.NewTimer(wait)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		defer turn.Cancel()
	}

	err := fmt.Errorf("waiting for the rate limit: %w", context.Cause(ctx))
	if canPostpone {
		err = postponed(ctx, err, turn.Delay()) // a shutdown outranks it
	}

	return err
}

// patience is how long a message can wait in place. One that cannot be postponed waits as long as
// it takes.
func (l *RateLimit) patience(ctx context.Context) (within time.Duration, canPostpone bool) {
	attempt, ok := postponable(ctx)
	if !ok {
		return rate.InfDuration, false
	}

	within = l.config.MaxWait
	if !attempt.Deadline.IsZero() { // what outlives it has expired, and is no handler's any more
		within = min(within, time.Until(attempt.Deadline))
	}
	if deadline, ok := ctx.Deadline(); ok { // of a Timeout outside
		within = min(within, time.Until(deadline))
	}

	return max(within, 0), true
}

// turn is a turn that was taken.
type turn interface {
	Delay() time.Duration
	Cancel()
}

// turns gives messages their turns.
type turns struct {
	shared  *sharedTurns // nil if each instance has its own
	service string

	limiter *rate.Limiter
	each    time.Duration // how far turns are apart

	mu   sync.Mutex
	last time.Time // turn of a postponed message
}

func newTurns(limit rate.Limit, burst int) *turns {
	each := min(float64(time.Second)/float64(limit), float64(maxTurn))

	return &turns{limiter: rate.NewLimiter(limit, burst), each: time.Duration(each)}
}

// take takes a turn of all instances, or of this one where it is on its own. Without a turn, the
// time is when to come back.
func (t *turns) take(ctx context.Context, within time.Duration) (turn, time.Duration) {
	if t.shared != nil {
		name := joined("limit", t.service, message.HandlerNameFromCtx(ctx))
		if turn, wait, ok := t.shared.next(ctx, name, within); ok {
			return turn, wait
		}
	}
	own, wait := t.next(time.Now(), within)
	if own == nil {
		return nil, wait // a nil pointer in an interface is not nil
	}

	return own, wait
}

// next takes a turn that comes in time, and tells how long to wait for it. Where none does, it
// takes nothing and tells when to come back: postponed messages get turns one after the other, lest
// they all come back at once.
func (t *turns) next(now time.Time, within time.Duration) (turn *rate.Reservation, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()

	turn = t.limiter.ReserveN(now, 1)
	wait = turn.DelayFrom(now)
	if wait <= within {
		return turn, wait
	}
	turn.CancelAt(now) // nothing has come between, so all of it is given back

	wait = min(max(wait, t.last.Add(t.each).Sub(now)), maxTurn)
	t.last = now.Add(wait)

	return nil, wait
}
