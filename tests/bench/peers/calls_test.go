package peers

import "sync"

// calls are those of one contender's handler. They wait for each other at the gate: everybody
// begins with its first messages at hand.
type calls struct {
	messages int

	arrived func()        // the first message is there
	there   chan struct{} // closed by it
	begin   func()        // opens the gate
	gate    chan struct{} // closed by it
	done    chan struct{} // closed when every message has succeeded

	mu        sync.Mutex
	count     int
	successes map[string]int
}

func newCalls(messages int) *calls {
	c := &calls{
		messages:  messages,
		there:     make(chan struct{}),
		gate:      make(chan struct{}),
		done:      make(chan struct{}),
		successes: make(map[string]int, messages),
	}
	c.arrived = sync.OnceFunc(func() { close(c.there) })
	c.begin = sync.OnceFunc(func() { close(c.gate) })

	return c
}

// handle is what a handler does with a message: nothing, but that it is counted.
func (c *calls) handle(id string, succeeds bool) {
	c.arrived()
	<-c.gate
	c.add(id, succeeds)
}

func (c *calls) add(id string, succeeds bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if !succeeds {
		return
	}
	c.successes[id]++
	if c.successes[id] == 1 && len(c.successes) == c.messages {
		close(c.done)
	}
}

// seen is how often the handler has been called.
func (c *calls) seen() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.count
}

// fates are what became of messages, in numbers.
type fates struct {
	lost  int // never succeeded, and in no queue
	late  int // never succeeded, and still on the way
	dead  int // never succeeded, and in the dead-letter queue
	twice int // succeeded more than once
}

func (f fates) plus(g fates) fates {
	return fates{f.lost + g.lost, f.late + g.late, f.dead + g.dead, f.twice + g.twice}
}

// fates judges the messages, by the ids that were found dead and the number of those that are on
// the way, which may be repeats.
func (c *calls) fates(dead []string, waiting int) fates {
	c.mu.Lock()
	defer c.mu.Unlock()
	var f fates
	for _, n := range c.successes {
		if n > 1 {
			f.twice++
		}
	}
	died := map[string]bool{}
	for _, id := range dead {
		if c.successes[id] == 0 {
			died[id] = true
		}
	}
	f.dead = len(died)
	missing := c.messages - len(c.successes) - f.dead
	f.late = min(missing, waiting)
	f.lost = missing - f.late

	return f
}
