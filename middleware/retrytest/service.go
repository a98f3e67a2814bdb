package retrytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// Service is what a message meets: one handler under its policy. Only a handler is required. Fields
// of the same name as in amqpretry.Options are those.
//
// A Service is a value: what Run is given it does not change, and one can be run any number of
// times, also at the same time, as far as its handler, its middlewares and its clock can.
type Service struct {
	// Policy of the topic. The zero value is config.Default.
	Policy config.Policy
	// Policies of a whole service, of which the topic's is taken. Instead of Policy.
	Policies config.Policies

	// Handler is as for Router.AddHandler, ConsumerHandler as for Router.AddConsumerHandler: one of
	// them.
	Handler         message.HandlerFunc
	ConsumerHandler message.NoPublishHandlerFunc
	// Middlewares are those behind the retry middleware, in the order in which a router is given
	// them.
	Middlewares []message.HandlerMiddleware

	// Topic defaults to "topic", Queue to the topic, HandlerName to "handler".
	Topic, Queue, HandlerName string

	// Logger is the router's and the retry middleware's. Optional.
	Logger watermill.LoggerAdapter

	// The following are those of amqpretry.Options; Host is this machine's name there.
	Decide      func(retry.Failure) error
	ErrorText   func(error) string
	PayloadText func(payload []byte) string
	PanicStacks bool
	OnEvent     func(retry.Event)
	Host        string

	// Clock is that of the life. Defaults to one of its own.
	Clock *Clock
	// Random is what the dice show for the policy's Jitter, each time: from 0, the whole delay, to
	// less than 1, the shortest one.
	Random float64

	// Expiration and Timestamp are the properties that the message is published with; zero for
	// none. As on the wire, they have whole milliseconds and whole seconds.
	Expiration time.Duration
	Timestamp  time.Time
	// Unmarshal is the marshaler's part: an error means that the message cannot be decoded, and no
	// handler sees it. Called at each delivery, with the message as it would be handed out.
	// Optional.
	Unmarshal func(*message.Message) error

	// Faults are what goes wrong, by the call of the handler, 1 for the first of this life, or
	// [EveryCall].
	Faults map[int]Fault

	// MaxDeliveries is how often the message may be delivered before the life is given up with an
	// [EndlessError]. Defaults to 10,000.
	MaxDeliveries int
}

// defaultMaxDeliveries is what [Service.MaxDeliveries] is when it is 0.
const defaultMaxDeliveries = 10_000

func (s Service) withDefaults() Service {
	if s.Topic == "" {
		s.Topic = "topic"
	}
	if s.Queue == "" {
		s.Queue = s.Topic
	}
	if s.HandlerName == "" {
		s.HandlerName = "handler"
	}
	if s.Logger == nil {
		s.Logger = watermill.NopLogger{}
	}
	if s.Clock == nil {
		s.Clock = &Clock{}
	}
	if s.MaxDeliveries == 0 {
		s.MaxDeliveries = defaultMaxDeliveries
	}

	return s
}

// policy is the one that holds.
func (s Service) policy() config.Policy {
	if s.Policy.IsZero() {
		return s.Policies.For(s.Topic)
	}

	return s.Policy.WithDefaults()
}

// validate reports all problems in one error.
func (s Service) validate() error {
	errs := append(config.WithPath("Service.Policy", s.Policy.Validate()),
		config.WithPath("Service", s.Policies.Validate())...)
	add := func(field, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{Path: "Service." + field, Problem: problem, Wanted: wanted,
			Found: found})
	}

	switch {
	case s.Handler == nil && s.ConsumerHandler == nil:
		add("Handler", "missing", "the handler under test, here or in ConsumerHandler", "")
	case s.Handler != nil && s.ConsumerHandler != nil:
		add("Handler", "two handlers", "the only one", "ConsumerHandler as well")
	}
	if !s.Policy.IsZero() && (!s.Policies.Default.IsZero() || len(s.Policies.Topics) > 0) {
		add("Policy", "two policies", "the only one", "Policies as well")
	}
	if len(s.Policies.Topics) > 0 && s.Topic == "" {
		add("Topic", "missing", "the topic whose policy is meant, as there are Policies of several", "")
	}
	if slices.ContainsFunc(s.Middlewares, func(m message.HandlerMiddleware) bool { return m == nil }) {
		add("Middlewares", "missing", "middlewares", "nil")
	}
	if s.Random < 0 || s.Random >= 1 || s.Random != s.Random {
		add("Random", "out of bounds", "0 or more and less than 1", fmt.Sprint(s.Random))
	}
	if s.Expiration < 0 {
		add("Expiration", "out of bounds", "1ms or more, or 0 for none", s.Expiration.String())
	}
	if s.MaxDeliveries < 0 {
		add("MaxDeliveries", "out of bounds", fmt.Sprintf("1 or more, or 0 for %d", defaultMaxDeliveries),
			fmt.Sprint(s.MaxDeliveries))
	}
	for _, call := range slices.Sorted(maps.Keys(s.Faults)) {
		path := fmt.Sprintf("Faults[%d]", call)
		if call < 0 {
			add(path, "no call", "1 for the first, or EveryCall", fmt.Sprint(call))
		}
		switch fault := s.Faults[call]; fault {
		case Unpublishable:
			if s.Handler == nil {
				add(path, "nothing to publish", "left out with a ConsumerHandler, which has no outputs", string(fault))
			}
		case Shutdown, Crash, "":
		default:
			add(path, "unknown fault", fmt.Sprintf("%s, %s or %s", Shutdown, Crash, Unpublishable),
				fmt.Sprintf("%q", fault))
		}
	}

	return errors.Join(errs...)
}

// Run plays the life of a message, from its publishing to its end. msg itself is not changed, and
// nobody acknowledges it. The Err of the result tells a mistake of the service, and every assertion
// reports it.
//
// The handler is called in a goroutine of the router, as in a service. So what ends its goroutine,
// such as t.FailNow or require, is a failed attempt: the test fails, and the life goes on. Run
// returns when the life has ended, and does not wait for less than the handler does: one that
// blocks for ever blocks Run.
func Run(service Service, msg *message.Message) Result {
	if err := service.validate(); err != nil {
		return Result{Err: err}
	}
	if msg == nil {
		return Result{Err: &config.FieldError{Path: "msg", Problem: "missing", Wanted: "the message to be published",
			Found: "nil"}}
	}

	service = service.withDefaults()

	return play(service, publish(service, msg))
}

// Replay plays the next life of a dead letter that was moved back to its queue: of the same
// service, or of one that was repaired meanwhile. Without a clock of its own, the service begins
// when the life before has ended.
func (r Result) Replay(service Service) Result {
	if r.DeadLetter == nil {
		return Result{Err: fmt.Errorf("there is no dead letter to replay: %s", r.summary())}
	}
	if err := service.validate(); err != nil {
		return Result{Err: err}
	}
	if service.Clock == nil {
		service.Clock = NewClock(r.Ended)
	}

	return play(service.withDefaults(), r.DeadLetter.queued)
}
