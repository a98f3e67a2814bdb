package play

import (
	"errors"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
)

// Remove deletes the queues and exchanges that an example has declared for its topics, with what is left in them. No
// service does that. Defer it before the retrier is closed, to be called after it.
func Remove(uri string, options amqpretry.Options, topics ...string) {
	if err := remove(uri, options, topics); err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove what the example has declared for %q: %v\n", topics, err)
	}
}

func remove(uri string, options amqpretry.Options, topics []string) error {
	retrier, err := amqpretry.New(amqp.NewDurableQueueConfig(uri), options) // for its plans only
	if err != nil {
		return err
	}
	defer retrier.Close()
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}

	var errs []error
	for _, topic := range topics {
		plan, err := retrier.Plan(topic)
		if err != nil {
			return err
		}
		queues := []string{plan.Queue}
		for _, q := range plan.Queues {
			queues = append(queues, q.Name)
		}
		for _, queue := range queues {
			_, err := channel.QueueDelete(queue, false, false, false) // none that is missing is an error
			errs = append(errs, err)
		}
		for _, x := range plan.Exchanges {
			errs = append(errs, channel.ExchangeDelete(x.Name, false, false))
		}
	}

	return errors.Join(errs...)
}
