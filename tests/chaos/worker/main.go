// Command worker is a service as users run it, which writes down everything that happens to it.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
	"github.com/amqpretry/watermill-retry/tests/chaos"
)

// notReady is the exit code of a worker that could not begin, as the broker was not there: whoever
// watches it starts it again.
const notReady = 3

func main() {
	settings := chaos.Settings{}
	ledger := flag.String("ledger", "", "file")
	name := flag.String("name", "", "of this process in the ledger")
	flag.Func("settings", "JSON", func(s string) error { return json.Unmarshal([]byte(s), &settings) })
	flag.Parse()

	book, err := chaos.OpenBook(*ledger, *name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := run(settings, book); err != nil {
		fmt.Fprintln(os.Stderr, "not ready:", err)
		os.Exit(notReady)
	}
}

func run(settings chaos.Settings, book *chaos.Book) error {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	connected := make(chan struct{})
	go endBefore(stop, connected)

	logger := watermill.NewStdLoggerWithOut(os.Stderr, false, false)
	services := []*service{}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 15 * time.Second}, logger)
	if err != nil {
		return err
	}
	for _, main := range []string{"quorum", "classic"} { // a config of watermill-amqp has one type of queue
		s, err := newService(settings, main, book, logger, router)
		if err != nil {
			return err
		}
		services = append(services, s)
	}
	go obey(os.Stdin)
	close(connected)

	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
		book.Write(chaos.Record{Kind: chaos.Started, Detail: string(settings.Version)})
	case err := <-ended:
		for _, s := range services {
			_ = s.retrier.Close()
		}
		return err
	}

	<-stop.Done()
	book.Write(chaos.Record{Kind: chaos.Closing})
	_ = router.Close()
	for _, s := range services {
		_ = s.retrier.Close()
	}
	book.Write(chaos.Record{Kind: chaos.Closed})

	return nil
}

// endBefore ends the process when it is told to before it has connected: nothing is in flight yet,
// and a proxy that is stuck may hold up the connection for long.
func endBefore(stop context.Context, connected <-chan struct{}) {
	select {
	case <-stop.Done():
		os.Exit(notReady)
	case <-connected:
	}
}

// obey carries out the commands "clock DURATION", which steps the clock.
func obey(in *os.File) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		d, err := time.ParseDuration(strings.TrimPrefix(lines.Text(), "clock "))
		if err == nil {
			err = chaos.StepClock(d)
		}
		if err != nil {
			panic(err)
		}
	}
}

// service is one retrier with its subscriber, and a handler for each topic.
type service struct {
	settings chaos.Settings
	retrier  *adapter.Retrier
	book     *chaos.Book
}

func newService(
	settings chaos.Settings, main string, book *chaos.Book, logger watermill.LoggerAdapter, router *message.Router,
) (*service, error) {
	s := &service{settings: settings, book: book}

	conf := amqp.NewDurableQueueConfig(settings.URI)
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": main}
	conf.Consume.Qos.PrefetchCount = settings.Prefetch
	conf.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 2 * time.Second, Locale: "en_US"}
	conf.Connection.Reconnect = &amqp.ReconnectConfig{
		BackoffInitialInterval: 100 * time.Millisecond, BackoffRandomizationFactor: 0.3, BackoffMultiplier: 1.5,
		BackoffMaxInterval: time.Second,
	}

	conf.Marshaler = picky{conf.Marshaler}

	var err error
	s.retrier, err = adapter.New(conf, amqpretry.Options{
		Policies:     chaos.Policies(settings.Version, main, settings.Broker),
		Logger:       logger,
		Concurrency:  settings.Concurrency,
		Prefetch:     settings.Prefetch, // a config's 1 would not be taken
		CloseTimeout: 5 * time.Second,
		HoldWarning:  2 * time.Second,
		OnEvent:      s.record,
	})
	if err != nil {
		return nil, err
	}
	subscriber, err := s.retrier.NewSubscriber()
	if err != nil {
		return nil, err
	}
	for _, topic := range chaos.TopicsOn(settings.Broker) {
		if topic.Main == main {
			router.AddConsumerHandler(topic.Name, topic.Name, subscriber, s.handler(topic.Name)).
				AddMiddleware(s.retrier.Middleware)
		}
	}

	return s, nil
}

func (s *service) handler(topic string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		record := chaos.Record{
			Kind: chaos.Called, Topic: topic, ID: msg.UUID, Attempt: attempt.Number,
			Digest: chaos.Digest(msg.Payload, msg.Metadata),
		}
		s.book.Write(record)
		err := fate.Handle(msg.UUID, attempt)
		if err == nil {
			record.Kind, record.Digest = chaos.Returned, ""
			s.book.Write(record)
			return nil
		}
		asked := chaos.Asked(topic, s.settings.Version, msg.UUID, attempt.Number, s.settings.Longest)
		if asked > 0 && errors.Is(err, fate.Err) {
			return retry.RetryAfter(asked, err)
		}

		return err
	}
}

// record keeps the events that say what became of a message, and of connections.
func (s *service) record(e retry.Event) {
	r := chaos.Record{Kind: chaos.Kind(e.Kind), Topic: e.Topic, Attempt: e.Attempt.Number}
	if e.Message != nil {
		// undecoded, it is a header like others
		r.ID = cmp.Or(e.Message.Metadata.Get(amqp.DefaultMessageUUIDHeaderKey), e.Message.UUID)
	}
	switch e.Kind {
	case retry.EventFailed, retry.EventUnhandled:
		r.Delay, r.Wait = e.Verdict.Delay, e.Verdict.Delay
		if e.Verdict.Wait > 0 {
			r.Wait = e.Verdict.Wait
		}
		r.Reason = string(e.Verdict.Reason)
		r.Detail, r.ByBroker = string(e.Verdict.Action), e.Verdict.ByBroker
	case retry.EventDeadLettered, retry.EventDropped:
		r.Reason = string(e.Verdict.Reason)
	case retry.EventRetried, retry.EventPostponed, retry.EventAbandoned, retry.EventRequeued:
	case retry.EventDisconnected, retry.EventBlocked, retry.EventTopologyRepaired:
		r.Detail = e.Connection
	default:
		return
	}
	s.book.Write(r)
}

// picky is a marshaler that refuses messages of one fate.
type picky struct{ amqp.Marshaler }

func (m picky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := m.Marshaler.Unmarshal(d)
	if err == nil && fate.Of(msg.UUID) == fate.Undecodable {
		return nil, errors.New("this message cannot be decoded")
	}

	return msg, err
}
