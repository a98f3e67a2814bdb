// Graceful-shutdown shows the end of a pod: it gets SIGTERM while a handler runs, lets it finish,
// and leaves the rest on the broker, uncounted. Look at
//
//   - pack, the handler: it ends early when the time for the shutdown is over,
//   - run: what is closed, in which order,
//   - kubernetes.yaml beside this file: its times fit those here.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/health"
	"github.com/amqpretry/watermill-retry/examples/demo"
)

// The times of a shutdown: a handler may take as long as the retrier waits, the router waits
// longer, and Kubernetes longer than both together.
const (
	handlersEnd = 20 * time.Second // Options.CloseTimeout
	routerEnds  = 30 * time.Second // RouterConfig.CloseTimeout
)

// pack is the handler. It takes a while.
func pack(terminate func()) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		fmt.Printf("%s: packing\n", msg.UUID)
		if msg.UUID == "order-2" {
			terminate()
		}
		select {
		case <-time.After(500 * time.Millisecond):
			fmt.Printf("%s: packed\n", msg.UUID)
			return nil
		case <-msg.Context().Done(): // the time is over: the order goes back to its queue, uncounted
			return msg.Context().Err()
		}
	}
}

func main() {
	if err := run(context.Background(), os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	signals, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	topic := "orders-" + watermill.NewShortUUID()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: routerEnds}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{CloseTimeout: handlersEnd, Logger: logger})
	if err != nil {
		return err
	}
	defer demo.TidyTopic(uri, topic) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return errors.Join(err, retrier.Close())
	}
	router.AddConsumerHandler("pack", topic, subscriber, pack(terminate))
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return errors.Join(err, retrier.Close())
	}
	if err := demo.Publish(publisher, subscriber, topic, "order-1", "order-2", "order-3"); err != nil {
		return errors.Join(err, retrier.Close())
	}

	probes := &http.Server{
		Addr:              "127.0.0.1:0",                   // a service: ":8080"
		Handler:           health.Handler(retrier, router), // for kubernetes.yaml
		ReadHeaderTimeout: time.Second,
	}
	go func() { _ = probes.ListenAndServe() }()
	defer probes.Close()

	// Not the context of the signals: its end would end the contexts of the handlers at once.
	running, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		<-signals.Done()
		fmt.Println("SIGTERM: closing")
		select {
		case <-router.Running():
			_ = router.Close() // waits for the handlers that run
		default:
			end() // it still subscribes, and no handler runs: Close would wait for the broker
		}
	}()
	err = router.Run(running)
	err = errors.Join(err, retrier.Close()) // after the router: copies of failed messages go over its connection
	left, leftErr := ready(uri, topic)
	fmt.Printf("closed: %d order is left for the next pod\n", left)

	return errors.Join(err, leftErr)
}

// terminate does what Kubernetes does at the end of a pod.
func terminate() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(syscall.SIGTERM)
	}
}

// ready counts the messages that wait for a consumer.
func ready(uri, queue string) (int, error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return 0, err
	}
	state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)

	return state.Messages, err
}
