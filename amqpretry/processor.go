package amqpretry

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/processor"
	"github.com/amqpretry/watermill-retry/retry"
)

// DefaultPollInterval is how often a processor looks for failed queues.
const DefaultPollInterval = processor.DefaultPollInterval

// FailedQueue is a queue to which a main queue dead-letters what its consumers reject.
type FailedQueue struct {
	// Name of the failed queue. Several main queues may have the same one.
	Name string
	// MainQueue dead-letters to it, and gets its messages back. Its name is the topic whose policy holds.
	MainQueue string
}

// ProcessorConfig says how a processor reaches the broker, and which failed queues it processes. URI is required, and
// Queues or Match.
type ProcessorConfig struct {
	// URI of the broker, such as amqp://user:password@host:5672/vhost.
	URI string
	// Addresses are those of further nodes of the cluster, as in Options.Addresses. Optional.
	Addresses []string
	// TLS is for amqps. Optional.
	TLS *tls.Config
	// AMQP is what else amqp091-go is to know. Optional.
	AMQP *amqp091.Config

	// Queues are failed queues by name. A Name that is there several times, with one MainQueue each, is a failed queue of
	// all of these: see [Processor].
	Queues []FailedQueue
	// Match are patterns of failed queues, such as "*.failed". The one star stands for the name of the main queue. The
	// first pattern that matches a name counts, and Queues count before all patterns. Main queues whose policy has the
	// mode off are left alone.
	//
	// A pattern such as "failed=shop.*" finds the main queues of the failed queue before the "=" instead. It skips failed
	// queues, retry queues and dead-letter queues, as far as their arguments and names tell them. If the policy of a
	// main queue has the mode off, the processor refuses the failed queue.
	Match []string
	// Management lists the queues of the virtual host for Match. Without a VHost it is that of the URI.
	Management topology.Management
}

// Format prints the queues and nothing else, under no verb: the URI has a password.
func (c ProcessorConfig) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "amqpretry.ProcessorConfig(%d queues, patterns %q)", len(c.Queues), c.Match)
}

// ProcessorOptions say what a processor does. The zero value is useful.
type ProcessorOptions struct {
	// Policies by the names of main queues. Their strategy must be config.StrategyQueues. Lists of errors do not count:
	// the broker does not report which error a consumer had.
	Policies config.Policies
	// Names of the exchanges and queues beside the main queues. Defaults to Q.retry, Q.retry.30s and Q.dlq.
	Names topology.Names
	// Topology says who declares. Defaults to topology.Declare. The main queues and the failed queues are never
	// declared.
	Topology topology.Mode

	// Prefetch is how many messages of a failed queue are in flight at most, those that are held included. Main queues
	// that share the failed queue share them. Defaults to 50.
	Prefetch int
	// PollInterval is how often the processor looks for failed queues, and at least how often it tries again to consume
	// from one. Defaults to 30s.
	PollInterval time.Duration
	// CloseTimeout is how long a shutdown waits for the copies in flight. Defaults to 10s.
	CloseTimeout time.Duration
	// HoldWarning is how long a delivery is held, because the broker does not confirm its copy, before that is reported
	// (retry.EventHeld). Defaults to 30s.
	HoldWarning time.Duration

	// Logger gets what the processor logs. Defaults to slog.Default(). watermill.NopLogger{} logs nothing.
	Logger watermill.LoggerAdapter
	// OnEvent is told of everything that happens, see retry.Event. The Topic of an event is the main queue. Queue is the
	// failed queue, and with events about the topology or held deliveries the main queue. A rejected message has an
	// EventUnhandled with retry.ClassRejected and a *retry.RejectedError, and then the event of its outcome. It must
	// not block. Optional.
	OnEvent func(retry.Event)
}

