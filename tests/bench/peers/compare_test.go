package peers

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
	run func(b *testing.B) float64
}

// results are what was measured in each round, by contender.
type results map[string][]float64

// compare runs contenders in turn for as many rounds as -benchtime says. Each round begins with
// another one.
func compare(b *testing.B, unit string, contenders []contender) results {
	b.Helper()
	all := results{}
	for round := 0; b.Loop(); round++ {
		for i := range contenders {
			c := contenders[(round+i)%len(contenders)]
			measured := c.run(b)
			if b.Failed() {
				b.FailNow()
			}
			b.Logf("round %d, %s: %s %s", round+1, c.name, report.Cell(measured), unit)
			all[c.name] = append(all[c.name], measured)
		}
	}
	b.ReportMetric(0, "ns/op") // of a round it says nothing
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.ReportMetric(median(all[name]), report.Unit(name)+":"+unit)
	}

	return all
}

// ratio is the median over the rounds of what one contender measured to what another did in the
// same round.
func (r results) ratio(name, to string) float64 {
	values := make([]float64, len(r[name]))
	for i := range values {
		values[i] = r[name][i] / r[to][i]
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
