package protect

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// memory is which messages of a handler are being handled, and which have been.
type memory struct {
	window time.Duration
	max    int

	mu      sync.Mutex
	calls   map[string]*call // the latest of each key
	handled []*call          // those that have succeeded, the oldest first
}

// call is one call of a handler. What became of its message is known when the router has answered:
// by an acknowledgement if the outputs are published.
type call struct {
	key           string
	acked, nacked <-chan struct{}
	succeeded     time.Time // zero until the handler has
	mark          string    // its own, which no other call has
}

// callState is what is known of a message with the same key.
type callState int

const (
	callNone     callState = iota // there was none, it failed, or it is too long ago
	callInFlight                  // its handler runs, or its outputs are being published
	callHandled
)

func newMemory(window time.Duration, max int) *memory {
	return &memory{window: window, max: max, calls: map[string]*call{}}
}

// begin begins a call, if there is none with its key or admits wants it all the same.
func (m *memory) begin(key string, msg *message.Message, admits func(callState, string) bool) (c *call,
	before callState) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.forget(time.Now())
	if old := m.calls[key]; old != nil && old.acked != msg.Acked() { // a message is no duplicate of itself
		if before = old.state(); before != callNone && !admits(before, old.mark) {
			return nil, before
		}
	}

	c = &call{key: key, acked: msg.Acked(), nacked: msg.Nacked(), mark: rand.Text()}
	m.calls[key] = c

	return c, callNone
}

// end ends a call.
func (m *memory) end(c *call, succeeded bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if !succeeded {
		m.remove(c)
		return
	}
	c.succeeded = time.Now()
	m.handled = append(m.handled, c)
	m.forget(c.succeeded)
}

// forget removes what is too old, or too much.
func (m *memory) forget(now time.Time) {
	for len(m.handled) > 0 && (len(m.handled) > m.max || now.Sub(m.handled[0].succeeded) >= m.window) {
		m.remove(m.handled[0])
		m.handled[0] = nil
		m.handled = m.handled[1:]
	}
}

func (m *memory) remove(c *call) {
	if m.calls[c.key] == c {
		delete(m.calls, c.key)
	}
}

func (c *call) state() callState {
	switch {
	case c.succeeded.IsZero():
		return callInFlight
	case isClosed(c.nacked):
		return callNone
	case isClosed(c.acked):
		return callHandled
	default:
		return callInFlight
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
