package consumer

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Turns lets the consumers of one retrier hand out suspects one at a time: see suspect.go. A
// process that dies of one takes everything with it that it has in flight, whatever topic that
// belongs to.
//
// The message that was redelivered least often comes first: the one that kills has been redelivered
// at each death, so its neighbours are handled before it runs again. But a message that is close to
// its crash limit goes before all others, as the next death of somebody else may be one too many
// for it. A message that has crashed its consumers in an earlier attempt comes after all others.
type Turns struct {
	mu      sync.Mutex
	taken   bool
	waiting []*waiter
	members int
}

type waiter struct {
	redeliveries int64
	hasCrashed   bool // its consumers, in an earlier attempt
	isClose      bool // to its crash limit
	luck         uint64
	due          time.Time // not before: another consumer's first delivery may be on its way
	granted      chan struct{}
}

const (
	// turnPatience is how long a suspect waits for its turn at the longest: one topic must not stop
	// the others for ever.
	turnPatience = 30 * time.Second
	// turnGrace is how long a message that was redelivered several times lets others go first,
	// which a moment later may be there.
	turnGrace = 100 * time.Millisecond
	// manyRedeliveries are more than the deaths of others explain, as a rule.
	manyRedeliveries = 3
)

// join counts a consumer that may want a turn. Whoever is alone waits for nobody.
func (t *Turns) join() (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.members++

	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		t.members--
	}
}

// take waits for a turn for a message that was redelivered so often and has this crash limit. It is
// false if stop came first. After turnPatience the suspect runs without a turn.
func (t *Turns) take(redeliveries int64, limit int, hasCrashed bool, stop <-chan struct{}) (give func(), ok bool) {
	w := t.queue(redeliveries, limit, hasCrashed)
	give = sync.OnceFunc(func() { t.end(w) })

	patience := time.NewTimer(turnPatience)
	defer patience.Stop()

	select {
	case <-w.granted:
		return give, true
	case <-patience.C:
		return give, true
	case <-stop:
		give()
		return nil, false
	}
}

func (t *Turns) queue(redeliveries int64, limit int, hasCrashed bool) *waiter {
	t.mu.Lock()
	defer t.mu.Unlock()

	w := &waiter{
		redeliveries: redeliveries, hasCrashed: hasCrashed, isClose: redeliveries*10 >= int64(limit)*7,
		luck: rand.Uint64(), granted: make(chan struct{}),
	}
	if t.members > 1 && (hasCrashed || redeliveries >= manyRedeliveries) {
		w.due = time.Now().Add(turnGrace)
		time.AfterFunc(turnGrace, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.next()
		})
	}
	t.waiting = append(t.waiting, w)
	t.next()

	return w
}

// end gives a turn back, or takes back the wish for one.
func (t *Turns) end(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if i := slices.Index(t.waiting, w); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		return
	}
	t.taken = false
	t.next()
}

// next grants a turn to whoever is first. mu is held.
func (t *Turns) next() {
	if t.taken || len(t.waiting) == 0 {
		return
	}
	first := slices.MinFunc(t.waiting, (*waiter).compare)
	if time.Now().Before(first.due) {
		return
	}
	t.waiting = slices.DeleteFunc(t.waiting, func(w *waiter) bool { return w == first })
	t.taken = true
	close(first.granted)
}

// compare is negative if w comes before other. Between equals chance decides, anew after each
// death: a fixed order could put the one that kills before the same neighbour each time.
func (w *waiter) compare(other *waiter) int {
	switch {
	case w.hasCrashed && !other.hasCrashed:
		return 1
	case other.hasCrashed && !w.hasCrashed:
		return -1
	case w.isClose && other.isClose:
		return cmp.Or(cmp.Compare(other.redeliveries, w.redeliveries), cmp.Compare(w.luck, other.luck))
	case w.isClose:
		return -1
	case other.isClose:
		return 1
	default:
		return cmp.Or(cmp.Compare(w.redeliveries, other.redeliveries), cmp.Compare(w.luck, other.luck))
	}
}
