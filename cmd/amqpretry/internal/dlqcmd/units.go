package dlqcmd

import (
	"time"

	"github.com/amqpretry/watermill-retry/internal/units"
)

// age is a flag with a duration, which may have days.
type age struct{ time.Duration }

func (a *age) Set(text string) (err error) {
	a.Duration, err = units.ParseAge(text)
	return err
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

func (r *rate) Set(text string) error {
	perSecond, err := units.ParseRate(text)
	*r = rate(perSecond)

	return err
}

func (r *rate) String() string { return units.Rate(float64(*r)) }

func (r *rate) Type() string { return "rate" }

// since is how long ago a time was; "-" for none.
func since(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return units.Elapsed(now.Sub(at))
}

// matching prints how many match: 1 matches, 2 match.
func matching(n int) string {
	if n == 1 {
		return "1 matches"
	}
	return units.Thousands(n) + " match"
}
