package dlqweb

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/internal/units"
)

// sample is how many messages a queue had, and how many were added since the sample before.
type sample struct{ Depth, Deaths int64 }

// mostSamples is how many a trend keeps.
const mostSamples = 60

// trend keeps the samples of a queue since the console started. When it is full, each two become
// one.
type trend struct {
	samples []sample
	step, n int // how many were added to each one, and to the last one
}

func (t *trend) add(s sample) {
	t.step = max(t.step, 1)
	if len(t.samples) == mostSamples && t.n == t.step {
		for i := range mostSamples / 2 {
			first, second := t.samples[2*i], t.samples[2*i+1]
			t.samples[i] = sample{Depth: second.Depth, Deaths: first.Deaths + second.Deaths}
		}
		t.samples = t.samples[:mostSamples/2]
		t.step *= 2
		t.n = t.step
	}
	if len(t.samples) == 0 || t.n == t.step {
		t.samples = append(t.samples, sample{})
		t.n = 0
	}
	last := &t.samples[len(t.samples)-1]
	last.Depth = s.Depth
	last.Deaths += s.Deaths
	t.n++
}

// hour counts by minute, for an hour.
type hour struct {
	minutes [60]int64
	newest  int64 // in minutes since 1970
}

func (h *hour) add(n int64, now time.Time) {
	minute := now.Unix() / 60
	for h.newest = max(h.newest, minute-int64(len(h.minutes))); h.newest < minute; {
		h.newest++
		h.minutes[h.newest%int64(len(h.minutes))] = 0
	}
	h.minutes[h.newest%int64(len(h.minutes))] += n
}

// total is the sum of the hour before now.
func (h hour) total(now time.Time) int64 {
	h.add(0, now)
	sum := int64(0)
	for _, n := range h.minutes {
		sum += n
	}

	return sum
}

// leastRateSpan keeps a rate from being made of a few seconds.
const leastRateSpan = 5 * time.Minute

// PerHour is how many messages died in the last hour, or would in one if it goes on. It is a lower
// bound.
func (p past) PerHour() string {
	if p.Since.IsZero() {
		return "?"
	}
	total := p.lastHour.total(time.Now())
	span := min(max(time.Since(p.Since), leastRateSpan), time.Hour)
	rate := float64(total) / span.Hours()
	if rate < 10 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", rate), ".0")
	}

	return units.Thousands(int64(math.Round(rate)))
}

// Rising tells whether messages died in the last hour.
func (p past) Rising() bool { return p.lastHour.total(time.Now()) > 0 }

// leastSamples is how many make a line.
const leastSamples = 4

// A trend is drawn from the right, so that one that has just begun is short.
const trendHeight = 20

// Depths draws how many messages the queue had.
func (p past) Depths() template.HTML {
	t := p.trend.samples
	low, high := p.depth, p.depth
	for _, s := range t {
		low, high = min(low, s.Depth), max(high, s.Depth)
	}
	if len(t) < leastSamples || high == 0 {
		return ""
	}
	// A depth that hardly changes is a flat line in the middle.
	span := max(float64(high-low), float64(high)/10, 2)
	bottom := max(0, float64(high+low)/2-span/2)
	y := func(depth int64) int {
		return trendHeight - 1 - int((trendHeight-3)*(float64(depth)-bottom)/span)
	}
	first := mostSamples - len(t)
	var line drawing
	line.printf("M%d %d", first, y(t[0].Depth))
	for i := 1; i < len(t); i++ {
		if i+1 == len(t) || y(t[i].Depth) != y(t[i-1].Depth) || y(t[i+1].Depth) != y(t[i].Depth) {
			line.printf("L%d %d", first+i, y(t[i].Depth))
		}
	}

	label := fmt.Sprintf("Messages since %s: from %s to %s, now %s", p.clock(), units.Thousands(low),
		units.Thousands(high), units.Thousands(p.depth))

	return p.draw("depths", label, fmt.Sprintf(`<path class="area" d="%sV%dH%dZ"/><path class="line" d="%[1]s"/>`,
		&line, trendHeight, first))
}

// DeathsDrawn draws when messages died.
func (p past) DeathsDrawn() template.HTML {
	if p.AtLeast == 0 {
		return ""
	}
	t := p.trend.samples
	most := int64(1)
	for _, s := range t {
		most = max(most, s.Deaths)
	}
	var bars drawing
	for i, s := range t {
		if s.Deaths > 0 {
			bars.printf("M%d.5 %dv-%d", mostSamples-len(t)+i, trendHeight, max(2, s.Deaths*trendHeight/most))
		}
	}

	return p.draw("deaths", fmt.Sprintf("At least %s since %s", units.Many(int(p.AtLeast), "message"), p.clock()),
		fmt.Sprintf(`<path class="bars" d="%s"/>`, &bars))
}

func (p past) clock() string { return p.Since.UTC().Format("2006-01-02 15:04 UTC") }

func (p past) draw(class, label, paths string) template.HTML {
	return template.HTML(fmt.Sprintf( //nolint:gosec // numbers and times only
		`<svg class="trend %s" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">`+
			`<title>%[4]s</title><path class="base" d="M0 %[3]dH%[2]d"/>%[5]s</svg>`,
		class, mostSamples, trendHeight, label, paths))
}

type drawing struct{ strings.Builder }

func (d *drawing) printf(format string, values ...any) { _, _ = fmt.Fprintf(d, format, values...) }
