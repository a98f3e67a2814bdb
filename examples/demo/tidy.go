package demo

import (
	"errors"
	"fmt"
	"os"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// planner is a retrier, for any version of watermill-amqp, or a group of one.
type planner interface {
	Plan(topic string) (topology.Plan, error)
}

// Tidy deletes the queues and retry exchanges of topics, with the messages that are left in them.
// Call it when nothing consumes from them any more. Like the other functions that tidy, it prints
// an error to the standard error.
func Tidy(uri string, retrier planner, topics ...string) {
	tidy(uri, topics, func(channel *amqp091.Channel, topic string) error {
		plan, err := retrier.Plan(topic)
		if err != nil {
			return err
		}

		return remove(channel, plan)
	})
}

// TidyTopic is [Tidy] for a queue that has been under these policies. No policy means the default
// one.
func TidyTopic(uri, topic string, policies ...config.Policy) {
	if len(policies) == 0 {
		policies = []config.Policy{{}}
	}
	tidy(uri, policies, func(channel *amqp091.Channel, policy config.Policy) error {
		plan, err := topology.New(topic, policy, topology.Names{})
		if err != nil {
			return err
		}

		return remove(channel, plan)
	})
}

// TidyExchanges deletes the exchanges that publishers send to. They belong to all services of a
// topic, so [Tidy] leaves them alone.
func TidyExchanges(uri string, names ...string) {
	tidy(uri, names, func(channel *amqp091.Channel, name string) error {
		return channel.ExchangeDelete(name, false, false)
	})
}

// TidyLadder deletes a ladder with the messages that wait in it, and the landing queues of topics
// that are queues or exchanges. A ladder with the default prefix belongs to all services of the
// virtual host, so TidyLadder refuses that one.
func TidyLadder(uri string, of config.Ladder, topics ...string) {
	tidy(uri, []config.Ladder{of}, func(channel *amqp091.Channel, of config.Ladder) error {
		if of.WithDefaults().Prefix == config.RetryLadder().Prefix {
			return errors.New("others may use it")
		}
		ladder, err := topology.NewLadder(of)
		if err != nil {
			return err
		}
		errs := []error{remove(channel, ladder.Shared())}
		for _, topic := range topics {
			for _, target := range []topology.Target{{Key: topic}, {Exchange: topic}} {
				own, err := ladder.Of(target, topology.Names{})
				errs = append(errs, err, remove(channel, own))
			}
		}

		return errors.Join(errs...)
	})
}

// tidy calls work for each thing, on one channel.
func tidy[T any](uri string, things []T, work func(*amqp091.Channel, T) error) {
	err := func() error {
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
		for _, thing := range things {
			errs = append(errs, work(channel, thing))
		}

		return errors.Join(errs...)
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove what the example has declared: %v\n", err)
	}
}

// remove deletes the queues and exchanges of a plan. RabbitMQ does not mind if something is
// missing.
func remove(channel *amqp091.Channel, plan topology.Plan) error {
	var errs []error
	if plan.Queue != "" {
		_, err := channel.QueueDelete(plan.Queue, false, false, false)
		errs = append(errs, err)
	}
	for _, queue := range plan.Queues {
		_, err := channel.QueueDelete(queue.Name, false, false, false)
		errs = append(errs, err)
	}
	for _, exchange := range plan.Exchanges {
		errs = append(errs, channel.ExchangeDelete(exchange.Name, false, false))
	}

	return errors.Join(errs...)
}
