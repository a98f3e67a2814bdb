package bench

import (
	"maps"
	"slices"
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// contender is one way to do the same thing.
type contender struct {
	name string
	// run does it once and tells what it has measured.
	run func(b *testing.B) figures
}

// figures are what was measured, by unit, such as "msg/s".
type figures map[string]float64

// results are the figures of all rounds, by contender.
type results map[string][]figures

// compare runs contenders in turn for as many rounds as -benchtime says. Each round begins with
// another one.
func compare(b *testing.B, contenders ...contender) results {
	b.Helper()
	all := results{}
	for round := 0; b.Loop(); round++ {
		for i := range contenders {
			c := contenders[(round+i)%len(contenders)]
			measured := c.run(b)
			if b.Failed() {
				b.FailNow()
			}
			b.Logf("round %d, %s: %v", round+1, c.name, measured)
			all[c.name] = append(all[c.name], measured)
		}
	}
	b.ReportMetric(0, "ns/op") // of a round it says nothing
	for _, c := range contenders {
		for _, unit := range slices.Sorted(maps.Keys(all[c.name][0])) {
			b.ReportMetric(all.median(c.name, unit), report.Unit(c.name)+":"+unit)
		}
	}

	return all
}

// median is that of a contender's figure over the rounds.
func (r results) median(name, unit string) float64 {
	values := make([]float64, len(r[name]))
	for i, measured := range r[name] {
		values[i] = measured[unit]
	}

	return median(values)
}

// ratio is the median over the rounds of what a figure of one contender is to the same of another
// in the same round.
func (r results) ratio(name, to, unit string) float64 {
	values := make([]float64, len(r[name]))
	for i := range values {
		values[i] = r[name][i][unit] / r[to][i][unit]
	}

	return median(values)
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}

	return (values[n/2-1] + values[n/2]) / 2
}

// percentile is the smallest value that so many of a hundred are not above.
func percentile(values []float64, p float64) float64 {
	values = slices.Sorted(slices.Values(values))
	i := int(p / 100 * float64(len(values)))

	return values[min(i, len(values)-1)]
}
