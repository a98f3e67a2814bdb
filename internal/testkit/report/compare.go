package report

import (
	"maps"
	"slices"
	"testing"
)

// Contender is one way to do the same thing. Run does it once and tells what it has measured, by
// unit, such as "msg/s".
type Contender = struct {
	Name string
	Run  func(b *testing.B) map[string]float64
}

// Results are the figures of all rounds, by contender.
type Results map[string][]map[string]float64

// Compare runs contenders in turn for as many rounds as -benchtime says. Each round begins with
// another one.
func Compare(b *testing.B, contenders ...Contender) Results {
	b.Helper()
	all := Results{}
	for round := 0; b.Loop(); round++ {
		for i := range contenders {
			c := contenders[(round+i)%len(contenders)]
			measured := c.Run(b)
			if b.Failed() {
				b.FailNow()
			}
			b.Logf("round %d, %s: %v", round+1, c.Name, measured)
			all[c.Name] = append(all[c.Name], measured)
		}
	}
	b.ReportMetric(0, "ns/op") // of a round it says nothing
	for _, c := range contenders {
		for _, unit := range slices.Sorted(maps.Keys(all[c.Name][0])) {
			b.ReportMetric(all.Median(c.Name, unit), Unit(c.Name)+":"+unit)
		}
	}

	return all
}

// Median is that of a contender's figure over the rounds.
func (r Results) Median(name, unit string) float64 {
	values := make([]float64, len(r[name]))
	for i, measured := range r[name] {
		values[i] = measured[unit]
	}

	return median(values)
}

// Ratio is the median over the rounds of what a figure of one contender is to the same of another
// in the same round.
func (r Results) Ratio(name, to, unit string) float64 {
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
