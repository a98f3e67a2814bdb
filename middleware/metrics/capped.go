package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
)

// capped makes the values of at most limit keys, and one for all others. Reading takes no lock and
// allocates nothing: it is done for every event, and keys are few and soon known.
type capped[K comparable, V any] struct {
	limit int
	make  func(K) V
	other func() V

	mu    sync.Mutex // of who adds
	known atomic.Pointer[map[K]V]
}

// newCapped makes the value of other, for what is beyond the limit, only when it is needed.
func newCapped[K comparable, V any](limit int, other K, value func(K) V) *capped[K, V] {
	c := &capped[K, V]{limit: limit, make: value, other: sync.OnceValue(func() V { return value(other) })}
	c.known.Store(&map[K]V{})

	return c
}

func (c *capped[K, V]) of(key K) V {
	known := *c.known.Load()
	if v, ok := known[key]; ok {
		return v
	}
	if len(known) >= c.limit {
		return c.other()
	}

	return c.add(key)
}

func (c *capped[K, V]) add(key K) V {
	c.mu.Lock()
	defer c.mu.Unlock()

	known := *c.known.Load()
	if v, ok := known[key]; ok {
		return v
	}
	if len(known) >= c.limit {
		return c.other()
	}

	v, grown := c.make(key), maps.Clone(known)
	grown[key] = v
	c.known.Store(&grown)

	return v
}
