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

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/management"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/retry"
)

// Defaults of the options.
const (
	DefaultPrefetch     = 50
	DefaultCloseTimeout = 10 * time.Second
	DefaultHoldWarning  = 30 * time.Second
	DefaultPollInterval = 30 * time.Second
)

// Pair is a failed queue with its main queue.
type Pair struct{ Failed, Main string }

// Config says where a processor works. Package amqpretry explains the fields.
type Config struct {
	URI        string
	Addresses  []string
	TLS        *tls.Config
	AMQP       *amqp091.Config
	Queues     []Pair
	Match      []string
	Management topology.Management
}

// Options say what it does. Package amqpretry explains the fields.
type Options struct {
	Policies     config.Policies
	Names        topology.Names
	Topology     topology.Mode
	Prefetch     int
	PollInterval time.Duration
	CloseTimeout time.Duration
	HoldWarning  time.Duration
	Logger       watermill.LoggerAdapter
	OnEvent      func(retry.Event)
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = watermill.NewSlogLogger(nil)
	}
	o.Topology = cmp.Or(o.Topology, topology.Declare)
	o.Prefetch = cmp.Or(o.Prefetch, DefaultPrefetch)
	o.PollInterval = cmp.Or(o.PollInterval, DefaultPollInterval)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, DefaultCloseTimeout)
	o.HoldWarning = cmp.Or(o.HoldWarning, DefaultHoldWarning)
	o.Names = o.Names.WithDefaults()
}

// validate reports everything that is wrong with both, and reads the patterns.
func validate(c Config, o Options) ([]pattern, error) {
	var errs []error
	wrong := func(path, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{Path: path, Problem: problem, Wanted: wanted, Found: found})
	}

	if _, err := connection.ParseURI(c.URI); err != nil {
		wrong("Config.URI", err.Error(), "", "")
	}
	for i, address := range c.Addresses {
		if err := connection.CheckAddress(address); err != nil {
			wrong(fmt.Sprintf("Config.Addresses[%d]", i), err.Error(), "host:port or host, such as rabbit-2:5672", "")
		}
	}
	if c.TLS != nil && c.AMQP != nil && c.AMQP.TLSClientConfig != nil {
		wrong("Config.TLS", "must not be set together with Config.AMQP.TLSClientConfig", "", "")
	}
	if len(c.Queues)+len(c.Match) == 0 {
		wrong("Config.Queues", "missing", "failed queues with their main queues, or patterns in Config.Match", "")
	}
	patterns, patternErrs := parsePatterns(c)
	errs = append(errs, patternErrs...)
	errs = append(errs, config.WithPath("Options", o.Policies.Validate())...)
	switch o.Topology {
	case "", topology.Declare, topology.Assume:
	default:
		wrong("Options.Topology", "unknown", `"declare" or "assume"`, strconv.Quote(string(o.Topology)))
	}
	if o.Prefetch < 0 || o.Prefetch > rabbitmq.MaxPrefetch {
		wrong("Options.Prefetch", "out of bounds", fmt.Sprintf("1..65535, or 0 for %d", DefaultPrefetch),
			strconv.Itoa(o.Prefetch))
	}
	for _, t := range []struct {
		path  string
		value time.Duration
	}{
		{"PollInterval", o.PollInterval}, {"CloseTimeout", o.CloseTimeout}, {"HoldWarning", o.HoldWarning},
	} {
		if t.value < 0 {
			wrong("Options."+t.path, "negative", "more than 0", t.value.String())
		}
	}

	return patterns, errors.Join(errs...)
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

// newManagement is nil without a management API. Its virtual host is that of the connection, unless it has another.
func newManagement(c Config) (*management.Client, error) {
	if c.Management.URL == "" {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	vhost := cmp.Or(c.Management.VHost, c.settings("").VirtualHost(), "/")

	return management.New(c.Management.URL, vhost, c.Management.HTTPClient)
}

// settings of a connection. The backoff is that of watermill-amqp.
func (c Config) settings(role string) connection.Settings {
	return connection.Settings{
		URI: c.URI, Addresses: c.Addresses, TLS: c.TLS, AMQP: c.AMQP, Role: role,
		Reconnect: connection.Reconnect{
			InitialInterval: 500 * time.Millisecond, MaxInterval: time.Minute, RandomizationFactor: 0.5,
			Multiplier: 1.5,
		},
	}
}
