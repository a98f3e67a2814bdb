package peers

import (
	"time"
)

const unit = "msg/s"

// figures are what was measured, by unit.
type figures = map[string]float64

// rate is what a contender has reached.
func rate(messages int, took time.Duration) figures {
	return figures{unit: float64(messages) / took.Seconds()}
}
