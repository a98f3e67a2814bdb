package dlq

import (
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// defaultAnswerTime is how long the broker may say nothing while it is to answer. It may never
// answer, on a connection that is there: nothing else would end the waiting.
const defaultAnswerTime = 2 * time.Minute

// asker asks the broker over a connection, and gives that up when there is no answer. The broker
// then takes back all that it has delivered there.
type asker struct {
	link  *connection.Link
	limit time.Duration
}

// ask waits for the answer as long as something comes: over a slow link it comes behind the
// messages that are on their way.
func (a asker) ask(question func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- a.reasonOf(question()) }()
	timer := time.NewTimer(a.limit)
	defer timer.Stop()
	for received := a.link.Received(); ; timer.Reset(a.limit) {
		select {
		case err := <-answered:
			return err
		case <-timer.C:
		}
		now := a.link.Received()
		if now-received <= aWord {
			a.link.Abandon()
			return &silentError{a.limit}
		}
		received = now
	}
}

// reasonOf is why the connection was lost, where an error tells only that it is closed.
func (a asker) reasonOf(err error) error {
	if !errors.Is(err, amqp091.ErrClosed) {
		return err
	}
	if _, lost := a.link.Lost(); lost != nil {
		return lost
	}

	return err
}

// onChannel asks on a channel of its own, as the broker closes it with a refusal.
func (a asker) onChannel(question func(*amqp091.Channel) error) error {
	return a.ask(func() error {
		channel, err := a.link.Channel()
		if err != nil {
			return err
		}
		defer channel.Close()

		return question(channel)
	})
}

// asker is for questions over one of the client's connections.
func (c *Client) asker(link *connection.Link) asker { return asker{link, c.answerTime} }

// silentError is the error of a question that was not answered.
type silentError struct{ limit time.Duration }

func (e *silentError) Error() string {
	return fmt.Sprintf("no answer from the broker for %s, so the connection was given up and the messages go back to "+
		"the queue; see the broker's log, then try again", e.limit)
}
