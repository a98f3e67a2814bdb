// Delayed-publish shows messages that are published now and delivered later. Look at
//
//   - send: Watermill's delay.For and delay.Until on a message, delay.WithContext for code that
//     makes messages itself,
//   - the event: it comes to both services when it is due,
//   - remind, the handler: a message that waits cannot be taken back, so it looks whether the
//     reminder is still wanted.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/examples/demo"
)

// service is one of three on a router. In real life, each is a process of its own.
type service struct {
	name, topic string
	conf        amqp.Config
	handler     message.NoPublishHandlerFunc
}

// paid are the orders that need no reminder any more.
var paid = map[string]bool{"order-2": true}

func remind(msg *message.Message) error {
	if paid[msg.UUID] {
		fmt.Printf("%s: no reminder, it is paid\n", msg.UUID)
		return nil
	}
	due, err := time.Parse(time.RFC3339, msg.Metadata.Get(wmdelay.DelayedUntilKey)) // stays on the message
	if err != nil {
		return err
	}
	fmt.Printf("%s: please pay, said too early: %t\n", msg.UUID, time.Now().Before(due))

	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	id := watermill.NewShortUUID()
	reminders, shipped := "reminders-"+id, "order-shipped-"+id
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	// A service leaves the ladder out: all services share that of the zero options. This one can be
	// deleted.
	options := delay.Options{Ladder: config.Ladder{Prefix: "delayed-publish-" + id, Levels: 2}}

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	defer demo.TidyLadder(uri, options.Ladder.Or(config.ScheduleLadder()), reminders, shipped)
	defer demo.TidyExchanges(uri, shipped)
	var left atomic.Int64
	left.Store(5) // three reminders, and an event for two services
	done := func() {
		if left.Add(-1) == 0 {
			go router.Close()
		}
	}
	publishers := map[string]message.Publisher{} // by topic
	for _, s := range []service{
		{"reminders", reminders, amqp.NewDurableQueueConfig(uri), remind},
		{"mails", shipped, fanOut(uri, "mails"), func(msg *message.Message) error {
			fmt.Printf("mails: %s is on its way\n", msg.UUID)
			return nil
		}},
		{"stock", shipped, fanOut(uri, "stock"), func(msg *message.Message) error {
			fmt.Printf("stock: %s has left\n", msg.UUID)
			return nil
		}},
	} {
		retrier, err := amqpv2.New(s.conf, amqpretry.Options{Logger: logger})
		if err != nil {
			return err
		}
		defer retrier.Close()
		defer demo.Tidy(uri, retrier, s.topic) // no service deletes its queues
		router.AddMiddleware(retrier.Middleware)
		router.AddPlugin(retrier.CheckRouter)
		subscriber, err := retrier.NewSubscriber()
		if err != nil {
			return err
		}
		router.AddConsumerHandler(s.name, s.topic, subscriber, func(msg *message.Message) error {
			defer done()
			return s.handler(msg)
		})
		publisher, err := retrier.NewPublisher() // for messages without a delay
		if err != nil {
			return err
		}
		if publishers[s.topic], err = retrier.NewDelayPublisher(publisher, options); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		select {
		case <-router.Running():
			err := send(ctx, publishers[reminders], reminders, publishers[shipped], shipped)
			if err != nil {
				go router.Close()
			}
			sent <- err
		case <-ctx.Done():
			sent <- nil
		}
	}()
	if err := router.Run(ctx); err != nil {
		return err
	}
	cancel()

	return <-sent
}

func fanOut(uri, name string) amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
}

// send publishes everything at once. Each Publish returns when the broker has the message.
func send(ctx context.Context, toReminders message.Publisher, reminders string, toShipped message.Publisher,
	shipped string,
) error {
	open := message.NewMessage("order-1", nil)
	wmdelay.Message(open, wmdelay.For(2*time.Second)) // a week, in real life
	cancelled := message.NewMessage("order-2", nil)
	wmdelay.Message(cancelled, wmdelay.For(time.Second))
	past := message.NewMessage("order-3", nil)
	wmdelay.Message(past, wmdelay.Until(time.Now().Add(-time.Hour))) // is published at once
	if err := toReminders.Publish(reminders, open, cancelled, past); err != nil {
		return err
	}

	event := message.NewMessage("order-4", nil)
	event.SetContext(wmdelay.WithContext(ctx, wmdelay.For(time.Second)))

	return toShipped.Publish(shipped, event)
}
