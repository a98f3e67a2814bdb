package tests

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// scenario is a life that is played twice: on a broker, and in the simulation for unit tests.
type scenario struct {
	policy     config.Policy
	handler    func(retry.Attempt) ([]*message.Message, error)
	expiration time.Duration
	metadata   map[string]string
	decide     func(retry.Failure) error
	refuse     bool // outputs
	undecoded  bool
	replay     bool // the dead letter, once
	end        retrytest.End
}

func always(err error) func(retry.Attempt) ([]*message.Message, error) {
	return func(retry.Attempt) ([]*message.Message, error) { return nil, err }
}

func postponedUpTo(policy config.Policy, age time.Duration) config.Policy {
	policy.MaxPostpone = age
	return policy
}

var errUndecoded = errors.New("no such schema")

type undecoding struct{ amqp.DefaultMarshaler }

func (undecoding) Unmarshal(amqp091.Delivery) (*message.Message, error) { return nil, errUndecoded }

func strategyScenarios(t *testing.T) map[string]scenario {
	t.Helper()
	failed := errors.New("the warehouse does not answer")
	all := map[string]scenario{}
	policies := map[string]config.Policy{"cycle": cyclePolicy(), "redelivery": redeliveryPolicy()}
	if hasNative(t) {
		policies["native"] = nativePolicy()
	}
	for name, policy := range policies {
		aged := policy
		aged.MaxAge = time.Hour
		all[name+", exhausted"] = scenario{policy: policy, handler: always(failed), end: retrytest.DeadLettered}
		all[name+", by its age"] = scenario{policy: aged, handler: always(failed), end: retrytest.DeadLettered}
		all[name+", expiring"] = scenario{policy: policy, expiration: time.Hour, handler: always(failed),
			end: retrytest.DeadLettered}
		all[name+", replayed"] = scenario{policy: policy, replay: true, handler: always(failed),
			end: retrytest.DeadLettered}
		all[name+", retry after and postpone"] = scenario{policy: policy, end: retrytest.Succeeded,
			handler: func(a retry.Attempt) ([]*message.Message, error) {
				switch a.Calls {
				case 0:
					return nil, failed
				case 1:
					return nil, retry.RetryAfter(150*time.Millisecond, failed)
				case 2:
					return nil, retry.Postpone(50 * time.Millisecond)
				case 3:
					return nil, failed
				}

				return nil, nil
			}}
	}

	return all
}