// Processor retries the messages of services that this module is no part of, such as those in other languages. Their
// consumers only reject:
//
//	Q ─► consumer ─ nack, requeue=false ─► failed queue F ─► Processor ─ confirmed copy ─► Q.retry.30s ─ TTL ─► Q
//	                                                              └─────────────────────► Q.dlq
//
// The main queue Q dead-letters to the failed queue F. The processor consumes from F. It counts the failure, publishes
// a copy that waits and returns to Q by its name, or a dead letter to Q.dlq, and acknowledges when the broker has
// confirmed that. Body, message id and all other properties stay as they are. No handler runs in its process.
//
// F can be the failed queue of many main queues. The processor consumes from it once. A message belongs to the main
// queue that its routing key names, if the broker has set that key while it dead-lettered (x-dead-letter-routing-key),
// else to the queue of the newest x-death. A message of no main queue becomes a dead letter of the first one by name. A
// main queue that does not exist stops no other: its messages become dead letters of its own until it is there.
//
// Several processors may consume from the same queues.
type Processor struct{ own *processor.Processor }

// NewProcessor validates conf and options, and reports all problems in one error. It does not connect.
func NewProcessor(conf ProcessorConfig, options ProcessorOptions) (*Processor, error) {
	pairs := make([]processor.Pair, len(conf.Queues))
	for i, q := range conf.Queues {
		pairs[i] = processor.Pair{Failed: q.Name, Main: q.MainQueue}
	}
	own, err := processor.New(processor.Config{
		URI: conf.URI, Addresses: conf.Addresses, TLS: conf.TLS, AMQP: conf.AMQP,
		Queues: pairs, Match: conf.Match, Management: conf.Management,
	}, processor.Options(options))
	if err != nil {
		return nil, err
	}

	return &Processor{own}, nil
}

// Run processes until ctx ends or Close is called. Then it waits until the copies in flight are confirmed, for
// CloseTimeout at the longest, and returns nil. While the broker or a queue is not available it tries again. It can be
// called once.
func (p *Processor) Run(ctx context.Context) error { return p.own.Run(ctx) }

// Close ends Run and returns when that has ended. It is safe to call it again.
func (p *Processor) Close() error { return p.own.Close() }

// SetPolicies replaces the policies while the processor runs. Messages that wait come back after the delay that they
// were sent to. After an error the old policies stay.
func (p *Processor) SetPolicies(policies config.Policies) error { return p.own.SetPolicies(policies) }

// ProcessedQueue is the state of a failed queue with one of its main queues.
type ProcessedQueue struct {
	FailedQueue
	// Consuming tells whether the processor consumes from the failed queue.
	Consuming bool
	// Err is why it does not, if that is known. While it consumes, Err says that MainQueue is missing: others share the
	// failed queue.
	Err error
}

// Queues returns the failed queues that the processor knows with each of their main queues, sorted by name.
func (p *Processor) Queues() []ProcessedQueue {
	known := p.own.Queues()
	all := make([]ProcessedQueue, len(known))
	for i, s := range known {
		all[i] = ProcessedQueue{FailedQueue{Name: s.Failed, MainQueue: s.Main}, s.Consuming, s.Err}
	}

	return all
}

// Healthy returns an error if Run has ended, or does nothing any more. It is for liveness probes: a broker that is down
// is no error.
func (p *Processor) Healthy() error { return p.own.Healthy() }

// Ready returns an error unless the processor is connected and consumes from its queues. It is for readiness probes. A
// queue that Match has found and that cannot be consumed from is no error, nor is a main queue that is missing while
// others share its failed queue: see [Processor.Queues].
func (p *Processor) Ready() error { return p.own.Ready() }

// QueueDepths returns the number of ready messages in the failed queues that the processor consumes from, and in the
// retry queues and dead-letter queues of their main queues, sorted by name. middleware/metrics asks it at each scrape.
// Where it cannot read some of them, it returns the rest and an error.
func (p *Processor) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	return p.own.QueueDepths(ctx)
}

// Format prints what it is, under any verb: the config has a password.
func (p *Processor) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "*amqpretry.Processor(%p)", p) }
