package bench

import (
	"sync"
	"testing"
	"time"
)

// lap takes the time of messages that are done one after the other, or some at a time, from when
// the last of the warm-up is done.
type lap struct {
	warmUp, messages int
	done             chan struct{} // closed after the last

	mu           sync.Mutex
	count        int
	began, ended time.Time
}

func newLap(warmUp, messages int) *lap {
	return &lap{warmUp: warmUp, messages: messages, done: make(chan struct{})}
}

// add is called as each message is done.
func (l *lap) add() {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch l.count++; l.count {
	case l.warmUp:
		l.began = time.Now()
	case l.warmUp + l.messages:
		l.ended = time.Now()
		close(l.done)
	}
}

// wait waits for the last, where no router does.
func (l *lap) wait(b *testing.B, within time.Duration) {
	b.Helper()
	select {
	case <-l.done:
	case <-time.After(within):
		b.Fatalf("not done within %s", within)
	}
}

// rate is what was reached, when done.
func (l *lap) rate() figures {
	return figures{"msg/s": float64(l.messages) / l.ended.Sub(l.began).Seconds()}
}