func scenarios() map[string]scenario {
	failed := errors.New("the warehouse does not answer")
	twice := config.Policy{Delays: ms(100, 200)}
	long := make([]byte, 3000)
	for i := range long {
		long[i] = "\"x\n\xff"[i%4]
	}

	return map[string]scenario{
		"succeeds": {policy: twice, handler: always(nil), end: retrytest.Succeeded},
		"succeeds at last": {policy: twice, end: retrytest.Succeeded,
			handler: func(a retry.Attempt) ([]*message.Message, error) {
				if a.Last {
					return nil, nil
				}

				return nil, fmt.Errorf("call %d: %w", a.Calls+1, failed)
			}},
		"exhausted":  {policy: twice, handler: always(failed), end: retrytest.DeadLettered},
		"long texts": {policy: twice, handler: always(errors.New(string(long))), end: retrytest.DeadLettered},
		"a long history": {policy: config.Policy{Delays: ms(20), Retries: 14}, handler: always(failed),
			end: retrytest.DeadLettered},
		"permanent": {policy: twice, handler: always(retry.Permanent(failed)), end: retrytest.DeadLettered},
		"never retry": {
			policy: config.Policy{NeverRetry: []config.ErrorMatch{config.Is(failed)}}, end: retrytest.DeadLettered,
			handler: always(fmt.Errorf("wrapped: %w", failed)),
		},
		"drop": {policy: twice, handler: always(retry.Drop(failed)), end: retrytest.Dropped},
		"retry after": {
			policy: twice, handler: always(retry.RetryAfter(150*time.Millisecond, failed)), end: retrytest.DeadLettered,
		},
		"retry after more than any delay": {
			policy:  config.Policy{Delays: ms(2500), Retries: 1},
			handler: always(retry.RetryAfter(4900*time.Millisecond, failed)), // the second wait may begin late
			end:     retrytest.DeadLettered,
		},
		"postpone": {policy: twice, end: retrytest.Succeeded, handler: func(a retry.Attempt) ([]*message.Message,
			error) {
			switch a.Calls {
			case 0, 2:
				return nil, retry.Postpone(50 * time.Millisecond)
			case 1:
				return nil, failed
			}

			return nil, nil
		}},
		"postponed too long": {
			policy: config.Policy{Delays: ms(100), MaxPostpone: 90 * time.Millisecond}, end: retrytest.DeadLettered,
			handler: always(retry.Postpone(time.Second)),
		},
		"immediate": {
			policy: config.Policy{Delays: ms(100), Immediate: 2}, end: retrytest.DeadLettered,
			metadata: map[string]string{"tenant": "acme"},
			handler:  always(failed),
		},
		"panic": {policy: twice, end: retrytest.DeadLettered, handler: func(retry.Attempt) ([]*message.Message, error) {
			panic("at the disco")
		}},
		"without retries": {policy: config.Policy{Mode: config.ModeDeadLetter}, handler: always(failed),
			end: retrytest.DeadLettered},
		"unpublishable": {
			policy: twice, refuse: true, end: retrytest.DeadLettered,
			handler: func(retry.Attempt) ([]*message.Message, error) {
				return message.Messages{message.NewMessage("output", nil)}, nil
			},
		},
		"expired by its policy": {
			policy: config.Policy{Delays: ms(50, 10_000), MaxAge: 5 * time.Second}, handler: always(failed),
			end: retrytest.DeadLettered,
		},
		"expired by itself": {
			policy: config.Policy{Delays: ms(50, 10_000)}, expiration: 5 * time.Second, handler: always(failed),
			end: retrytest.DeadLettered,
		},
		"expired and dropped": {
			policy:  config.Policy{Delays: ms(50, 10_000), MaxAge: 5 * time.Second, OnExpiry: config.ExpiryDrop},
			handler: always(failed),
			end:     retrytest.Dropped,
		},
		"undecodable": {policy: twice, undecoded: true, end: retrytest.DeadLettered},
		"undecodable, and tried again": {policy: twice, undecoded: true, end: retrytest.DeadLettered,
			decide: func(f retry.Failure) error {
				return retry.Transient(f.Err)
			}},
		"decided otherwise": {policy: twice, handler: always(failed), end: retrytest.DeadLettered,
			decide: func(f retry.Failure) error {
				if f.Attempt.Number == 2 {
					return retry.Permanent(fmt.Errorf("enough: %w", f.Err))
				}

				return nil
			}},
		"exact": {policy: exact(ms(100, 300)...).Default, handler: always(failed), end: retrytest.DeadLettered},
		"exact, retry after": {
			policy:  exact(ms(100, 300)...).Default,
			handler: always(retry.RetryAfter(1234*time.Millisecond, failed)), end: retrytest.DeadLettered,
		},
		"exact, postpone": {policy: exact(ms(100, 200)...).Default, end: retrytest.Succeeded,
			handler: func(a retry.Attempt) ([]*message.Message, error) {
				switch a.Calls {
				case 0, 2:
					return nil, retry.Postpone(450 * time.Millisecond)
				case 1:
					return nil, failed
				}

				return nil, nil
			}},
		"exact, postponed too long": {
			policy: postponedUpTo(exact(ms(100)...).Default, 90*time.Millisecond), end: retrytest.DeadLettered,
			handler: always(retry.Postpone(time.Second)),
		},
		"replayed": {
			policy: twice, replay: true, handler: always(failed), end: retrytest.DeadLettered,
			metadata: map[string]string{"tenant": "acme"},
		},
	}
}

// What the simulation for unit tests says is what happens on a broker.
func TestRetrytestIsFaithful(t *testing.T) {
	t.Parallel()

	all := scenarios()
	maps.Copy(all, strategyScenarios(t))
	each(t, all, func(t *testing.T, _ string, s scenario) {
		queue := uniqueName("faithful")
		want := s.onBroker(t, queue)
		got, result := s.simulated(t, queue)
		// a confirm can be told after what the next delivery has come to
		slices.Sort(want.Done)
		slices.Sort(got.Done)
		assert.Equal(t, want, got, "%s", result)
		assert.Equal(t, s.end, result.End)
		assert.NotEmpty(t, want.Events, "seen on the broker")
	})
}

