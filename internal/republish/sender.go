package republish

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// Sender publishes for any number of callers at a time: mandatory, confirmed and pipelined. Each exchange has a channel
// of its own: one that may not be written to closes its channel at each publish, and must not take those with it that go
// elsewhere.
type Sender struct {
	// turn is a lock that can be waited for with a context, since opening a channel can hang. Nobody publishes with it.
	turn     chan struct{}
	confirms map[string]*confirmChannel // by exchange
}

// NewSender returns a sender without channels.
func NewSender() *Sender {
	return &Sender{turn: make(chan struct{}, 1), confirms: map[string]*confirmChannel{}}
}

// Sent is a publish that is perhaps not resolved yet. Its Outcome must be asked for once.
type Sent struct{ publish *inFlight }

// Retire closes the channels when nobody waits for an answer on them any more.
func (s *Sender) Retire() {
	for _, c := range s.confirms {
		c.retire()
	}
}

// Send publishes a message, and gives it an id of ours. It writes into the headers.
func (s *Sender) Send(
	ctx context.Context, link *connection.Link, exchange, key string, message amqp091.Publishing,
) (*Sent, error) {
	confirms, err := s.reserve(ctx, link, exchange)
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	message.Headers[header.ID] = id
	sent, err := confirms.publish(exchange, key, message)
	if err != nil {
		return nil, err
	}
	sent.id = id

	return &Sent{sent}, nil
}

func (s *Sender) reserve(ctx context.Context, link *connection.Link, exchange string) (*confirmChannel, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	confirms, err := reserveConfirms(link, s.confirms[exchange])
	if err != nil {
		return nil, err
	}
	s.confirms[exchange] = confirms

	return confirms, nil
}

// At is when it was published.
func (s *Sent) At() time.Time { return s.publish.at }

// Outcome waits for the broker's answer, and returns nil when it has confirmed the message and not returned it. An
// answer that is there counts more than the end of ctx.
func (s *Sent) Outcome(ctx context.Context) error {
	select {
	case <-s.publish.done():
		return s.publish.outcome()
	default:
		return await(ctx, s.publish)
	}
}

// IsMissing reports whether a message was not taken because what it was published to is missing.
func IsMissing(err error) bool { return isMissing(err) }
