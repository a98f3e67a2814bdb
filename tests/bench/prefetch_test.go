package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkPrefetch measures what a prefetch that follows the handlers costs, against a fixed one.
func BenchmarkPrefetch(b *testing.B) {
	t := report.Table{
		Title: "Prefetch",
		Notes: []string{
			fmt.Sprintf("The retrier's subscriber with a prefetch of %d, and with the default, which follows the "+
				"handlers, by how far away the broker is, by Options.Concurrency and by how long a handler waits.",
				amqpretry.DefaultPrefetch),
		},
		Head: []string{"round trip", "queue", "Concurrency", "handlers", "fixed msg/s", "adaptive/fixed"},
	}
	defer t.WriteOn(b, brokertest.URI(b))

	for _, roundTrip := range []time.Duration{0, 20 * time.Millisecond} {
		for _, queueType := range queueTypes {
			for _, concurrency := range []int{1, 8, 64} {
				for _, takes := range append(slices.Clone(handlerTimes), 100*time.Millisecond) {
					name := fmt.Sprintf("%s/%s/%s", roundTrip, queueType, concurrent(takes, concurrency))
					b.Run(name, func(b *testing.B) {
						with := func(prefetch int) func(b *testing.B) figures {
							return func(b *testing.B) figures {
								return consumeConcurrently(b, roundTrip, queueType, takes, concurrency, prefetch)
							}
						}
						fixed := max(amqpretry.DefaultPrefetch, 2*concurrency)
						all := report.Compare(b, contender{"fixed", with(fixed)}, contender{"adaptive", with(0)})
						t.Add(roundTrip.String(), queueType, concurrency, takes.String(), all.Median("fixed", "msg/s"),
							all.Ratio("adaptive", "fixed", "msg/s"))
					})
				}
			}
		}
	}
}
