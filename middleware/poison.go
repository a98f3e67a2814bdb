package middleware

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Poison is the final step: it makes a failure into a dead letter that explains itself. Retry ends with it; alone, its
// Middleware serves handlers without retries, whose first failure goes to the dead-letter queue.
//
// A plug makes both from its options: see Plug.Middleware and Plug.Poison in package amqpretry.
type Poison struct {
	// Owner is the plug whose messages are handled; those of others pass untouched. Required.
	Owner any

	// Logger is optional.
	Logger watermill.LoggerAdapter

	// Host is written on every failed message, to tell instances apart. Optional.
	Host string

	// ErrorText makes the text that is written on a failed message and logged from a handler's error: the place to redact.
	// Defaults to the error's own text. A panic in it costs the text, not the message.
	ErrorText func(error) string

	// PanicStacks adds the stack to the error text of a panic. Off by default: stacks can show what a dead letter should not.
	PanicStacks bool

	// OnDeadLetter is called for every dead letter once the broker has confirmed it: the place for an alarm. It must not
	// block; a panic in it is logged. Optional.
	OnDeadLetter func(DeadLetter)
}

// DeadLetter tells of a message that was dead-lettered.
type DeadLetter struct {
	// Message is the message as the handler had it; nil when no handler saw it (undecodable, crashed).
	Message *message.Message
	Reason  Reason
	// Err is the error itself; what is written on the message is its text, bounded and redacted.
	Err error
	// Attempts are the handler calls over all lives of the message.
	Attempts int
	Queue    string
	Topic    string
	Handler  string
}

// Failure is what happened to a message.
type Failure struct {
	Class Class
	Err   error
	// Message is nil when no handler saw it.
	Message *message.Message
	// Topic that was subscribed to, where the message's context does not tell it.
	Topic string
}

// Middleware dead-letters a message at its first failure, whatever the policy of its queue says of retries.
func (p Poison) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return p.wrap(h, func(d Delivery, f Failure) Settlement {
		policy := d.Policy()
		policy.Mode, policy.Retries, policy.Delays, policy.Backoff = config.ModeDeadLetter, 0, nil, config.Backoff{}

		return p.settlement(policy, d, f)
	})
}

// Judge decides over a failure of a delivery. It is what Retry does with a handler's error; the consumer uses it for what
// fails outside of a handler.
func (p Poison) Judge(d Delivery, f Failure) Settlement {
	return p.settlement(d.Policy(), d, f)
}

func (p Poison) settlement(policy config.Policy, d Delivery, f Failure) Settlement {
	state := d.State()
	verdict := Decide(policy, state.Count, f.Class)

	if verdict.Action == ActionRequeue {
		return Settlement{Verdict: verdict}
	}

	ctx, uuid := context.Background(), ""
	if f.Message != nil {
		ctx, uuid = f.Message.Context(), f.Message.UUID
	}

	text, errorType := p.describe(f.Err)
	next := fail(state, verdict, failed{
		class:      f.Class,
		text:       text,
		errorType:  errorType,
		topic:      first(message.SubscribeTopicFromCtx(ctx), f.Topic),
		handler:    message.HandlerNameFromCtx(ctx),
		subscriber: message.SubscriberNameFromCtx(ctx),
		host:       p.Host,
		at:         time.Now(),
	})

	fields := watermill.LogFields{
		"message_uuid": uuid,
		"queue":        d.Queue(),
		"topic":        next.Topic,
		"handler_name": next.Handler,
		"attempts":     next.Attempts,
		"class":        string(f.Class),
		"verdict":      verdict.String(),
	}
	log := loggedError(text)

	switch verdict.Action {
	case ActionRetry:
		p.logger().Info("Message failed, it will be retried", fields.Add(watermill.LogFields{"err": text}))
	case ActionDeadLetter:
		p.logger().Error("Message failed, it goes to the dead-letter queue", log, fields)
	case ActionDrop:
		p.logger().Error("Message failed and is dropped, as its error asks", log, fields)
	case ActionRequeue:
	}

	letter := DeadLetter{
		Message: f.Message, Err: f.Err, Attempts: next.Attempts, Queue: d.Queue(), Topic: next.Topic, Handler: next.Handler,
	}

	return Settlement{Verdict: verdict, State: next, settled: func(carriedOut Verdict) {
		if carriedOut.Action == ActionDeadLetter && p.OnDeadLetter != nil {
			letter.Reason = carriedOut.Reason
			p.report(letter)
		}
	}}
}

// loggedError hands a text to a logger that wants an error: the redacted one, not the handler's.
type loggedError string

func (e loggedError) Error() string { return string(e) }

// describe gives the text and the type of an error. Both come from foreign code, which may panic.
func (p Poison) describe(err error) (text, errorType string) {
	if err == nil {
		return "", ""
	}

	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the error's text is lost: it panicked with %T)", r)
		}
	}()

	errorType = typeName(err)
	if p.ErrorText != nil {
		return wire.Text(p.ErrorText(err), wire.MaxErrorBytes), errorType
	}

	return wire.Text(err.Error(), wire.MaxErrorBytes), errorType
}

func (p Poison) report(letter DeadLetter) {
	defer func() {
		if r := recover(); r != nil {
			p.logger().Error("OnDeadLetter panicked", fmt.Errorf("%v", r), watermill.LogFields{"queue": letter.Queue})
		}
	}()

	p.OnDeadLetter(letter)
}

func (p Poison) logger() watermill.LoggerAdapter {
	if p.Logger == nil {
		return watermill.NopLogger{}
	}

	return p.Logger
}

func first(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}

	return ""
}
