package amqpretry

import (
	"cmp"
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// Defaults of the options.
const (
	defaultConcurrency  = 1
	defaultCloseTimeout = 10 * time.Second
	defaultHoldWarning  = 30 * time.Second
	// DefaultPrefetch is how far the prefetch grows by default, see Options.Prefetch. A stock
	// subscriber gets it where its config has none, which to the broker would mean no limit.
	DefaultPrefetch = 50
)

// Options say what a retrier does. The zero value is useful: every topic under config.Default.
// docs/reference/options.md has a table of them.
type Options struct {
	// Policies say how often and after which delays messages are retried. The zero value means
	// config.Default for every topic: retries after 1s, 5s, 30s, 2m and 10m.
	Policies config.Policies

	// Groups are the policies of single consumer groups, by name: a group that is named here has
	// these policies instead of those above, for all of its topics. Optional.
	Groups map[string]config.Policies

	// GroupQueue names the queue of a topic for a group. It must give the same name each time, and
	// no two groups the same. Defaults to topic_group, as amqp.GenerateQueueNameTopicNameWithSuffix
	// does.
	GroupQueue func(topic, group string) string

	// Addresses are those of further nodes of the same cluster: host:port, or host with the default
	// port of the URI's scheme. Each connection begins at the URI's own address, and goes on with
	// these in turn, and from the beginning, after each loss and each failed attempt: with the same
	// user, virtual host and TLS settings. A certificate is checked against the host of its
	// address, unless the TLS config names one. Optional.
	Addresses []string

	// Credentials is asked for user and password, or token, at each dial, and again before they
	// expire: for tokens of OAuth 2, and for passwords that change. It must be safe for concurrent
	// use. Optional: without it those of the config's URI or AmqpConfig.SASL are taken. Stock
	// subscribers do not ask.
	Credentials func(context.Context) (config.Credentials, error)

	// Logger gets what the retrier logs. Defaults to slog.Default(), through Watermill's adapter
	// for it. watermill.NopLogger{} logs nothing.
	Logger watermill.LoggerAdapter

	// Concurrency is how many messages of one subscription of the retrier's own subscriber are
	// handed out at a time. Defaults to 1, which keeps the order of healthy messages. A fixed
	// prefetch is raised to it where it is lower.
	Concurrency int

	// Prefetch is how many messages of one subscription the broker may send ahead to the retrier's
	// own subscriber, those included that are handed out or held.
	//
	// By default it follows the handlers: as many as they take within a second, 50 at most, or
	// twice the Concurrency where that is more, and 8 MiB at most. A number fixes it, and so does a
	// Consume.Qos.PrefetchCount of the config that is more than the 1 of all configs of
	// watermill-amqp. Stock subscribers keep the config's.
	Prefetch int

	// CloseTimeout is how long closing a subscriber waits for handlers and copies. Messages that
	// are not done then go back to their queue. Defaults to 10s; leave it below the router's own
	// CloseTimeout, which is 30s by default.
	CloseTimeout time.Duration

	// HoldWarning is how long a failed delivery is held, because the broker does not confirm its
	// copy, before that is reported (retry.EventHeld), and how often it is reported again. Defaults
	// to 30s.
	HoldWarning time.Duration

	// AssumeTopology declares nothing at all: somebody else has provisioned the main queues and the
	// retry topology. Otherwise the retrier declares the main queue, as the config's own builder
	// does, and the topology of its policy.
	AssumeTopology bool

	// Names of the exchanges and queues beside the main queues. Defaults to Q.retry, Q.retry.30s
	// and Q.dlq.
	Names topology.Names

	// Publisher says how the publishers of NewPublisher publish: how long they try, and what
	// happens to messages that no queue gets. The zero value is useful.
	Publisher publish.Options

	// MiddlewareOrder says what happens where another middleware of the router keeps the retry
	// middleware from its work: see middleware.OrderError. With OrderEnforce, the default, a router
	// with the plugin Retrier.CheckRouter does not start, and without it a subscription that would
	// lose messages stops with its first one. With OrderLog the mistake is only logged.
	MiddlewareOrder middleware.OrderMode

	// Decide is asked about every failure before the policy is, with the error, the message and the
	// attempt, and returns the error as it is to be taken: as it is, or marked with
	// retry.Permanent, Drop, Transient, RetryAfter or Postpone. See retry.Failure. It must be safe
	// for concurrent use. Optional.
	Decide func(retry.Failure) error

	// ErrorText makes the text of an error that is written on failed messages and logged: the place
	// to redact. Out of its reach is what Watermill's router itself logs: the publisher's error,
	// when outputs cannot be published. Defaults to the error's own text. At most 2 KiB of it are
	// kept.
	ErrorText func(error) string

	// PayloadText makes the text of a failed message's payload for the log: the place to redact. At
	// most 2 KiB of it are kept. Without it no payload is logged.
	PayloadText func(payload []byte) string

	// PanicStacks adds the stack to the error text of a panic. Off by default: stacks can show what
	// a dead letter should not.
	PanicStacks bool

	// OnEvent is told of everything that happens: calls of handlers, retries, dead letters,
	// deliveries that are held, connections. It is the place for metrics and alarms, see
	// retry.Event. It must not block. Optional.
	OnEvent func(retry.Event)
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = watermill.NewSlogLogger(nil)
	}
	o.Concurrency = cmp.Or(o.Concurrency, defaultConcurrency)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, defaultCloseTimeout)
	o.HoldWarning = cmp.Or(o.HoldWarning, defaultHoldWarning)
	o.MiddlewareOrder = cmp.Or(o.MiddlewareOrder, middleware.OrderEnforce)
	if o.GroupQueue == nil {
		o.GroupQueue = func(topic, group string) string { return topic + "_" + group }
	}
	o.Names = o.Names.WithDefaults()
}
