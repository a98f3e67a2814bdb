package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate reports all problems in one error, as joined [*FieldError]s with paths such as
// `Delays[2]`. The zero policy is valid.
func (p Policy) Validate() error {
	return errors.Join(p.validate("")...)
}

// Validate reports everything that is wrong with any of the policies at once, as joined
// [*FieldError]s with paths such as `Policies.Topics["orders"].Delays[2]`.
func (p Policies) Validate() error {
	errs := p.Default.validate("Policies.Default.")
	inherited := said(p.Default.validate(""))
	for _, topic := range slices.Sorted(maps.Keys(p.Topics)) {
		e := &problems{path: inMap("Policies.Topics", topic)}
		if topic == "" {
			e.add("", "empty topic", "the name of a topic; what holds for all topics goes to Policies.Default", `""`)
		}
		errs = append(errs, e.errs...)
		own := said(p.Topics[topic].validate(""))
		for _, err := range p.Topics[topic].over(p.Default).validate("") {
			if text := err.Error(); own[text] || !inherited[text] { // else it is told of where it is
				errs = append(errs, WithPath(e.path, err)...)
			}
		}
	}
	return errors.Join(errs...)
}

// said is what errors say, by the field and what is wrong with it.
func said(errs []error) map[string]bool {
	texts := map[string]bool{}
	for _, err := range errs {
		texts[err.Error()] = true
	}
	return texts
}

