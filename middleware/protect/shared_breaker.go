package protect

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"
)

// breakerState is what instances share of a breaker: what gobreaker keeps in memory.
type breakerState struct {
	State      gobreaker.State  `json:"state"`
	Generation uint64           `json:"generation"` // results of calls from before are not counted
	Counts     gobreaker.Counts `json:"counts"`
	// Expiry is when the state ends: closed, the counts begin anew; open, it is half-open;
	// half-open, calls without a result are replaced. In nanoseconds, 0 for never.
	Expiry int64 `json:"expiry,omitempty"`
}

// breakerRules are gobreaker's settings with their defaults.
type breakerRules struct {
	maxRequests       uint32
	interval, timeout time.Duration
	readyToTrip       func(gobreaker.Counts) bool
}

func newBreakerRules(s gobreaker.Settings) breakerRules {
	rules := breakerRules{
		maxRequests: max(s.MaxRequests, 1), interval: s.Interval, timeout: cmp.Or(s.Timeout, defaultBreakerTimeout),
		readyToTrip: s.ReadyToTrip,
	}
	if rules.readyToTrip == nil {
		rules.readyToTrip = func(c gobreaker.Counts) bool { return c.ConsecutiveFailures > 5 } // as gobreaker's
	}

	return rules
}

// parseBreaker reads a state. One that is not readable is a new one.
func parseBreaker(text []byte, now time.Time, r breakerRules) breakerState {
	var s breakerState
	if json.Unmarshal(text, &s) != nil || s.State < gobreaker.StateClosed || s.State > gobreaker.StateOpen {
		return breakerState{}.turned(gobreaker.StateClosed, now, r)
	}

	return s
}

// turned begins a state.
func (s breakerState) turned(to gobreaker.State, now time.Time, r breakerRules) breakerState {
	s = breakerState{State: to, Generation: s.Generation + 1}
	switch {
	case to != gobreaker.StateClosed:
		s.Expiry = now.Add(r.timeout).UnixNano()
	case r.interval > 0:
		s.Expiry = now.Add(r.interval).UnixNano()
	}

	return s
}

// at is the state at a time.
func (s breakerState) at(now time.Time, r breakerRules) breakerState {
	if s.Expiry == 0 || s.Expiry >= now.UnixNano() {
		return s
	}
	switch s.State {
	case gobreaker.StateClosed:
		return s.turned(gobreaker.StateClosed, now, r)
	case gobreaker.StateOpen:
		return s.turned(gobreaker.StateHalfOpen, now, r)
	default:
		// The processes of its calls may have died. Their results count if they come after all.
		s.Counts.Requests = s.Counts.TotalSuccesses
		s.Expiry = now.Add(r.timeout).UnixNano()

		return s
	}
}

// before is asked before each call.
func (s breakerState) before(r breakerRules) (breakerState, error) {
	switch {
	case s.State == gobreaker.StateOpen:
		return s, gobreaker.ErrOpenState
	case s.State == gobreaker.StateHalfOpen && s.Counts.Requests >= r.maxRequests:
		return s, gobreaker.ErrTooManyRequests
	}
	s.Counts.Requests++

	return s, nil
}

// after is told of the result of each call.
func (s breakerState) after(generation uint64, successful bool, now time.Time, r breakerRules) breakerState {
	switch {
	case s.Generation != generation:
		return s
	case successful:
		s.Counts.TotalSuccesses++
		s.Counts.ConsecutiveSuccesses++
		s.Counts.ConsecutiveFailures = 0
		if s.State == gobreaker.StateHalfOpen && s.Counts.ConsecutiveSuccesses >= r.maxRequests {
			return s.turned(gobreaker.StateClosed, now, r)
		}
	case s.State == gobreaker.StateHalfOpen:
		return s.turned(gobreaker.StateOpen, now, r)
	default:
		s.Counts.TotalFailures++
		s.Counts.ConsecutiveFailures++
		s.Counts.ConsecutiveSuccesses = 0
		if r.readyToTrip(s.Counts) {
			return s.turned(gobreaker.StateOpen, now, r)
		}
	}

	return s
}

// sharedBreaker is a breaker of all instances.
type sharedBreaker struct {
	shared
	breakerRules
	settings gobreaker.Settings // with what handlers have no say in
	service  string
}

func newSharedBreaker(c CircuitBreakerConfig, settings gobreaker.Settings, report func(error)) *sharedBreaker {
	rules := newBreakerRules(settings)

	return &sharedBreaker{
		shared:       shared{values: c.Shared, keep: sharedKeep + 2*max(rules.interval, rules.timeout), report: report},
		breakerRules: rules, settings: settings, service: c.Name,
	}
}

// guard calls a handler if the breaker lets it. Where the store does not answer, own guards it: the
// breaker of this instance.
func (b *sharedBreaker) guard(h, own message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		var generation uint64
		var refused error
		if !b.change(ctx, func(_ time.Time, s breakerState) breakerState {
			s, refused = s.before(b.breakerRules)
			generation = s.Generation

			return s
		}) {
			return own(msg)
		}
		if refused != nil {
			return nil, refused
		}

		successful := false
		defer func() { // also after a panic, which is a failure
			b.change(ctx, func(now time.Time, s breakerState) breakerState {
				return s.after(generation, successful, now, b.breakerRules)
			})
		}()
		produced, err := h(msg)
		successful = b.settings.IsSuccessful(err)

		return produced, err
	}
}

// change changes the state of the breaker, and tells if it is another one.
func (b *sharedBreaker) change(ctx context.Context, change func(time.Time, breakerState) breakerState) bool {
	var from, between, to gobreaker.State
	ok := b.update(ctx, joined("breaker", b.service, b.settings.Name), func(now time.Time, old []byte) []byte {
		before := parseBreaker(old, now, b.breakerRules)
		current := before.at(now, b.breakerRules)
		after := change(now, current)
		from, between, to = before.State, current.State, after.State
		if old != nil && after == before {
			return nil
		}
		text, _ := json.Marshal(after) // numbers only

		return text
	})
	if f := b.settings.OnStateChange; ok && f != nil {
		if from != between {
			f(b.settings.Name, from, between)
		}
		if between != to {
			f(b.settings.Name, between, to)
		}
	}

	return ok
}
