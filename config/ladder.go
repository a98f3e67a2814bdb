package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Ladder names and measures a set of queues in which messages wait for any delay. All services of a
// virtual host that use the same values share one. Its zero value is the default, [RetryLadder].
//
// A delay is written as a number of units with as many digits as there are levels. Each level has a
// queue for each of its digits but 0, and a message waits once for each digit of its delay that is
// not 0. With the defaults there are 54 queues, for delays up to 27h46m39.9s; 30s is one wait, 37s
// are two, and 12.3s are three.
type Ladder struct {
	// Prefix begins the names of its exchanges and queues. Default "amqpretry.delay".
	Prefix string `yaml:"prefix,omitempty" json:"prefix,omitzero" koanf:"prefix" mapstructure:"prefix"`
	// Unit is the shortest delay, to whose multiples all others are rounded up: 1ms..1h in whole
	// milliseconds. Default 100ms.
	Unit time.Duration `yaml:"unit,omitempty" json:"unit,omitzero" koanf:"unit" mapstructure:"unit"`
	// Radix is how many different digits there are, 2..16. Default 10.
	Radix int `yaml:"radix,omitempty" json:"radix,omitzero" koanf:"radix" mapstructure:"radix"`
	// Levels is how many digits a delay has, 1..32. Default 6.
	Levels int `yaml:"levels,omitempty" json:"levels,omitzero" koanf:"levels" mapstructure:"levels"`
}

// Defaults and bounds of a [Ladder].
const (
	// defaultLadderPrefix is what [Ladder.Prefix] is when it is empty.
	defaultLadderPrefix = "amqpretry.delay"
	// maxLadderQueues bounds the queues of a ladder, Levels times (Radix - 1): each is a quorum
	// queue.
	maxLadderQueues = 128

	minLadderRadix, maxLadderRadix = 2, 16
	maxLadderLevels                = 32
	maxLadderUnit                  = time.Hour
	maxLadderPrefixBytes           = 100
)

// RetryLadder is the ladder for retries: units of 100ms, and delays up to 27h46m39.9s.
func RetryLadder() Ladder {
	return Ladder{Prefix: defaultLadderPrefix, Unit: 100 * time.Millisecond, Radix: 10, Levels: 6}
}

// ScheduleLadder is the ladder for messages that are published with a delay: units of 1s, and
// delays up to 3.1 years.
func ScheduleLadder() Ladder {
	return Ladder{Prefix: defaultLadderPrefix, Unit: time.Second, Radix: 10, Levels: 8}
}

// IsZero tells whether nothing is set.
func (l Ladder) IsZero() bool { return l == Ladder{} }

// WithDefaults returns a copy in which what was left out is that of [RetryLadder].
func (l Ladder) WithDefaults() Ladder { return l.Or(RetryLadder()) }

// Or returns a copy in which what was left out is that of another ladder.
func (l Ladder) Or(other Ladder) Ladder {
	return Ladder{
		Prefix: cmp.Or(l.Prefix, other.Prefix),
		Unit:   cmp.Or(l.Unit, other.Unit),
		Radix:  cmp.Or(l.Radix, other.Radix),
		Levels: cmp.Or(l.Levels, other.Levels),
	}
}

// Longest is the longest delay of a valid ladder: the one in which each digit is the largest.
func (l Ladder) Longest() time.Duration {
	l = l.WithDefaults()
	units := math.Pow(float64(l.Radix), float64(l.Levels)) - 1
	if units >= float64(math.MaxInt64/l.Unit) {
		return math.MaxInt64
	}
	return time.Duration(units) * l.Unit
}

// RoundUp is the shortest delay of the ladder that is not shorter than d, or the longest one.
func (l Ladder) RoundUp(d time.Duration) time.Duration {
	l = l.WithDefaults()
	if longest := l.Longest(); d >= longest {
		return longest
	}
	return max(l.Unit, (d+l.Unit-1)/l.Unit*l.Unit)
}

// Digits are those of a delay, rounded up, the digit of the highest level first: as many as there
// are levels.
func (l Ladder) Digits(d time.Duration) []int {
	l = l.WithDefaults()
	units := l.RoundUp(d) / l.Unit
	digits := make([]int, l.Levels)
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = int(units % time.Duration(l.Radix))
		units /= time.Duration(l.Radix)
	}
	return digits
}

// TTL is how long a message waits at a level, 0 being the lowest, for a digit.
func (l Ladder) TTL(level, digit int) time.Duration {
	l = l.WithDefaults()
	ttl := time.Duration(digit) * l.Unit
	for range level {
		ttl *= time.Duration(l.Radix)
	}
	return ttl
}

// Validate reports all problems in one error, as joined [*FieldError]s. The zero ladder is valid.
func (l Ladder) Validate() error {
	e := &problems{}
	l.validate(e, "")
	return errors.Join(e.errs...)
}

// validate below a path, which is empty or ends in a dot.
func (l Ladder) validate(e *problems, path string) {
	given := len(e.errs)
	bounds := func(field string, n, least, most int) {
		if n != 0 && (n < least || n > most) {
			e.add(path+field, "out of bounds", fmt.Sprintf("%d..%d, or left out", least, most), strconv.Itoa(n))
		}
	}
	if problem := prefixProblem(l.Prefix); problem != "" {
		e.add(path+"Prefix", problem, fmt.Sprintf("valid UTF-8 of at most %d bytes without * and #, which does not "+
			"begin with amq.", maxLadderPrefixBytes), strconv.Quote(l.Prefix))
	}
	if l.Unit != 0 && (l.Unit < minDelay || l.Unit > maxLadderUnit || l.Unit%minDelay != 0) {
		e.add(path+"Unit", "out of bounds", fmt.Sprintf("%s..%s in whole milliseconds, or left out", minDelay,
			FormatDelay(maxLadderUnit)), l.Unit.String())
	}
	bounds("Radix", l.Radix, minLadderRadix, maxLadderRadix)
	bounds("Levels", l.Levels, 1, maxLadderLevels)
	if len(e.errs) > given {
		return
	}
	l = l.WithDefaults()
	if n := l.Levels * (l.Radix - 1); n > maxLadderQueues {
		e.add(path+"Levels", "too many queues, (radix - 1) for each level",
			fmt.Sprintf("at most %d queues", maxLadderQueues), strconv.Itoa(n))
	}
	if l.Longest() > MaxDelay {
		e.add(path+"Levels", "the longest delay is too long", "lower, or Unit or Radix lower: no delay can be longer "+
			"than "+FormatDelay(MaxDelay)+" (10 years)", l.Longest().String())
	}
}

func prefixProblem(prefix string) string {
	switch {
	case prefix == "":
		return ""
	case strings.HasPrefix(prefix, "amq."):
		return "names that begin with amq. are the broker's own"
	case len(prefix) > maxLadderPrefixBytes:
		return "too long"
	case !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "*#\r\n"):
		return "has characters that it cannot have"
	}
	return ""
}
