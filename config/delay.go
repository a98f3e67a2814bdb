package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// delayUnits from the largest to the smallest, which divides every valid delay.
var delayUnits = []struct {
	suffix string
	unit   time.Duration
}{
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
}

// FormatDelay spells a delay the one canonical way: the largest single unit of h, m, s and ms that
// divides it exactly.
//
//	90 * time.Second        "90s"
//	1500 * time.Millisecond "1500ms"
//	2 * time.Hour           "2h"
//
// The spelling is part of queue names and of messages that wait on the broker, so it never changes.
// A duration that is no valid delay is spelled as the nearest one, never shorter than 1ms.
func FormatDelay(d time.Duration) string {
	d = max(minDelay, min(d.Round(minDelay), MaxDelay))
	for _, u := range delayUnits {
		if d%u.unit == 0 {
			return strconv.FormatInt(int64(d/u.unit), 10) + u.suffix
		}
	}
	panic("unreachable: d is whole milliseconds")
}

// ParseDelay is the inverse of [FormatDelay]. It refuses every other spelling ("1m30s", "60s",
// "1.5s", "01s"), since two spellings of one delay would be two queues.
func ParseDelay(s string) (time.Duration, error) {
	digits := strings.TrimRight(s, "hms")
	for _, u := range delayUnits {
		if s != digits+u.suffix {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > int64(MaxDelay/u.unit) {
			break
		}
		d := time.Duration(n) * u.unit
		if canonical := FormatDelay(d); canonical != s {
			return 0, fmt.Errorf("delay %q is not canonical: must be %q", s, canonical)
		}
		return d, nil
	}
	return 0, fmt.Errorf("delay %q: must be a whole number from 1ms to %s with one unit of ms, s, m, h, such as "+
		"1500ms or 90s",
		s, FormatDelay(MaxDelay))
}
