package peers

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/wagslane/go-rabbitmq"

	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// goRabbitMQ is github.com/wagslane/go-rabbitmq. It has no retries of its own. Its way to say that
// a message has failed is NackDiscard, "dropped or delivered to a server configured dead-letter
// queue"; that one has a TTL and dead-letters back to the main queue.
type goRabbitMQ struct{}

func (goRabbitMQ) String() string { return "go-rabbitmq" }

// arguments let the broker forward what is nacked: by default at most once. A quorum queue can do
// it at least once as well, and does where the retry queue is as safe.
func (g goRabbitMQ) arguments(q queue) amqp091.Table {
	arguments := amqp091.Table{
		"x-queue-type":              q.queueType,
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": g.beside(q).retry,
	}
	if q.queueType == quorum && q.retryType == quorum {
		atLeastOnce(arguments)
	}

	return arguments
}

func (goRabbitMQ) beside(q queue) objects { return objects{retry: q.name + ".retry"} }

func (g goRabbitMQ) start(b *testing.B, uri string, q queue, c *calls) func() {
	b.Helper()
	g.declareRetryQueue(b, uri, q)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// Its consumer ends for good when it cannot declare its queue in the moment after it
			// has reconnected: a service would end, and be started again by who watches over it.
			if err := g.serve(ctx, uri, q, c); err != nil {
				pause(ctx, time.Second)
			}
		}
	}()

	return func() {
		cancel()
		<-ended
	}
}

// serve consumes until the context ends or the client gives up.
func (g goRabbitMQ) serve(ctx context.Context, uri string, q queue, c *calls) error {
	connection, err := rabbitmq.NewConn(uri, rabbitmq.WithConnectionOptionsLogger(quiet{}))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // it may be lost
	consumer, err := rabbitmq.NewConsumer(connection, q.name,
		rabbitmq.WithConsumerOptionsQueueDurable,
		rabbitmq.WithConsumerOptionsQueueArgs(rabbitmq.Table(g.arguments(q))),
		rabbitmq.WithConsumerOptionsQOSPrefetch(prefetch),
		rabbitmq.WithConsumerOptionsLogger(quiet{}),
	)
	if err != nil {
		return err
	}
	defer consumer.Close()

	ended := make(chan error, 1)
	go func() {
		ended <- consumer.Run(func(d rabbitmq.Delivery) rabbitmq.Action {
			_, waited := d.Headers["x-death"]
			c.handle(d.MessageId, waited)
			if waited {
				return rabbitmq.Ack
			}

			return rabbitmq.NackDiscard
		})
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// declareRetryQueue does what the client has no function for.
func (g goRabbitMQ) declareRetryQueue(b *testing.B, uri string, q queue) {
	b.Helper()
	connection := rabbit.New(b, uri).Dial()
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	_, err = channel.QueueDeclare(g.beside(q).retry, true, false, false, false, q.waiting("", q.name))
	require.NoError(b, err)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// quiet is a logger that says nothing.
type quiet struct{}

func (quiet) Fatalf(string, ...any) {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Infof(string, ...any)  {}
func (quiet) Debugf(string, ...any) {}
func (quiet) Tracef(string, ...any) {}

// versionOf is that of a module in go.mod: a test binary does not know it.
func versionOf(t testing.TB, module string) string {
	t.Helper()
	goMod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(goMod), module+" ")
	version, _, _ := strings.Cut(rest, "\n")

	return version
}
