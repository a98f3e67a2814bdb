package processor

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/retry"
)

// Defaults of the options.
const (
	defaultPrefetch     = 50
	defaultCloseTimeout = 10 * time.Second
	defaultHoldWarning  = 30 * time.Second
	// defaultPollInterval is how often a processor looks for failed queues.
	defaultPollInterval = 30 * time.Second
)

// Queue is a queue to which a main queue dead-letters what its consumers reject.
type Queue struct {
	// Name of the failed queue. Several main queues may have the same one.
	Name string
	// MainQueue dead-letters to it, and gets its messages back. Its name is the topic whose policy
	// holds.
	MainQueue string
}

// Config says how a processor reaches the broker, and which failed queues it processes. URI is
// required, and Queues or Match.
type Config struct {
	// URI of the broker, such as amqp://user:password@host:5672/vhost.
	URI string
	// Addresses are those of further nodes of the cluster, as in amqpretry.Options.Addresses.
	// Optional.
	Addresses []string
	// TLS is for amqps. Optional.
	TLS *tls.Config
	// AMQP is what else amqp091-go is to know. Optional.
	AMQP *amqp091.Config

	// Queues are failed queues by name. A Name that is there several times, with one MainQueue
	// each, is a failed queue of all of these: see [Processor].
	Queues []Queue
	// Match are patterns of failed queues, such as "*.failed". The one star stands for the name of
	// the main queue. The first pattern that matches a name counts, and Queues count before all
	// patterns. Main queues whose policy has the mode off are left alone.
	//
	// A pattern such as "failed=shop.*" finds the main queues of the failed queue before the "="
	// instead. It skips failed queues, retry queues and dead-letter queues, as far as their
	// arguments and names tell them. If the policy of a main queue has the mode off, the processor
	// refuses the failed queue.
	Match []string
	// Management lists the queues of the virtual host for Match. Without a VHost it is that of the
	// URI.
	Management management.API
}

// Format prints the queues and nothing else, under no verb: the URI has a password.
func (c Config) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "processor.Config(%d queues, patterns %q)", len(c.Queues), c.Match)
}

// Options say what a processor does. The zero value is useful.
type Options struct {
	// Policies by the names of main queues. Their strategy must be config.StrategyQueues. Lists of
	// errors do not count: the broker does not report which error a consumer had.
	Policies config.Policies
	// Names of the exchanges and queues beside the main queues. Defaults to Q.retry, Q.retry.30s
	// and Q.dlq.
	Names topology.Names
	// AssumeTopology declares nothing: an operator has provisioned the retry topology. The main
	// queues and the failed queues are never declared.
	AssumeTopology bool

	// Prefetch is how many messages of a failed queue are in flight at most, those that are held
	// included. Main queues that share the failed queue share them. Defaults to 50.
	Prefetch int
	// PollInterval is how often the processor looks for failed queues, and at least how often it
	// tries again to consume from one. Defaults to 30s.
	PollInterval time.Duration
	// CloseTimeout is how long a shutdown waits for the copies in flight. Defaults to 10s.
	CloseTimeout time.Duration
	// HoldWarning is how long a delivery is held, because the broker does not confirm its copy,
	// before that is reported (retry.EventHeld). Defaults to 30s.
	HoldWarning time.Duration

	// Logger gets what the processor logs. Defaults to slog.Default(). watermill.NopLogger{} logs
	// nothing.
	Logger watermill.LoggerAdapter
	// OnEvent is told of everything that happens, see retry.Event. The Topic of an event is the
	// main queue. Queue is the failed queue, and with events about the topology or held deliveries
	// the main queue. A rejected message has an EventUnhandled with retry.ClassRejected and a
	// *retry.RejectedError, and then the event of its outcome. It must not block. Optional.
	OnEvent func(retry.Event)
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = watermill.NewSlogLogger(nil)
	}
	o.Prefetch = cmp.Or(o.Prefetch, defaultPrefetch)
	o.PollInterval = cmp.Or(o.PollInterval, defaultPollInterval)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, defaultCloseTimeout)
	o.HoldWarning = cmp.Or(o.HoldWarning, defaultHoldWarning)
	o.Names = o.Names.WithDefaults()
}

// validate reports everything that is wrong with both, and reads the patterns.
func validate(c Config, o Options) ([]pattern, error) {
	var problems amqpconfig.Problems
	if _, err := connection.ParseURI(c.URI); err != nil {
		problems.Add("Config.URI", err.Error(), "", "")
	}
	problems.Addresses("Config.Addresses", c.Addresses)
	if c.TLS != nil && c.AMQP != nil && c.AMQP.TLSClientConfig != nil {
		problems.Add("Config.TLS", "must not be set together with Config.AMQP.TLSClientConfig", "", "")
	}
	if len(c.Queues)+len(c.Match) == 0 {
		problems.Add("Config.Queues", "missing", "failed queues with their main queues, or patterns in Config.Match",
			"")
	}
	patterns, errs := parsePatterns(c)
	problems = append(problems, errs...)
	problems = append(problems, config.WithPath("Options", o.Policies.Validate())...)
	problems.Prefetch("Options.Prefetch", o.Prefetch, strconv.Itoa(defaultPrefetch))
	problems.Duration("Options.PollInterval", o.PollInterval)
	problems.Duration("Options.CloseTimeout", o.CloseTimeout)
	problems.Duration("Options.HoldWarning", o.HoldWarning)

	return patterns, errors.Join(problems...)
}

func parsePatterns(c Config) (patterns []pattern, errs []error) {
	for i, text := range c.Match {
		p, err := parsePattern(text)
		if err != nil {
			errs = append(errs, &config.FieldError{Path: fmt.Sprintf("Config.Match[%d]", i), Problem: err.Error(),
				Wanted: "a name with one * for the name of the main queue, such as *.failed, or failed=orders-*",
				Found:  strconv.Quote(text)})
		}
		patterns = append(patterns, p)
	}
	if len(c.Match) == 0 {
		return nil, errs
	}
	if c.Management.URL == "" {
		errs = append(errs, &config.FieldError{Path: "Config.Management.URL", Problem: "missing",
			Wanted: "the management API, as Config.Match needs a list of the queues"})
	} else if _, err := newManagement(c); err != nil {
		errs = append(errs, &config.FieldError{Path: "Config.Management.URL", Problem: err.Error()})
	}

	return patterns, errs
}

// newManagement is nil without a management API. Its virtual host is that of the connection, unless
// it has another.
func newManagement(c Config) (*httpapi.Client, error) {
	if c.Management.URL == "" {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	vhost := cmp.Or(c.Management.VHost, connection.Settings{URI: c.URI, AMQP: c.AMQP}.VirtualHost(), "/")

	return httpapi.New(c.Management.URL, vhost, c.Management.HTTPClient)
}

// settings of a connection. The backoff is that of watermill-amqp.
func (p *Processor) settings(role string) connection.Settings {
	return connection.Settings{
		URI: p.conf.URI, Addresses: p.conf.Addresses, TLS: p.conf.TLS, AMQP: p.conf.AMQP, Role: role,
		Emit: p.engine.Emit, Open: &p.connections,
		Reconnect: connection.Reconnect{
			InitialInterval: 500 * time.Millisecond, MaxInterval: time.Minute, RandomizationFactor: 0.5,
			Multiplier: 1.5,
		},
	}
}