// witnessed is what can be seen of a life on both sides. Times are not: a wait on a broker is a
// minimum.
type witnessed struct {
	Calls    []string            // of the handler, with what it was told
	Verdicts []string            // as they are logged
	Events   []string            // of attempts and failures
	Done     []string            // events of what was done about these, which come when the broker has confirmed it
	Headers  []map[string]string // of the dead letters
	History  [][]string
}

func (w *witnessed) call(msg *message.Message, a retry.Attempt) {
	metadata := maps.Clone(msg.Metadata)
	delete(metadata, "_watermill_amqp_redelivered") // watermill-amqp v3 tells it of what the broker brings back
	w.Calls = append(w.Calls, fmt.Sprintf("%s %v: %d/%d, try %d, failures %d, calls %d, last %t, replays %d, %q, "+
		"history of %d",
		msg.UUID, metadata, a.Number, a.MaxRetries, a.Try, a.Failures, a.Calls, a.Last, a.Replays, a.LastError,
		len(a.History)))
}

func (w *witnessed) logged(l *logs) {
	for _, e := range l.All() {
		if verdict, ok := e.Fields["verdict"]; ok {
			w.Verdicts = append(w.Verdicts, fmt.Sprintf("%s: %v, %v, calls %v", e.Text, e.Fields["class"], verdict,
				e.Fields["calls"]))
		}
	}
}

func (w *witnessed) told(events []retry.Event) {
	for _, e := range events {
		text := fmt.Sprintf("%s %s, %s, %s: attempt %d, try %d, %d calls, %s, %s, %v",
			e.Queue, e.Handler, e.Message.UUID, e.Kind, e.Attempt.Number, e.Attempt.Try, e.Calls, e.Class, e.Verdict,
			e.Err)
		switch e.Kind {
		case retry.EventCall, retry.EventSucceeded, retry.EventFailed, retry.EventUnhandled, retry.EventRequeued:
			w.Events = append(w.Events, text)
		default:
			w.Done = append(w.Done, text)
		}
	}
}

var ofMessages = []retry.EventKind{
	retry.EventCall, retry.EventSucceeded, retry.EventFailed, retry.EventUnhandled, retry.EventRequeued,
	retry.EventRetried,
	retry.EventPostponed, retry.EventDeadLettered, retry.EventDropped, retry.EventAbandoned,
}

// letter keeps what does not depend on time and chance.
func (w *witnessed) letter(headers map[string]string) {
	fields := map[string]any{}
	kept := map[string]string{}
	for key, value := range headers {
		fields[key] = value
		switch key {
		case header.ID, header.Host, header.History, amqp.DefaultMessageUUIDHeaderKey:
		case "x-delivery-count": // the broker's, of this test's own basic.get
		case header.Since, header.Deadline, header.NotBefore, header.FirstFailure, header.LastFailure:
			kept[key] = "a time"
		default:
			kept[key] = value
		}
	}
	w.Headers = append(w.Headers, kept)

	state, _ := wire.Read(fields, wire.Reading{Queue: headers[header.Queue]})
	var history []string
	for _, a := range state.History {
		history = append(history, fmt.Sprintf("%d: %s, %q, %q", a.Number, a.Type, a.Error, a.Reason))
	}
	w.History = append(w.History, history)
}

const faithful = "faithful-1"

