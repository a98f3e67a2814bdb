// Package units reads and prints durations, rates and numbers for people.
package units

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var days = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)d`)

// ErrAge is what is wrong with the text of an age.
var ErrAge = errors.New("must be a duration above 0, such as 90s, 15m, 36h, 30d or 1d12h")

// maxAge is what a time.Duration has room for, in hours.
const maxAge = 2_500_000

// ParseAge reads a duration, which may have days.
func ParseAge(text string) (time.Duration, error) {
	var total time.Duration
	rest := text
	if found := days.FindStringSubmatch(text); found != nil {
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil || n*24 > maxAge {
			return 0, ErrAge
		}
		total, rest = time.Duration(n*24*float64(time.Hour)), text[len(found[0]):]
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, ErrAge
		}
		total += d
	}
	if total <= 0 {
		return 0, ErrAge
	}

	return total, nil
}

// ErrRate is what is wrong with the text of a rate.
var ErrRate = errors.New("must be a number of messages above 0 with its unit, such as 100/s, 30/m or 5000/h")

// ParseRate reads how many a second.
func ParseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n > 0 && n <= 1e9) {
		return 0, ErrRate
	}
	switch unit {
	case "", "s":
	case "m":
		n /= 60
	case "h":
		n /= 3600
	default:
		return 0, ErrRate
	}

	return n, nil
}

// Rate prints one as ParseRate reads it; 0 as nothing.
func Rate(perSecond float64) string {
	if perSecond == 0 {
		return ""
	}
	return strconv.FormatFloat(perSecond, 'g', 6, 64) + "/s"
}

// Elapsed prints a duration by its two largest units.
func Elapsed(d time.Duration) string {
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

// Thousands prints 1234567 as 1,234,567.
func Thousands[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Many prints a number of things: 1 message, 1,234 messages.
func Many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return Thousands(n) + " " + thing + "s"
}
