package connection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

const (
	// askTimeout is how long to give credentials may take.
	askTimeout = 30 * time.Second
	// askAgain is after how long they are asked for again when that has failed, and askSeldom where
	// it always does.
	askAgain  = 5 * time.Second
	askSeldom = time.Minute
)

// credentials asks for the credentials of the next dial; nil where the settings have none of their
// own. Who gives them may never return: then they are asked for no more, and that is the error.
func (c *Connection) credentials() (*config.Credentials, error) {
	if c.settings.Credentials == nil {
		return nil, nil //nolint:nilnil // the URI has them
	}
	ctx, cancel := context.WithTimeoutCause(c.ctx, askTimeout, fmt.Errorf("no answer within %s", askTimeout))
	defer cancel()
	select {
	case c.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("Options.Credentials: %w", context.Cause(ctx))
	}

	var credentials config.Credentials
	answer := make(chan error, 1)
	go func() {
		defer func() { <-c.asking }()
		defer func() {
			if p := recover(); p != nil {
				answer <- fmt.Errorf("panic: %v", p)
			}
		}()
		given, err := c.settings.Credentials(ctx)
		credentials = given
		answer <- err
	}()
	select {
	case err := <-answer:
		if err != nil {
			return nil, fmt.Errorf("Options.Credentials: %w", err)
		}

		return &credentials, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("Options.Credentials: %w", context.Cause(ctx))
	}
}

// authenticate puts credentials into a config.
func authenticate(config *amqp091.Config, credentials *config.Credentials) {
	if credentials != nil {
		config.SASL = []amqp091.Authentication{
			&amqp091.PlainAuth{Username: credentials.User, Password: credentials.Password},
		}
	}
}

// refresh gives a link new credentials before those that it has expire, as long as it lives. A
// broker that takes none closes it: the next one has new ones.
func (c *Connection) refresh(link *Link, has config.Credentials) {
	for pause := askAgain; !has.Expires.IsZero(); {
		// A fifth of the time is left for attempts that fail.
		if !link.waits(max(time.Until(has.Expires)/5*4, pause)) {
			return
		}
		next, err := c.credentials()
		switch {
		case err == nil && next.User != has.User:
			err = errors.New("Options.Credentials returned another user, which an open connection cannot switch to")
		case err == nil && next.Password != has.Password:
			err = link.UpdateSecret(next.Password, "the one before expires")
		}
		if err != nil && link.IsAlive() {
			c.logger.Error("Cannot give the connection new credentials", err,
				watermill.LogFields{"expires": has.Expires.UTC().Format(time.RFC3339)})
		}
		if err == nil && next.Expires.After(has.Expires) {
			pause = askAgain
		} else {
			pause = min(2*pause, askSeldom)
		}
		if err == nil {
			has = *next
		}
	}
}

// waits is false if the link is gone before that.
func (l *Link) waits(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.dead:
		return false
	}
}

const (
	// expiredGrace is how long a connection that is given up may take to close.
	expiredGrace = time.Second
	// unsureEvery is how often a connection is given up at most where it is not sure that its token
	// has expired.
	unsureEvery = 5 * time.Minute
)

// watchAccess waits for the end of a channel. RabbitMQ 3.10 and 4.0 keep a connection whose token
// has expired, and refuse all that is asked of it: it is given up, and the next one brings a new
// token. Where a permission is missing, that would be in vain, and cost everybody else on the
// connection.
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