func (s scenario) onBroker(t *testing.T, queue string) witnessed {
	var w witnessed
	c := setup{Queue: queue}
	if s.policy.Strategy.ByBroker() {
		c.QueueType = "quorum"
	}
	c.Options.Policies = config.Policies{Default: s.policy}
	c.Options.Decide = s.decide
	c.Options.CloseTimeout = time.Minute // to hear of every copy
	c.Configure = func(conf *amqp.Config) {
		if s.undecoded {
			conf.Marshaler = undecoding{}
		}
	}
	c.Route = func(svc *service) {
		handler := func(msg *message.Message) ([]*message.Message, error) {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			w.call(msg, attempt)

			return s.handler(attempt)
		}
		if s.refuse {
			svc.Router.AddHandler("handler", queue, svc.Sub, "outputs", refusing{}, handler)
		} else {
			svc.Router.AddConsumerHandler("handler", queue, svc.Sub, func(msg *message.Message) error {
				_, err := handler(msg)
				return err
			})
		}
	}
	svc := start(t, c)

	p := rabbit.Message(faithful, "{}")
	if s.expiration > 0 {
		p.Expiration = fmt.Sprint(s.expiration.Milliseconds())
	}
	for key, value := range s.metadata {
		p.Headers[key] = value
	}
	svc.Broker.Publish(queue, p)

	lives := 1
	if s.replay {
		lives = 2
	}
	switch s.end {
	case retrytest.DeadLettered:
		for life := range lives {
			letter := svc.Broker.Take(svc.dlq(), 1)[0]
			headers := map[string]string{}
			for key := range letter.Headers {
				headers[key] = rabbit.Text(letter, key)
			}
			w.letter(headers)
			if life+1 < lives {
				svc.Broker.Publish(queue, amqp091.Publishing{Headers: letter.Headers, Body: letter.Body,
					DeliveryMode: amqp091.Persistent})
			}
		}
	case retrytest.Dropped:
		await.Until(t, func() bool { return len(svc.Events(retry.EventDropped)) == 1 }, "dropped")
	case retrytest.Succeeded:
		await.Until(t, func() bool { return len(svc.Events(retry.EventSucceeded)) == 1 }, "succeeded")
	}
	svc.close()
	require.Equal(t, 0, svc.Broker.Depth(queue), "that is the end of it")
	w.logged(svc.Logs)
	w.told(svc.Events(ofMessages...))
	if s.undecoded {
		w.Calls = []string{"none"}
	}

	return w
}

func (s scenario) simulated(t *testing.T, queue string) (witnessed, retrytest.Result) {
	t.Helper()

	var (
		w      witnessed
		events []retry.Event
	)
	l := newLogs(t)
	service := retrytest.Service{
		Policy: s.policy, Topic: queue, Expiration: s.expiration, Decide: s.decide, Logger: l,
		Clock:   retrytest.NewClock(time.Now()),
		OnEvent: func(e retry.Event) { events = append(events, e) },
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			w.call(msg, attempt)

			return s.handler(attempt)
		},
	}
	if s.refuse {
		service.Faults = map[int]retrytest.Fault{retrytest.EveryCall: retrytest.Unpublishable}
	}
	if s.undecoded {
		service.Unmarshal = func(*message.Message) error { return errUndecoded }
		w.Calls = []string{"none"}
	}
	msg := message.NewMessage(faithful, []byte("{}"))
	for key, value := range s.metadata {
		msg.Metadata[key] = value
	}

	result := retrytest.Run(service, msg)
	witness := func(r retrytest.Result) {
		require.NoError(t, r.Err)
		if letter := r.DeadLetter; letter != nil {
			assert.Equal(t, faithful, letter.Message.UUID)
			assert.Equal(t, letter.Headers[header.Reason], string(letter.Reason))
			assert.Equal(t, letter.Headers[header.Error], letter.Error)
			w.letter(letter.Headers)
		}
	}
	witness(result)
	if s.replay {
		result = result.Replay(service)
		witness(result)
	}
	w.logged(l)
	w.told(events)

	return w, result
}

// What the simulation spells by itself is spelled as everywhere else.
func TestRetrytestNames(t *testing.T) {
	t.Parallel()

	r := retrytest.Run(retrytest.Service{
		Unmarshal: func(msg *message.Message) error {
			assert.Empty(t, msg.Metadata)
			return errors.New("undecodable")
		},
		Decide: func(f retry.Failure) error {
			assert.Equal(t, message.Metadata{amqp.DefaultMessageUUIDHeaderKey: faithful}, f.Message.Metadata,
				"it is undecoded")
			return nil
		},
		ConsumerHandler: succeed,
	}, message.NewMessage(faithful, nil))
	r.AssertDeadLettered(t, retry.ReasonUndecodable)
}
