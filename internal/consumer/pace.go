package consumer

import (
	"slices"
	"sync"
	"time"
)

// pace is how fast the workers of a subscription are, which is what its prefetch follows: what is
// delivered further ahead than they take soon is kept from others, who might be idle.
type pace struct {
	mu    sync.Mutex
	since []time.Time // of each worker, since when it is busy; zero for one that is idle
	calls int         // that have ended
	mean  float64     // of a call, in nanoseconds, those of late counting more
	body  int         // about the largest of late, in bytes
	free  int         // workers that are not stuck, when somebody looked last
	lost  []time.Time // of each worker whose delivery is gone, since when
}

const (
	// stuckAfter is how long a call takes of which it is not foreseen that it ends.
	stuckAfter = 10 * time.Second
	// bytesAhead is how much of bodies may be delivered ahead. They take 3.5 to 6 times that of
	// memory.
	bytesAhead = 8 << 20

	meanWeight = 0.2
	bodyFades  = 32 // messages, in which the largest body is forgotten for the most part
)

func newPace(workers int) *pace { return &pace{since: make([]time.Time, workers), free: workers} }

// begin notes that a worker has a message in hand, with a body of so many bytes.
func (p *pace) begin(worker, body int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.since[worker] = now
	p.body = max(body, p.body-(p.body+bodyFades-1)/bodyFades)
}

// end notes that a worker is done with its message.
func (p *pace) end(worker int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	took := float64(now.Sub(p.since[worker]))
	p.since[worker] = time.Time{}
	if p.calls++; p.calls == 1 {
		p.mean = took
	}
	p.mean += meanWeight * (took - p.mean)
}

// look counts the workers that are idle, and those that are not stuck.
func (p *pace) look(now time.Time) (idle, free int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.free = len(p.since)
	for _, since := range p.since {
		switch {
		case since.IsZero():
			idle++
		case now.Sub(since) > stuckAfter:
			p.free--
		}
	}

	return idle, p.free
}

// longest is for how long the slowest of the present calls has run.
func (p *pace) longest(now time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, since := range p.since {
		if !since.IsZero() {
			longest = max(longest, now.Sub(since))
		}
	}

	return longest
}

// ended is how many calls have ended.
func (p *pace) ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.calls
}

// withdraw notes that the delivery of a worker is gone, while it goes on with its message, until it
// is done with that.
func (p *pace) withdraw() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()

	now := time.Now()
	p.lost = append(p.lost, now)

	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()

		i := slices.Index(p.lost, now)
		p.lost = slices.Delete(p.lost, i, i+1)
	}
}

// withdrawn are the workers whose delivery has been gone for withdrawnGrace, the first one since.
func (p *pace) withdrawn(now time.Time) (workers int, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, at := range p.lost { // in their order
		if now.Sub(at) < withdrawnGrace {
			break
		}
		if workers++; workers == 1 {
			since = at
		}
	}

	return workers, since
}

// workers are those that can have a delivery of the present consumer.
func (p *pace) workers() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.since) - len(p.lost)
}

// within is how many messages the workers take within a time, in which most is the answer at most.
func (p *pace) within(d time.Duration, most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.calls == 0 {
		return 0
	}
	if p.body > 0 {
		most = min(most, bytesAhead/p.body)
	}

	return int(min(float64(most), float64(p.free)*float64(d)/max(p.mean, 1)))
}
