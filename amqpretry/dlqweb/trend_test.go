package dlqweb

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// However long a console runs, a trend stays short, covers all of the time, and loses no death.
func TestTrendIsBounded(t *testing.T) {
	t.Parallel()
	var p past
	for i := range 10_000 {
		p.trend.add(sample{Depth: int64(i), Deaths: 1})
		assert.LessOrEqual(t, len(p.trend.samples), mostSamples)
	}
	deaths := int64(0)
	before := int64(-1)
	for _, s := range p.trend.samples {
		assert.Greater(t, s.Depth, before)
		before = s.Depth
		deaths += s.Deaths
	}
	assert.Equal(t, int64(10_000), deaths)
	assert.Equal(t, int64(9_999), before)
	assert.Greater(t, len(p.trend.samples), mostSamples/2)

	p.Since, p.depth, p.AtLeast = time.Now(), before, deaths
	assert.Contains(t, p.Depths(), "now 9,999")
	assert.Contains(t, p.DeathsDrawn(), "At least 10,000 messages")
	assert.Less(t, len(p.Depths())+len(p.DeathsDrawn()), 3000)
}

// A flat line is a short path, and a queue that was never seen has no picture.
func TestTrendOfNothing(t *testing.T) {
	t.Parallel()
	assert.Empty(t, past{}.Depths())
	assert.Empty(t, past{}.DeathsDrawn())
	assert.Equal(t, "?", past{}.PerHour())
	var p past
	for range mostSamples {
		p.trend.add(sample{Depth: 7})
	}
	p.depth = 7
	assert.Equal(t, 2, strings.Count(string(p.Depths()), "L"), "one line, and the area below it")
}

func TestDeathsPerHour(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := past{deaths: deaths{Since: now.Add(-30 * time.Minute)}}
	p.lastHour.add(50, now.Add(-20*time.Minute))
	assert.Equal(t, "100", p.PerHour(), "half an hour is known")
	assert.True(t, p.Rising())

	p = past{deaths: deaths{Since: now.Add(-100 * time.Hour)}}
	p.lastHour.add(5000, now.Add(-61*time.Minute))
	assert.Equal(t, "0", p.PerHour(), "they are older")
	assert.False(t, p.Rising())
	p.lastHour.add(7, now.Add(-59*time.Minute))
	p.lastHour.add(1, now)
	assert.Equal(t, "8", p.PerHour())

	p = past{deaths: deaths{Since: now}}
	p.lastHour.add(1, now)
	assert.Equal(t, "12", p.PerHour(), "as if five minutes were known")
}
