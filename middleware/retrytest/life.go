package retrytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// queued is a message as it lies in a queue.
type queued struct {
	headers    map[string]any
	payload    []byte
	expiration string
	timestamp  time.Time
	waited     string // the retry queue that it comes from, as the broker tells
	deliveries int    // without an answer, as the broker counts them
	rejections int    // of a dead-letter cycle, as the broker counts them
}

// texts are its headers: a life begins with texts, and ours are.
func (q queued) texts() map[string]string {
	texts := make(map[string]string, len(q.headers))
	for key, value := range q.headers {
		texts[key] = asText(value)
	}

	return texts
}

func asText(value any) string {
	text, _ := value.(string)
	return text
}

// uuidKey is where watermill-amqp's marshaler writes the UUID.
const uuidKey = "_watermill_message_uuid"

// publish makes of a message what a publisher of watermill-amqp makes of it, with the retrier's
// config.
func publish(s Service, msg *message.Message) queued {
	headers := map[string]any{}
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	headers[uuidKey] = msg.UUID

	published := wire.Strip(headers, false)
	for key, value := range headers {
		if header.IsOpt(key) { // the publisher's to use
			published[key] = value
		}
	}
	at := queued{headers: published, payload: slices.Clone(msg.Payload), timestamp: s.Timestamp.Truncate(time.Second)}
	if s.Expiration > 0 {
		at.expiration = strconv.FormatInt(max(1, s.Expiration.Milliseconds()), 10)
	}

	return at
}

// life is a message on its way.
type life struct {
	service Service
	policy  config.Policy
	engine  *engine.Engine
	clock   *Clock
	out     chan *message.Message

	// The rest is shared with the goroutines in which the handler is called.
	mu      sync.Mutex
	current *delivery
	calls   int
	handled bool // the last call of the handler has succeeded
	dead    bool // the process is: nobody learns what happens in it
	result  Result
	open    bool // the last step is in its call
}

// play plays a life. The service is valid and complete.
func play(s Service, at queued) Result {
	l := &life{service: s, policy: s.policy(), clock: s.Clock, out: make(chan *message.Message)}
	l.engine = &engine.Engine{
		Logger: s.Logger, Host: s.Host,
		Decide: s.Decide, ErrorText: s.ErrorText, PayloadText: s.PayloadText, PanicStacks: s.PanicStacks,
		Now: s.Clock.Now, Random: func() float64 { return s.Random }, OnEvent: l.observe,
	}
	l.result.UUID, _ = at.headers[uuidKey].(string)
	l.result.Topic, l.result.Began = s.Topic, s.Clock.Now()

	err := l.run(at)

	l.mu.Lock()
	result := l.result
	l.dead = true // what its goroutines have left running is no part of it
	l.mu.Unlock()

	result.Ended, result.Err = s.Clock.Now(), errors.Join(err, l.unreached())
	for i := range result.Steps {
		result.Steps[i].text = s.text(result.Steps[i].Err)
	}

	return result
}

// unreached are faults of calls that were never made: a test that asks for one means it.
func (l *life) unreached() error {
	var errs []error
	for _, call := range slices.Sorted(maps.Keys(l.service.Faults)) {
		if call > l.calls {
			errs = append(errs, &config.FieldError{
				Path: fmt.Sprintf("Service.Faults[%d]", call), Problem: "never happened",
				Wanted: "of a call that is made", Found: plural(l.calls, "call"),
			})
		}
	}

	return errors.Join(errs...)
}

// run delivers the message to a router until it has ended.
func (l *life) run(at queued) (err error) {
	stop, err := l.start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	for range l.service.MaxDeliveries {
		next, err := l.deliver(at)
		if err != nil || l.result.End != "" {
			return err
		}
		at = next
	}

	return &EndlessError{Deliveries: l.service.MaxDeliveries, For: l.clock.Now().Sub(l.result.Began), Last: l.last()}
}

