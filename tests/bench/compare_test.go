package bench

import (
	"slices"

	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

type (
	contender = report.Contender
	figures   = map[string]float64
	results   = report.Results
)

// percentile is the smallest value that so many of a hundred are not above.
func percentile(values []float64, p float64) float64 {
	values = slices.Sorted(slices.Values(values))
	i := int(p / 100 * float64(len(values)))

	return values[min(i, len(values)-1)]
}
