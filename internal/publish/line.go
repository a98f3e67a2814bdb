package publish

import (
	"sync"
	"time"
)

// lineIdle is how long the goroutine of a line stays when nothing comes: its stack has grown.
const lineIdle = time.Second

// line is where things wait for a goroutine that takes all that have come together, in their order.
type line[T any] struct {
	take func([]T)
	stop <-chan struct{} // closed when the goroutine is not to stay any more

	mu      sync.Mutex
	waiting []T
	runs    bool

	wake chan struct{}
}

func newLine[T any](stop <-chan struct{}, take func([]T)) *line[T] {
	return &line[T]{take: take, stop: stop, wake: make(chan struct{}, 1)}
}

func (l *line[T]) put(next T) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.waiting = append(l.waiting, next)
	if !l.runs {
		l.runs = true
		go l.run()
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *line[T]) run() {
	isOver := false
	defer func() {
		if !isOver { // what take has called has ended the goroutine
			go l.run()
		}
	}()
	idle := time.NewTimer(lineIdle)
	defer idle.Stop()
	var all []T
	for stays := true; stays; {
		for all = l.next(all); len(all) > 0; all = l.next(all) {
			l.take(all)
		}
		idle.Reset(lineIdle)
		select {
		case <-l.wake:
		case <-idle.C:
			stays = l.isAwaited()
		case <-l.stop:
			stays = l.isAwaited()
		}
	}
	isOver = true
}

// next gives all that wait. Those of the last time are done.
func (l *line[T]) next(last []T) []T {
	clear(last)
	l.mu.Lock()
	defer l.mu.Unlock()

	all := l.waiting
	l.waiting = last[:0]

	return all
}

// isAwaited tells whether something waits. If not, the goroutine ends.
func (l *line[T]) isAwaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.runs = len(l.waiting) > 0

	return l.runs
}
