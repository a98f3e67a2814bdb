// Package tidy deletes what an example has declared, so that it leaves no queues on your broker. No
// service does that.
package tidy

import (
	"errors"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Planner is a retrier, for any version of watermill-amqp.
type Planner interface {
	Plan(topic string) (topology.Plan, error)
}

// Up deletes the queues and retry exchanges of topics, with the messages that are left in them. It
// asks the retrier for their names, and prints an error to the standard error. Call it when nothing
// consumes from them any more.
func Up(uri string, retrier Planner, topics ...string) {
	if err := up(uri, retrier, topics); err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove what the example has declared for %q: %v\n", topics, err)
	}
}

// Topic is [Up] for a topic under policies, without a retrier of yours. No policy means the default
// one.
func Topic(uri, topic string, policies ...config.Policy) {
	if len(policies) == 0 {
		policies = []config.Policy{{}}
	}
	for _, policy := range policies {
		retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
			Policies: config.Policies{Default: policy}, Logger: watermill.NopLogger{},
		})
		if err != nil {
			fmt.Fprintf(os.Stderr, "cannot remove what the example has declared for %q: %v\n", topic, err)
			return
		}
		Up(uri, retrier, topic)
		_ = retrier.Close() // it has no connection
	}
}

// Exchanges deletes the exchanges that publishers send to. They belong to all services of a topic,
// so that [Up] leaves them alone.
func Exchanges(uri string, names ...string) {
	err := with(uri, func(channel *amqp091.Channel) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, channel.ExchangeDelete(name, false, false))
		}

		return errors.Join(errs...)
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove the exchanges %q: %v\n", names, err)
	}
}

// Ladder deletes a ladder with the messages that wait in it, and the landing queues of topics that
// are queues or exchanges. A ladder with the default prefix belongs to all services of the virtual
// host, so it refuses that one, and Up leaves ladders alone.
func Ladder(uri string, of config.Ladder, topics ...string) {
	err := with(uri, func(channel *amqp091.Channel) error {
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
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove the ladder %q: %v\n", of.Prefix, err)
	}
}

func up(uri string, retrier Planner, topics []string) error {
	return with(uri, func(channel *amqp091.Channel) error {
		var errs []error
		for _, topic := range topics {
			plan, err := retrier.Plan(topic)
			if err != nil {
				return err
			}
			errs = append(errs, remove(channel, plan))
		}

		return errors.Join(errs...)
	})
}

func with(uri string, work func(*amqp091.Channel) error) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}

	return work(channel)
}

// remove deletes what a plan has. RabbitMQ does not mind if something is missing.
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
