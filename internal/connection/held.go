package connection

import (
	"bytes"
	"net"
	"runtime"
	"sync"
)

const (
	// heldWrites is how much is held back at the most.
	heldWrites = 16 << 10
	// largeWrite is how much is not worth waiting for more.
	largeWrite = 8 << 10
)

// heartbeat is a frame that must not wait: without it the broker closes the connection. It takes
// along what somebody holds back for long.
var heartbeat = []byte{8, 0, 0, 0, 0, 0, 0, 0xce}

// held is a connection whose writes can be held back, so that what several callers write at the
// same time goes to the broker at once: a write of its own for each message is the most that a
// small message costs.
type held struct {
	net.Conn

	mu       sync.Mutex
	holders  int
	waiting  []byte
	yielding bool // somebody is about to write it
}

// Write writes, or keeps what is written until nobody holds it back. A later write fails then, or
// the next read.
func (h *held) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.holders == 0 && len(h.waiting) == 0 {
		return h.Conn.Write(b)
	}
	h.waiting = append(h.waiting, b...)
	if h.holders == 0 || len(h.waiting) >= heldWrites || bytes.HasSuffix(b, heartbeat) {
		if err := h.flush(); err != nil {
			return 0, err
		}
	}

	return len(b), nil
}

func (h *held) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holders++
}

// release writes what is held back, if nobody else holds it. Who is about to write as well does so
// before: one of many callers is often done when the next has not begun.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.holders--
	if h.holders > 0 || len(h.waiting) == 0 || h.yielding {
		return
	}
	if len(h.waiting) < largeWrite {
		h.yielding = true
		h.mu.Unlock()
		runtime.Gosched()
		h.mu.Lock()
		h.yielding = false
	}

	if h.holders == 0 && len(h.waiting) > 0 && h.flush() != nil {
		_ = h.Close() // part of a frame may be missing; nobody else hears of it
	}
}

// flush writes what is held back. mu is held.
func (h *held) flush() error {
	_, err := h.Conn.Write(h.waiting)
	if h.waiting = h.waiting[:0]; cap(h.waiting) > 4*heldWrites { // a large message
		h.waiting = nil
	}

	return err
}
