package connection

import (
	"errors"
	"fmt"
	"sync"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/retry"
)

// Open has the connections of a process that are not closed. The zero value is ready to use; nil
// keeps none.
type Open struct{ all sync.Map }

func (o *Open) add(c *Connection) {
	if o != nil {
		o.all.Store(c, nil)
	}
}

func (o *Open) remove(c *Connection) {
	if o != nil {
		o.all.Delete(c)
	}
}

// Problems returns what is wrong with the connections. One that is lost is no problem until
// somebody needs it.
func (o *Open) Problems() (all []retry.Problem) {
	o.all.Range(func(key, _ any) bool {
		if c, is := key.(*Connection); is {
			if p := c.problem(); p.Kind != "" {
				all = append(all, p)
			}
		}

		return true
	})

	return all
}

// problem is empty if all is well.
func (c *Connection) problem() retry.Problem {
	c.mu.Lock()
	link, since, err := c.live(), c.down, c.failed
	c.mu.Unlock()

	p := retry.Problem{Connection: c.settings.Role, Since: since, Err: err}
	refusal := (*amqp091.Error)(nil)
	isRefusal := errors.As(err, &refusal) &&
		(refusal.Code == amqp091.AccessRefused || refusal.Code == amqp091.NotAllowed)
	switch {
	case link != nil && link.IsBlocked():
		p.Kind, p.Since = retry.ProblemAlarm, link.blockedSince()
		p.Text = fmt.Sprintf("the broker blocks connection %q: %s; free memory or disk of the broker", p.Connection,
			link.BlockedFor())
	case link != nil || since.IsZero():
		return retry.Problem{}
	case isRefusal:
		p.Kind = retry.ProblemCredentials
		p.Text = fmt.Sprintf("the broker refuses the credentials of connection %q: %v; correct the user, its password "+
			"or its permissions for the virtual host", p.Connection, err)
	case err != nil:
		p.Kind = retry.ProblemConnection
		p.Text = fmt.Sprintf("connection %q is lost: %v; it comes back by itself when the broker answers",
			p.Connection, err)
	default:
		p.Kind = retry.ProblemConnection
		p.Text = fmt.Sprintf("connection %q is not open yet: waiting for the broker's answer", p.Connection)
	}

	return p
}
