package consumer

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Shared lets consumers share one connection. The first consumer opens it, and the last one closes it; then the next
// one opens another. The zero value is ready to use.
type Shared struct {
	mu   sync.Mutex
	base *base // nil while there is no consumer
}

// base is a connection, with what its consumers know of their queues.
type base struct {
	connection *connection.Connection
	queues     consumed

	consumers int // guarded by Shared.mu
}

func newBase(settings connection.Settings, logger watermill.LoggerAdapter) *base {
	return &base{
		connection: connection.New(settings, logger),
		queues:     consumed{queues: map[string]*consumedQueue{}},
	}
}

// enter returns the connection for one more consumer, which ends with leave. With s nil it is that consumer's own.
func (s *Shared) enter(settings connection.Settings, logger watermill.LoggerAdapter) *base {
	if s == nil {
		return newBase(settings, logger)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.base == nil {
		s.base = newBase(settings, logger)
	}
	s.base.consumers++

	return s.base
}

// leave closes the connection if no other consumer has it, at the deadline at the latest.
func (s *Shared) leave(b *base, deadline time.Time) {
	if s.isLast(b) {
		b.connection.Close(deadline)
	}
}

func (s *Shared) isLast(b *base) bool {
	if s == nil {
		return true
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if b.consumers--; b.consumers > 0 {
		return false
	}
	s.base = nil // whoever comes now must not get one that is closing

	return true
}
