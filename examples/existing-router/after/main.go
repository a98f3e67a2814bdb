// After is the service of the folder before, with retries and a dead-letter queue. Look at the five
// lines that end with a number: nothing else has changed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/examples/demo"
)

// bank is closed for half a second after the first call.
type bank struct {
	calls  int
	opens  time.Time
	opened func()
}

// charge is the handler.
func (b *bank) charge(*message.Message) error {
	if b.calls++; b.calls == 1 {
		b.opens = time.Now().Add(500 * time.Millisecond)
	}
	if time.Now().Before(b.opens) {
		return errors.New("the bank is closed")
	}
	b.opened()

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
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	topic := "payments-" + watermill.NewShortUUID()
	defer demo.TidyTopic(uri, topic) // no service deletes its queues

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Logger: logger}) // 1
	if err != nil {
		return err
	}
	defer retrier.Close()                    // 2: after the router
	router.AddMiddleware(retrier.Middleware) // 3: before all other middlewares
	router.AddPlugin(retrier.CheckRouter)    // 4: Run fails if a middleware would lose retries
	router.AddMiddleware(middleware.Recoverer)
	subscriber, err := retrier.NewSubscriber() // 5: instead of amqp.NewSubscriber
	if err != nil {
		return err
	}
	b := &bank{opened: func() { go router.Close() }} // the program ends with the payment
	router.AddConsumerHandler("charge", topic, subscriber, b.charge)

	publisher, err := amqp.NewPublisher(conf, logger)
	if err != nil {
		return err
	}
	defer publisher.Close()
	if err := demo.Publish(publisher, subscriber, topic, "42 EUR"); err != nil {
		return err
	}
	if err := router.Run(ctx); err != nil {
		return err
	}
	fmt.Printf("the bank was called %d times\n", b.calls)

	return nil
}
