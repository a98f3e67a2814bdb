package dlqweb

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

const (
	// mostLooks is how many are remembered. A look has at most some hundred kilobytes.
	mostLooks = 64
	// leastAge is how long a look is good for, and ageShare how many times as long as it took: so
	// that a queue is not held by looks all the time.
	leastAge = 3 * time.Second
	ageShare = 10
	// longestLook ends one, and unwanted one that nobody has asked for since.
	longestLook = 15 * time.Minute
	unwanted    = time.Minute
)

// looks remembers what browses have seen, and lets all who want the same wait for one.
type looks struct {
	console *Console
	mu      sync.Mutex
	all     []*pending // the one that was asked for last is the last
	held    map[string]int
}

// pending is a look that goes on, or has ended.
type pending struct {
	target target
	key    string
	whole  bool // without filters

	mu       sync.Mutex
	progress dlq.Progress
	wanted   time.Time

	done chan struct{}
	look *look
	err  error
	stop context.CancelFunc
}

// Progress is how far it is.
func (p *pending) Progress() dlq.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.progress
}

func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// isGood tells whether it is young enough.
func (p *pending) isGood(now time.Time) bool {
	if !p.ended() {
		return true
	}
	if p.err != nil {
		return now.Sub(p.look.Ended) < leastAge
	}
	took := p.look.Ended.Sub(p.look.Began)

	return now.Sub(p.look.Ended) < max(leastAge, ageShare*took)
}

// at gives the look of a view, a new one if there is none that is young enough. It may still go on.
func (k *looks) at(t target, values url.Values, after int, filter dlq.Filter) *pending {
	view := url.Values{"filter": {values.Encode()}, "after": {number(after)}, "queue": {t.Queue}, "main": {t.MainQueue}}
	key := view.Encode()
	now := time.Now()

	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.all, func(p *pending) bool { return p.key == key }); i >= 0 {
		p := k.all[i]
		k.all = slices.Delete(k.all, i, i+1)
		if p.isGood(now) {
			p.want(now)
			k.all = append(k.all, p)
			return p
		}
	}
	if k.held[t.Queue] > 0 {
		done := make(chan struct{})
		close(done)
		return &pending{target: t, done: done, look: &look{}, err: heldByRun()}
	}
	if len(k.all) >= mostLooks {
		k.all[0].stop()
		k.all = slices.Delete(k.all, 0, 1)
	}
	ctx, stop := context.WithTimeout(k.console.ctx, longestLook)
	p := &pending{target: t, key: key, whole: len(values) == 0, wanted: now, done: make(chan struct{}), stop: stop,
		look: &look{Began: now, After: after}}
	k.all = append(k.all, p)
	k.console.running.Go(func() { k.look(ctx, p, filter) })

	return p
}

func (p *pending) want(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = now
}

// wait waits for a look to end, but no longer than this.
func (p *pending) wait(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// look browses the queue.
func (k *looks) look(ctx context.Context, p *pending, filter dlq.Filter) {
	defer p.stop()
	defer close(p.done)
	defer func() { p.look.end(time.Now()) }()

	client, err := k.console.client(ctx)
	if err != nil {
		p.err = err
		return
	}
	queue := client.DeadLetterQueue(p.target.Queue, p.target.MainQueue)
	if p.look.Ready, p.look.Hidden, p.err = queue.Ready(ctx); p.err != nil {
		return
	}
	matches := k.console.asShown(filter)
	p.saw(0)
	for l, err := range queue.Browse(ctx, dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		p.look.Seen++
		p.saw(p.look.Seen)
		return matches.Matches(l, p.look.Began)
	}}) {
		if err != nil {
			p.err = err
			return
		}
		p.look.add(k.console.redacted(&l))
	}
}

// saw tells of the progress, and ends a look that nobody wants any more.
func (p *pending) saw(seen int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress = dlq.Progress{Total: p.look.Ready, Seen: seen}
	if time.Since(p.wanted) > unwanted {
		p.stop()
	}
}

// hold keeps looks of a queue from beginning, and ends those that go on, until it is released: a
// run is at work.
func (k *looks) hold(queue string) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[queue]++
	for _, p := range k.all {
		if p.target.Queue == queue && !p.ended() {
			p.stop()
		}
	}
	k.all = slices.DeleteFunc(k.all, func(p *pending) bool { return p.target.Queue == queue && !p.ended() })

	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.held[queue]--; k.held[queue] == 0 {
			delete(k.held, queue)
		}
	}
}

// isHeld tells whether a run is at work.
func (k *looks) isHeld(queue string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	return k.held[queue] > 0
}

func heldByRun() *problem {
	return &problem{Status: http.StatusConflict, Title: "A run is working on this queue",
		Detail: "Its messages cannot be shown while it counts or moves them.", Do: "Try again when it has ended."}
}

// forget makes the next view of a queue look again: its messages have changed.
func (k *looks) forget(queue string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = slices.DeleteFunc(k.all, func(p *pending) bool { return p.target.Queue == queue && p.ended() })
}