// deliver is the way of one delivery: read, decode, hand out, wait for the answer, settle. It gives
// what is in the queue next.
func (l *life) deliver(at queued) (next queued, err error) {
	d := l.newDelivery(l.arrive(at))
	defer d.cancel()

	l.mu.Lock()
	l.current, l.dead = d, false
	l.mu.Unlock()

	off := l.policy.Mode == config.ModeOff
	fail := func(class retry.Class, err error) queued {
		msg := raw(at, d.arrival.State)
		msg.SetContext(engine.WithDelivery(msg.Context(), d))

		return l.carryOut(at, d, l.engine.Judge(d, retry.Failure{Class: class, Err: err, Topic: l.service.Topic,
			Message: msg}))
	}
	if d.arrival.Crash != nil {
		return fail(retry.ClassCrashed, d.arrival.Crash), nil
	}
	if d.msg, err = l.unmarshal(at, d.arrival); err != nil && !off {
		return fail(retry.ClassUndecodable, err), nil
	}
	d.msg.SetContext(engine.WithDelivery(d.ctx, d))

	l.out <- d.msg
	acked, ok := d.answered()
	if off {
		l.unobserved(acked)
	}

	return l.settle(at, d, acked, ok)
}

// arrive reads what the message carries.
func (l *life) arrive(at queued) engine.Arrival {
	return engine.Arrive(l.service.Queue, &l.policy, &engine.Arriving{
		Headers: at.headers, Expiration: at.expiration, Timestamp: at.timestamp, Waited: at.waited,
		IsRetryQueue: func(name, delay string) bool { return name == l.retryQueue(delay) },
		Redelivered:  at.deliveries > 0, Deliveries: int64(at.deliveries),
		Returned: engine.Returned{Failures: int64(l.failures(at))},
	}, l.clock.Now())
}

// failures are those that the broker tells of, under a broker-driven strategy.
func (l *life) failures(at queued) int {
	if l.policy.Strategy.CountsReturns() {
		return at.deliveries
	}

	return at.rejections
}

func (l *life) retryQueue(delay string) string { return l.service.Queue + ".retry." + delay }

// raw is a message of which nothing was decoded.
func raw(at queued, state wire.State) *message.Message {
	msg := message.NewMessage(state.UUID, slices.Clone(at.payload))
	for key, value := range wire.Strip(at.headers, false) {
		msg.Metadata[key] = asText(value)
	}
	for key, value := range wire.Opt(at.headers, asText) {
		msg.Metadata[key] = value
	}

	return msg
}

// unmarshal makes the message that is handed out. With an error it is what can be made of it all
// the same.
func (l *life) unmarshal(at queued, arrival engine.Arrival) (msg *message.Message, err error) {
	msg = raw(at, arrival.State)
	undecoded := msg.Copy()

	defer func() {
		if r := recover(); r != nil {
			msg, err = undecoded, fmt.Errorf("marshaler panicked: %v", r)
		}
	}()

	if uuid := msg.Metadata[uuidKey]; uuid != "" {
		msg.UUID = uuid
	}
	delete(msg.Metadata, uuidKey)
	arrival.Clean(msg)

	if l.service.Unmarshal == nil {
		return msg, nil
	}
	if err := l.service.Unmarshal(msg); err != nil {
		return undecoded, err
	}

	return msg, nil
}

// errUnanswered means that nothing will ever acknowledge the message: its handler called
// runtime.Goexit under policy "off". A broker waits for the acknowledgement until the connection
// closes.
var errUnanswered = errors.New("the handler called runtime.Goexit, and under policy off nothing acknowledges its " +
	"message until the connection closes")

// settle carries out what the middleware has left, or what the router's answer says by itself.
func (l *life) settle(at queued, d *delivery, acked, ok bool) (queued, error) {
	next, settlement := d.Answer(acked, false)
	fault := d.lastFault()

	switch {
	case fault == Crash:
		at.deliveries++
		l.crashed()

		return at, nil
	case !ok:
		return at, errUnanswered
	case fault == Shutdown:
		l.engine.Ended(retry.EventRequeued, d, d.msg)
		return at, nil
	}

	switch next {
	case engine.NextCarryOut:
		return l.carryOut(at, d, settlement), nil
	case engine.NextAcknowledge:
		l.engine.Ended(retry.EventSucceeded, d, d.msg)
		l.end(Succeeded)
		l.notice()
	case engine.NextUnpublishable:
		return l.carryOut(at, d, l.engine.Judge(d, retry.Failure{
			Class: retry.ClassUnpublishable, Topic: l.service.Topic, Message: d.msg, Err: engine.ErrUnpublishable,
		})), nil
	case engine.NextNack, engine.NextGiveBack:
		l.engine.Ended(retry.EventRequeued, d, d.msg)
	}

	return at, nil
}

