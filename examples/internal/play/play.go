// Package play runs a small service for an example: a router with the retry middleware and one handler for each topic,
// until every message has come to its end. What it takes to wire a real one is in examples/existing-router.
package play

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/retry"
)

// Main calls an example's run function with the broker of AMQP_URI. An interrupt ends its context, a second one the
// process.
func Main(run func(ctx context.Context, uri string, out io.Writer) error) {
	uri := os.Getenv("AMQP_URI")
	if uri == "" {
		log.Fatal("AMQP_URI is not set: run `scripts/broker run --private go run ./examples/NAME`, which starts a " +
			"RabbitMQ for it")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := run(ctx, uri, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// Wait waits until all is done, or until an interrupt, which is then the error.
func Wait(ctx context.Context, open *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		open.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Handlers by topic.
type Handlers map[string]message.NoPublishHandlerFunc

// Message that is published: its UUID is what the output calls it.
type Message struct {
	Topic, ID string
	// IsThere means that it is in its queue already.
	IsThere bool
}

// Run publishes the messages and returns when each was handled, dropped or dead-lettered. Dead letters are told of on
// out.
func Run(ctx context.Context, uri string, out *Writer, options amqpretry.Options, handlers Handlers,
	messages ...Message) error {
	var open sync.WaitGroup
	open.Add(len(messages))
	then := options.OnEvent
	options.OnEvent = func(e retry.Event) {
		if then != nil {
			then(e)
		}
		if e.Kind == retry.EventDeadLettered {
			defer open.Done()
			out.Printf("%s: dead-letter queue, %s, calls: %d\n", e.Message.UUID, e.Verdict.Reason, e.Calls)
		}
	}

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Consume.Qos.PrefetchCount = 10
	conf.Publish.ConfirmDelivery = true
	if options.Logger == nil {
		options.Logger = watermill.NopLogger{} // the examples print what happens
	}
	retrier, err := amqpretry.New(conf, options)
	if err != nil {
		return err
	}
	defer retrier.Close()
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(retrier.Config(), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware)
	for topic, handler := range handlers {
		router.AddConsumerHandler(topic, topic, subscriber, func(msg *message.Message) error {
			err := handler(msg)
			if err == nil || errors.Is(err, retry.ErrDrop) {
				open.Done()
			}

			return err
		})
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	for _, m := range messages {
		if m.IsThere {
			continue
		}
		if err := publisher.Publish(m.Topic, message.NewMessage(m.ID, []byte(m.ID))); err != nil {
			return err
		}
	}
	waited := Wait(ctx, &open)
	if err := router.Close(); err != nil {
		return err
	}

	return errors.Join(waited, <-stopped)
}

// Writer is written to from several goroutines.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
}

// To returns a writer to out.
func To(out io.Writer) *Writer { return &Writer{out: out} }

// Printf prints.
func (w *Writer) Printf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format, args...)
}
