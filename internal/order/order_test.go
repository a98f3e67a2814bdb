package order

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOutsideEndsAtTheRouter(t *testing.T) {
	middlewares := func(found []*Mistake) (names []string) {
		for _, m := range found {
			names = append(names, m.Middleware)
		}

		return names
	}
	assert.Equal(t, []string{"Watermill's Retry"}, middlewares(Outside([]string{
		watermillPrefix + "Retry.Middleware.func1", routerName, poisonQueuePrefix + "Middleware.func1",
	})))
	assert.Equal(t, []string{"a middleware of package protect"},
		middlewares(Outside([]string{protectPrefix + "(*Deduplicator).Middleware.func1", routerName})))
	assert.Empty(t, Outside(nil))
}

func TestCheck(t *testing.T) {
	const (
		ours, theirs = module + "amqpretry.(*Retrier).Middleware-fm", module +
			"amqpretry/amqpv3.(*Retrier).Poison-fm"
		retry, dedup = watermillPrefix + "Retry.Middleware-fm", watermillPrefix + "(*Deduplicator).Middleware-fm"
		ack, user    = watermillPrefix + "InstantAck", "example.com/shop/middleware.(*Deduplicator).Middleware-fm"
		breaker      = watermillPrefix + "CircuitBreaker.Middleware-fm"
		poison       = poisonQueuePrefix + "Middleware-fm"
		tracing      = module + "middleware/tracing.(*Tracing).Middleware-fm"
	)
	for name, test := range map[string]struct {
		chain []string
		stock bool
		want  []string
	}{
		"metrics outside": {[]string{metricsPrefix + "Middleware-fm", ours}, false,
			[]string{"the middleware of Watermill's components/metrics"}},
		"metrics inside":        {[]string{ours, metricsPrefix + "Middleware-fm"}, false, nil},
		"none of ours":          {[]string{retry, dedup}, true, nil},
		"right":                 {[]string{user, ours, user, retry}, true, nil},
		"far inside":            {[]string{ours, user, dedup}, false, []string{"Watermill's Deduplicator"}},
		"outside":               {[]string{retry, user, ours}, false, []string{"Watermill's Retry"}},
		"between two retriers":  {[]string{ours, retry, user, theirs}, false, nil},
		"wrong for both":        {[]string{ours, dedup, theirs}, false, []string{"Watermill's Deduplicator"}},
		"as an error's end":     {[]string{ours, breaker, theirs}, false, nil},
		"stock only":            {[]string{ours, ack}, true, []string{"Watermill's InstantAck"}},
		"harmless with our own": {[]string{ours, ack}, false, nil},
		"outside it loses both": {[]string{ack, ours}, false, []string{"Watermill's InstantAck"}},
		"tracing outside":       {[]string{tracing, ours}, false, []string{"the middleware of package tracing"}},
		"tracing inside":        {[]string{ours, tracing}, false, nil},
		"several": {[]string{poison, retry, theirs, dedup}, false,
			[]string{"Watermill's PoisonQueue", "Watermill's Retry", "Watermill's Deduplicator"}},
		"a possible one is told": {[]string{ours, poison}, false, []string{"Watermill's PoisonQueue"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range Check(test.chain, test.stock) {
				got = append(got, e.Middleware)
				assert.Equal(t, name != "a possible one is told" && name != "metrics outside", e.Level >= Wrong)
			}
			assert.Equal(t, test.want, got)
		})
	}
}
