package metrics_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

// counted are dead letters of a Metrics by fingerprint.
type counted struct {
	t     *testing.T
	told  func(retry.Event)
	count func() series
	at    time.Time
}

func newCounted(t *testing.T, most int) *counted {
	t.Helper()
	m, registry := newMetrics(t, metrics.Config{MaxCauses: most})

	return &counted{t: t, told: m.OnEvent, at: now, count: func() series {
		found := series{}
		for name, value := range values(t, registry, true) {
			if _, labels, ok := strings.Cut(name, `causes_total{fingerprint="`); ok {
				cause, _, _ := strings.Cut(labels, `"`)
				found[cause] += value
			}
		}

		return found
	}}
}

func (c *counted) dies(text string) (fingerprint string) {
	c.t.Helper()
	c.at = c.at.Add(time.Second)
	e := event(retry.EventDeadLettered, died(text), func(e *retry.Event) { e.At = c.at })
	c.told(e)

	return e.Cause.Fingerprint()
}

// letters spells a number without digits, which a fingerprint would not tell apart.
func letters(n int) string {
	return strings.Map(func(digit rune) rune { return digit - '0' + 'a' }, strconv.Itoa(n))
}

func TestCauses(t *testing.T) {
	t.Parallel()
	c := newCounted(t, 4)
	first, second := c.dies("order 1 is lost"), c.dies("refused")
	assert.Equal(t, first, c.dies("order 2 is lost"))
	third := c.dies("third")
	assert.Equal(t, series{first: 2, second: 1, "other": 1}, c.count(), "it may never come again")
	c.dies("third")
	c.dies("fourth")
	fourth := c.dies("fourth")
	c.dies("fifth")
	c.dies("fifth")
	want := series{first: 2, second: 1, third: 1, fourth: 1, "other": 4}
	assert.Equal(t, want, c.count())

	c.at = c.at.Add(23 * time.Hour)
	c.dies("order 3 is lost")
	c.at = c.at.Add(2 * time.Hour)
	fifth := c.dies("fifth")
	assert.Equal(t, series{first: 3, fifth: 1, "other": 4}, c.count(), "those that were not seen for a day made room")
}

// A publisher who makes up error texts without end makes no more series, and real causes have
// theirs: those that came before, and those that come meanwhile, one in hundreds.
func TestCauses_OfAHostilePublisher(t *testing.T) {
	t.Parallel()
	const most, flood = 20, 20_000
	c := newCounted(t, most)
	before := c.dies("known before")
	meanwhile := ""
	for i := range flood {
		c.dies("made up " + letters(i))
		if i%300 == 299 {
			meanwhile = c.dies("meanwhile")
		}
	}
	c.dies("known before")
	found := c.count()
	assert.InDelta(t, 2, found[before], 0)
	assert.Greater(t, found[meanwhile], 60., fmt.Sprint(found))
	assert.Len(t, found, most/2+2, "half of the series, one for what came again, and other")
}

// An unknown cause costs the same however many there were.
func BenchmarkCauses_OfAHostilePublisher(b *testing.B) {
	m, _ := newMetrics(b, metrics.Config{})
	events := make([]retry.Event, 2000)
	for i := range events {
		events[i] = event(retry.EventDeadLettered, died("made up "+letters(i)))
	}
	b.ReportAllocs()
	for i := range b.N {
		m.OnEvent(events[i%len(events)])
	}
}
