package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkBurst has many messages fail together, and looks at when jitter lets them come back.
func BenchmarkBurst(b *testing.B) {
	const delay, jitter = time.Second, 0.8
	t := report.Table{
		Title: "A burst of failures with jitter",
		Notes: []string{
			fmt.Sprintf("Messages that lie in the queue fail one after the other as fast as they can, each once, "+
				"under a delay of %s with Jitter %v. The share of them, in percent, that came back so many "+
				"milliseconds after they failed, over all rounds; *all in one 100 ms* is the largest share. A "+
				"perfect spread is 12.5 in each column from 300 to 1000: exact delays are rounded up to the "+
				"ladder's 100 ms.",
				config.FormatDelay(delay), jitter),
		},
		Head: []string{"failing together", "delays", "200", "300", "400", "500", "600", "700", "800", "900", "1000",
			"1100 and later", "all in one 100 ms"},
	}
	for _, messages := range []int{60, 600} {
		policies := map[string]config.Policy{
			"exact": exactPolicy([]time.Duration{delay}), "tiers": tierPolicy([]time.Duration{delay}),
		}
		b.Run(fmt.Sprint(messages), func(b *testing.B) {
			shares := map[string][]float64{}
			for b.Loop() {
				for _, name := range []string{"exact", "tiers"} {
					policy := policies[name]
					policy.Jitter = jitter
					shares[name] = append(shares[name], burst(b, policy, messages)...)
				}
			}
			for _, name := range []string{"exact", "tiers"} {
				histogram := make([]float64, 10)
				for _, back := range shares[name] {
					require.GreaterOrEqual(b, back, 199.0, "a retry was early: after so many milliseconds")
					from := min(max(int(back/100), 2), 11) // the broker may round a fraction of a millisecond down
					histogram[from-2] += 100 / float64(len(shares[name]))
				}
				cells := []any{messages, name}
				for _, share := range histogram {
					cells = append(cells, share)
				}
				t.Add(append(cells, slices.Max(histogram))...)
				b.ReportMetric(slices.Max(histogram), name+":largest-percent")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// burst fails messages together and gives after how many milliseconds each came back.
func burst(b *testing.B, policy config.Policy, messages int) []float64 {
	b.Helper()
	waits := newWaits(messages, 0)
	queue, stop := startWaiting(b, "quorum", policy, amqpretry.Options{}, waits)
	defer stop()
	fill(b, queue, messages, numbered)
	waits.await(b, time.Minute)

	return waits.milliseconds(0)
}
