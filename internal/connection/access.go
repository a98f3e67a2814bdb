package connection

import (
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

const (
	// expiredGrace is how long a connection that is given up may take to close.
	expiredGrace = time.Second
	// unsureEvery is how often a connection is given up at most where it is not sure that its token has expired.
	unsureEvery = 5 * time.Minute
)

// watchAccess waits for the end of a channel. RabbitMQ 3.10 and 4.0 keep a connection whose token has expired, and
// refuse all that is asked of it: it is given up, and the next one brings a new token. Where a permission is missing,
// that would be in vain, and cost everybody else on the connection.
//
// Upstream: a connection whose token has expired stays open, and all it asks is refused.
func (l *Link) watchAccess(closes <-chan *amqp091.Error) {
	refused := <-closes
	if refused == nil {
		return
	}
	if expired, unsure := rabbitmq.HasExpired(refused); !expired && (!unsure || !l.unsure.allow(time.Now())) {
		return
	}
	l.expire.Do(func() {
		l.expired.Store(refused)
		l.logger.Error("RabbitMQ refuses operations on the connection: its token seems to have expired; connecting "+
			"again", refused, nil)
		l.close(time.Now().Add(expiredGrace))
	})
}

// seldom allows something once in unsureEvery.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

func (s *seldom) allow(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.last.IsZero() && now.Sub(s.last) < unsureEvery {
		return false
	}
	s.last = now

	return true
}