// inMap and inList are the paths of what is in a map and in a list.
func inMap(path, key string) string    { return path + "[" + strconv.Quote(key) + "]" }
func inList(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// problems collects field errors below a path, which is empty or ends in a dot.
type problems struct {
	path string
	errs []error
}

func (e *problems) add(field, problem, wanted, found string) {
	e.errs = append(e.errs, &FieldError{Path: e.path + field, Problem: problem, Wanted: wanted, Found: found})
}

func (p Policy) validate(path string) []error {
	e := &problems{path: path}
	oneOf(e, "Mode", p.Mode, true)
	oneOf(e, "OnExpiry", p.OnExpiry, true)
	oneOf(e, "Protect", p.Protect, true)
	oneOf(e, "Strategy", p.Strategy, true)
	p.validateLadder(e)
	p.validateImmediate(e)
	p.validateAges(e)
	p.validateMatches(e)
	if p.CrashLimit < 0 || p.CrashLimit > maxCrashLimit {
		e.add("CrashLimit", "out of bounds", fmt.Sprintf("1..%d, or 0 for %d", maxCrashLimit, defaultCrashLimit),
			strconv.Itoa(p.CrashLimit))
	}
	switch p.mode() {
	case ModeDeadLetter, ModeOff:
		p.validateNoRetries(e)
	default:
		p.validateRetries(e)
	}
	p.validateStrategy(e)
	return e.errs
}

// validateNoRetries refuses what the mode would silently ignore, unless it is what it would be
// without.
func (p Policy) validateNoRetries(e *problems) {
	wanted := fmt.Sprintf("left out with mode %q; to retry, use mode %q", p.Mode, ModeRetry)
	refuse := func(field string, given bool, found string) {
		if given {
			e.add(field, "ignored by the mode", wanted, found)
		}
	}
	refuse("Retries", p.Retries != 0, strconv.Itoa(p.Retries))
	refuse("Delays", len(p.Delays) != 0, durations(p.Delays))
	refuse("Backoff", !p.Backoff.IsZero(), "a backoff")
	refuse("Jitter", p.Jitter != 0 && p.Jitter != None, number(p.Jitter))
	refuse("MaxPostpone", p.MaxPostpone != 0, p.MaxPostpone.String())
	withoutRetries := []Strategy{"", StrategyQueues, StrategyShared}
	if p.Mode == ModeOff {
		withoutRetries = withoutRetries[:2]
	}
	refuse("Strategy", !slices.Contains(withoutRetries, p.Strategy), strconv.Quote(string(p.Strategy)))
	refuse("ClassicQueues", p.ClassicQueues, "true")
	refuse("Ladder", !p.Ladder.IsZero(), "a ladder")
	if p.Mode != ModeOff {
		return
	}
	refuse("CrashLimit", p.CrashLimit != 0 && p.CrashLimit != defaultCrashLimit, strconv.Itoa(p.CrashLimit))
	refuse("RetryOnly", len(p.RetryOnly) != 0, fmt.Sprint(p.RetryOnly))
	refuse("NeverRetry", len(p.NeverRetry) != 0, fmt.Sprint(p.NeverRetry))
	refuse("Immediate", p.Immediate != 0 && p.Immediate != None, strconv.Itoa(p.Immediate))
	refuse("MaxAge", p.MaxAge != 0 && p.MaxAge != None, p.MaxAge.String())
	refuse("OnExpiry", p.OnExpiry == ExpiryDrop, strconv.Quote(string(p.OnExpiry)))
}

func (p Policy) validateImmediate(e *problems) {
	if p.Immediate != None && (p.Immediate < 0 || p.Immediate > maxImmediate) {
		e.add("Immediate", "out of bounds, as they hold up the messages behind", fmt.Sprintf("0..%d", maxImmediate),
			strconv.Itoa(p.Immediate))
	}
}

func (p Policy) validateAges(e *problems) {
	for _, age := range []struct {
		field, zero string
		value       time.Duration
	}{{"MaxAge", "no limit", p.MaxAge}, {"MaxPostpone", defaultMaxPostpone.String(), p.MaxPostpone}} {
		if age.value != 0 && age.value < minDelay && (age.field != "MaxAge" || age.value != None) {
			e.add(age.field, "too short", fmt.Sprintf("at least %s, or left out for %s", minDelay, age.zero),
				age.value.String())
		}
	}
}

func (p Policy) validateMatches(e *problems) {
	for _, list := range []struct {
		field   string
		matches []ErrorMatch
	}{{"RetryOnly", p.RetryOnly}, {"NeverRetry", p.NeverRetry}} {
		for i, m := range list.matches {
			if problem, wanted := m.validate(); problem != "" {
				e.add(inList(list.field, i), problem, wanted, m.String())
			}
		}
	}
}

func (p Policy) validateRetries(e *problems) {
	if p.Retries < 0 || p.Retries > maxRetries {
		e.add("Retries", "out of bounds", fmt.Sprintf("1..%d, or 0 for one per delay", maxRetries),
			strconv.Itoa(p.Retries))
	}
	if len(p.Delays) > 0 && !p.Backoff.IsZero() {
		e.add("Backoff", "delays are given twice", "either delays or a backoff, not both", "both")
	}
	p.validateDelays(e)
	p.validateBackoff(e)
	p.validateDeadline(e)
	if !(p.Jitter >= 0 && p.Jitter <= 1 || p.Jitter == None) {
		e.add("Jitter", "out of bounds", "0..1, the part of each delay that is random", number(p.Jitter))
	}
	if n := len(p.DistinctDelays()); n > maxDistinctDelays && p.Strategy != StrategyLadder {
		field, wanted := "Delays", ""
		if len(p.Delays) == 0 {
			field, wanted = "Backoff", "; a lower max or a larger growth makes fewer"
		}
		e.add(field, "too many different delays, each is a queue on the broker",
			fmt.Sprintf("at most %d%s", maxDistinctDelays, wanted), strconv.Itoa(n))
	}
}

// validateLadder refuses a ladder that is none, and delays that are too long for it.
func (p Policy) validateLadder(e *problems) {
	given := len(e.errs)
	p.Ladder.validate(e, "Ladder.")
	if len(e.errs) > given || p.Strategy != StrategyLadder || p.mode() != ModeRetry {
		return
	}
	longest := p.Ladder.Longest()
	tooLong := func(field string, d time.Duration) {
		e.add(field, "longer than the longest delay of the ladder", "at most "+longest.String()+
			", or Ladder.Levels higher", d.String())
	}
	for i, d := range p.Delays {
		if d > longest && d <= MaxDelay {
			tooLong(inList("Delays", i), d)
		}
	}
	if len(p.Delays) > 0 {
		return
	}
	if p.Backoff.IsZero() {
		if d := slices.Max(p.delays()); d > longest {
			e.add("Ladder.Levels", "the default delays are longer than the longest delay of the ladder",
				"higher, or Delays given; the longest default delay is "+d.String(), longest.String())
		}
	} else if n := p.MaxRetries(); n > 0 && p.Backoff.Initial > 0 {
		if d := p.Backoff.delay(n); d > longest { // no backoff shrinks
			tooLong("Backoff", d)
		}
	}
}

func (p Policy) validateDelays(e *problems) {
	for i, d := range p.Delays {
		delay(e, inList("Delays", i), d)
	}
	if n := len(p.Delays); n > maxRetries {
		e.add("Delays", "too many", fmt.Sprintf("at most %d", maxRetries), strconv.Itoa(n))
	} else if p.Retries > 0 && p.Retries < n {
		e.add("Retries", "delays that are never used",
			fmt.Sprintf("at least %d, the number of delays, or 0 to use each once; else remove the last %d of delays",
				n, n-p.Retries), strconv.Itoa(p.Retries))
	}
}

// validateDeadline refuses an age before which no retry begins: a message that waits for it has
// expired by then.
func (p Policy) validateDeadline(e *problems) {
	first := p.Delay(1)
	if p.Jitter > 0 && p.Jitter <= 1 {
		first = max(minDelay, first-time.Duration(p.Jitter*float64(first)))
	}
	if p.MaxAge >= minDelay && p.MaxAge <= first {
		e.add("MaxAge", "over before the first retry, so that nothing is retried",
			fmt.Sprintf("more than the first delay, %s; to retry nothing, use mode %q", first, ModeDeadLetter),
			p.MaxAge.String())
	}
}

func (p Policy) validateBackoff(e *problems) {
	b := p.Backoff
	if b.IsZero() {
		return
	}
	if p.Retries == 0 && len(p.Delays) == 0 {
		e.add("Retries", "missing with a backoff, which has no end of its own", fmt.Sprintf("1..%d", maxRetries), "0")
	}
	oneOf(e, "Backoff.Kind", b.Kind, false)
	delay(e, "Backoff.Initial", b.Initial)
	if b.Step != 0 {
		if b.Kind != BackoffLinear {
			e.add("Backoff.Step", "ignored by the kind", fmt.Sprintf("left out unless kind is %q", BackoffLinear),
				b.Step.String())
		}
		delay(e, "Backoff.Step", b.Step)
	}
	if b.Factor != 0 {
		if b.Kind != BackoffExponential {
			e.add("Backoff.Factor", "ignored by the kind", fmt.Sprintf("left out unless kind is %q",
				BackoffExponential), number(b.Factor))
		}
		if !(b.Factor >= 1) || math.IsInf(b.Factor, 0) {
			e.add("Backoff.Factor", "out of bounds", fmt.Sprintf("a finite number of at least 1, or 0 for %s",
				number(defaultFactor)), number(b.Factor))
		}
	}
	if b.Max != 0 {
		delay(e, "Backoff.Max", b.Max)
		if b.Initial > b.Max {
			e.add("Backoff.Max", "below the first delay", "at least the initial delay, "+b.Initial.String(),
				b.Max.String())
		}
		return
	}
	// A delay of many years is no wish but an exponent without a cap, so it is not capped in
	// silence.
	if n := p.MaxRetries(); n > 0 && b.Initial <= MaxDelay && b.uncapped(n) > float64(MaxDelay/minDelay) {
		e.add("Backoff.Max", "the delays grow too long", "set, or retries lower: no delay can be longer than "+
			FormatDelay(MaxDelay)+" (10 years)", "no cap")
	}
}

func delay(e *problems, field string, d time.Duration) {
	switch {
	case d < minDelay:
		e.add(field, "too short", "at least "+minDelay.String(), d.String())
	case d > MaxDelay:
		e.add(field, "too long", "at most "+FormatDelay(MaxDelay)+" (10 years)", d.String())
	case d%minDelay != 0:
		e.add(field, "too fine", "whole milliseconds", d.String())
	}
}

// choice is a text of which only some spellings mean something.
type choice interface {
	~string
	Choices() []string
}

func oneOf[T choice](e *problems, field string, value T, emptyAllowed bool) {
	if slices.Contains(value.Choices(), string(value)) || (value == "" && emptyAllowed) {
		return
	}
	e.add(field, "unknown", "one of "+strings.Join(value.Choices(), ", "), strconv.Quote(string(value)))
}

func texts[T ~string](values ...T) []string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return texts
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func durations(ds []time.Duration) string {
	if len(ds) > 4 {
		return strconv.Itoa(len(ds)) + " delays"
	}
	return fmt.Sprint(ds)
}
