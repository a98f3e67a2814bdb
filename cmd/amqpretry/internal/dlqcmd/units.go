package dlqcmd

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// age is a flag with a duration, which may have days.
type age struct{ time.Duration }

var days = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)d`)

var errAge = errors.New("must be a duration above 0, such as 90s, 15m, 36h, 30d or 1d12h")

// maxAge is what a time.Duration has room for, in hours.
const maxAge = 2_500_000

func (a *age) Set(text string) error {
	var total time.Duration
	rest := text
	if found := days.FindStringSubmatch(text); found != nil {
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil || n*24 > maxAge {
			return errAge
		}
		total, rest = time.Duration(n*24*float64(time.Hour)), text[len(found[0]):]
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return errAge
		}
		total += d
	}
	if total <= 0 {
		return errAge
	}
	a.Duration = total

	return nil
}

func (a *age) String() string {
	if a.Duration == 0 {
		return ""
	}
	return a.Duration.String()
}

func (a *age) Type() string { return "duration" }

// rate is a flag with messages per second.
type rate float64

var errRate = errors.New("must be a number of messages above 0 with its unit, such as 100/s, 30/m or 5000/h")

func (r *rate) Set(text string) error {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n > 0 && n <= 1e9) {
		return errRate
	}
	switch unit {
	case "", "s":
	case "m":
		n /= 60
	case "h":
		n /= 3600
	default:
		return errRate
	}
	*r = rate(n)

	return nil
}

func (r *rate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'g', 6, 64) + "/s"
}

func (r *rate) Type() string { return "rate" }

// elapsed prints a duration for people, by its two largest units.
func elapsed(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// since is how long ago a time was; "-" for none.
func since(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return elapsed(now.Sub(at))
}

// thousands prints 1234567 as 1,234,567.
func thousands[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// many prints a number of things: 1 message, 1,234 messages.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

// matching prints how many match: 1 matches, 2 match.
func matching(n int) string {
	if n == 1 {
		return "1 matches"
	}
	return thousands(n) + " match"
}