// carryOut does what the verdict says, and gives the message as it is in its queue after its wait.
func (l *life) carryOut(at queued, d *delivery, s *engine.Settlement) queued {
	switch s.Action {
	case retry.ActionRequeue:
		l.engine.Ended(retry.EventRequeued, d, d.msg)
		return at
	case retry.ActionDrop:
		s.Done(nil)
		l.end(Dropped)

		return at
	case retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter:
	case retry.ActionRetryNow:
		panic("unreachable: only a middleware that calls the handler again is given this")
	}

	if s.ByBroker {
		return l.brought(at, s)
	}

	copied := copyOf(at, l.service.Queue, d.arrival.Replay, s.State)
	s.Done(nil)
	l.carries(copied)

	if s.Action == retry.ActionDeadLetter {
		l.buried(copied)
		return copied
	}

	wait := s.Wait
	if wait == 0 {
		wait = s.Delay
	}
	l.waits(wait)
	copied.waited = l.retryQueue(s.State.Delay)

	return copied
}

// brought gives the message as the broker brings it back by itself.
func (l *life) brought(at queued, s *engine.Settlement) queued {
	s.Done(nil)
	l.carries(at)
	l.waits(s.Delay)
	if l.policy.Strategy.CountsReturns() {
		at.deliveries++
		return at
	}
	at.rejections++
	at.deliveries, at.waited = 0, l.retryQueue(config.FormatDelay(s.Delay))

	return at
}

// copyOf is what is published in place of a delivery.
func copyOf(at queued, queue string, replay bool, state wire.State) queued {
	if !state.Arrival.Known() {
		state.Arrival = wire.NewArrival("", queue, at.expiration, "", "")
	}
	state.Arrival.Opt = wire.EncodeOpt(wire.Opt(at.headers, asText))
	if uuid, _ := at.headers[uuidKey].(string); uuid == "" && state.UUID == "" {
		state.UUID = watermill.NewUUID()
	}

	headers := wire.Strip(at.headers, replay)
	for key, value := range state.Headers(watermill.NewShortUUID()) {
		headers[key] = value
	}

	return queued{headers: headers, payload: at.payload, timestamp: at.timestamp}
}

// carries notes the headers of a copy.
func (l *life) carries(copied queued) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.lastStep().Headers = copied.texts()
}

// waits lets the time pass that the message lies in a retry queue.
func (l *life) waits(d time.Duration) {
	l.mu.Lock()
	l.lastStep().Waited = d
	l.mu.Unlock()

	l.clock.Advance(d)
}

func (l *life) end(e End) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.result.End = e
}

func (l *life) buried(at queued) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.result.End, l.result.DeadLetter = DeadLettered, newDeadLetter(at, l.service.Queue)
}

// call counts a call of the handler, and tells what is to go wrong with it.
func (l *life) call(d *delivery) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.calls++
	l.handled = false
	fault, ok := l.service.Faults[l.calls]
	if !ok {
		fault = l.service.Faults[EveryCall]
	}
	d.called(fault)

	return fault
}

// returned notes how a call has ended.
func (l *life) returned(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.handled = err == nil
}

// notice notes whether the success was the handler's.
func (l *life) notice() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.result.Swallowed = !l.handled
}

// fault is that of the last call.
func (l *life) fault() Fault {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.current.lastFault()
}

// die ends the process that has the message.
func (l *life) die(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.dead = true
	d.cancel()
}

func (l *life) publish(outputs []*message.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.dead {
		l.result.Outputs = append(l.result.Outputs, outputs...)
	}
}
