package crashes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// service says what a process is to do. It is started as this test binary, with the service in the
// environment.
type service struct {
	URI         string
	Queues      []string
	QueueType   string
	Concurrency int
	Prefetch    int
	Work        time.Duration // how long an innocent takes
	Fuse        time.Duration // how long a killer takes until it kills

	// Of a service in the process of its test.
	Dial         func(network, address string) (net.Conn, error) `json:"-"`
	CloseTimeout time.Duration                                   `json:"-"`
	hear         func(line string)
}

const (
	variable = "AMQPRETRY_CRASHES_SERVICE"
	killed   = 3 // exit code
)

// What a service says, a line each on its standard output.
const (
	saidDone    = "done"    // id
	saidAlone   = "alone"   // id x-delivery-count
	saidCharged = "charged" // id: a message was taken for the one that crashes its consumers
	saidDead    = "dead"    // id reason
	saidReady   = "ready"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(variable); spec != "" {
		if err := serve(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// say tells the test: in a process of its own by one write, of which nothing is buffered when the
// process dies.
func (s *service) say(what ...any) {
	if s.hear != nil {
		s.hear(fmt.Sprintln(what...))
		return
	}
	_, _ = fmt.Fprintln(os.Stdout, what...)
}

// logger says with which count messages are handled alone.
type logger struct {
	watermill.NopLogger
	service *service
}

func (l logger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l logger) Debug(_ string, fields watermill.LogFields) {
	if id, n := fields["message_id"], fields["redeliveries"]; id != nil && n != nil {
		l.service.say(saidAlone, id, n)
	}
}

func (s *service) config() amqp.Config {
	conf := amqp.NewDurableQueueConfig(s.URI)
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": s.QueueType}
	if s.QueueType == "quorum" {
		conf.Queue.Arguments["x-delivery-limit"] = int64(100_000) // only the crash limit is measured
	}
	if s.Dial != nil {
		conf.Connection.AmqpConfig = &amqp091.Config{Dial: s.Dial, Locale: "en_US"}
	}
	conf.Connection.Reconnect = &amqp.ReconnectConfig{
		BackoffInitialInterval: 20 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 200 * time.Millisecond,
	}

	return conf
}

// policy has exact delays with STRATEGY=ladder. Each service has a ladder of its own, which its
// test removes.
func (s *service) policy() config.Policy {
	policy := config.Policy{Delays: []time.Duration{200 * time.Millisecond}}
	if os.Getenv("STRATEGY") == string(config.StrategyLadder) {
		policy.Strategy, policy.Ladder = config.StrategyLadder, config.Ladder{Prefix: s.Queues[0], Levels: 2}
	}

	return policy
}

func (s *service) options() amqpretry.Options {
	return amqpretry.Options{
		Policies:     config.Policies{Default: s.policy()},
		Concurrency:  s.Concurrency,
		Prefetch:     s.Prefetch,
		CloseTimeout: s.CloseTimeout,
		Logger:       logger{service: s},
		OnEvent:      s.tell,
	}
}

func (s *service) tell(e retry.Event) {
	switch {
	case e.Kind == retry.EventUnhandled && e.Class == retry.ClassCrashed:
		s.say(saidCharged, e.Message.UUID)
	case e.Kind == retry.EventDeadLettered:
		s.say(saidDead, e.Message.UUID, e.Verdict.Reason)
	}
}

func (s *service) handle(msg *message.Message) error {
	if strings.HasPrefix(msg.UUID, "killer") {
		<-time.After(s.Fuse)
		os.Exit(killed)
	}
	<-time.After(s.Work)
	s.say(saidDone, msg.UUID)

	return nil
}

// router makes a router with a handler for each queue. The caller closes the retrier after it.
func (s *service) router(conf message.RouterConfig, handler message.NoPublishHandlerFunc) (*adapter.Retrier,
	*message.Router, error) {
	retrier, err := adapter.New(s.config(), s.options())
	if err != nil {
		return nil, nil, err
	}
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return nil, nil, err
	}
	router, err := message.NewRouter(conf, watermill.NopLogger{})
	if err != nil {
		return nil, nil, err
	}
	router.AddMiddleware(retrier.Middleware)
	for i, queue := range s.Queues {
		router.AddConsumerHandler(fmt.Sprint("handler-", i), queue, subscriber, handler)
	}

	return retrier, router, nil
}

// serve runs a service until its standard input ends.
func serve(spec string) error {
	var s service
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	retrier, router, err := s.router(message.RouterConfig{}, s.handle)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = router.Close()
	}()
	go func() {
		<-router.Running()
		s.say(saidReady)
	}()
	if err := router.Run(context.Background()); err != nil {
		return err
	}

	return retrier.Close()
}
