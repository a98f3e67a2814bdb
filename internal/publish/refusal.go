package publish

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// sizeText is how RabbitMQ 3.10 to 4.3 refuse a payload.
//
// Upstream: what a refusal is about is only in its text.
var sizeText = regexp.MustCompile(`message size \d+ is larger than configured max size (\d+)`)

// refusals knows what the broker refuses for good, so that it is not sent: each such message costs
// the channel, and all that is on it is published again.
type refusals struct {
	mu   sync.Mutex
	link *connection.Link
	max  int // bytes of a payload, as that link has learned; 0 if it has not
}

// learn reads the largest payload out of a refusal, and tells whether it could.
func (r *refusals) learn(link *connection.Link, reason *amqp091.Error) bool {
	found := sizeText.FindStringSubmatch(reason.Reason)
	if found == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	r.link = link
	r.max, _ = strconv.Atoi(found[1])

	return true
}

// of is why the broker would refuse a message on a link; nil if that is not known.
func (r *refusals) of(link *connection.Link, m *amqp091.Publishing) *amqp091.Error {
	refused := func(format string, args ...any) *amqp091.Error {
		return &amqp091.Error{Code: amqp091.PreconditionFailed,
			Reason: "PRECONDITION_FAILED - " + fmt.Sprintf(format, args...) + " (not sent)"}
	}
	if m.Expiration != "" {
		if n, err := strconv.ParseInt(m.Expiration, 10, 64); err != nil || n < 0 {
			return refused("invalid expiration %q, wanted milliseconds", m.Expiration)
		}
	}
	for _, key := range []string{"CC", "BCC"} {
		if value, given := m.Headers[key]; given {
			if _, is := value.([]any); !is {
				return refused("invalid %s header: %T, wanted a list", key, value)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.max > 0 && link == r.link && len(m.Body) > r.max {
		return refused("message size %d is larger than configured max size %d", len(m.Body), r.max)
	}

	return nil
}
