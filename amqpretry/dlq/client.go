package dlq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/retry"
)

// Config says how to reach the broker and its queues.
type Config struct {
	// URI of the broker: amqp://user:password@host:5672/vhost, or amqps://.
	URI string
	// Addresses are those of further nodes of a cluster, host:port or host.
	Addresses []string
	// TLS for amqps; nil means what the URI says. With amqp:// it is an error.
	TLS *tls.Config
	// AMQP are further settings of the connection; nil means none.
	AMQP *amqp091.Config
	// Names must be those of the services. The zero Names are the defaults.
	Names topology.Names
	// Management, if its URL is set, tells what AMQP does not: the policies of the broker that make
	// browsing unsafe. Before RabbitMQ 4.3 a quorum dead-letter queue is not read without it, or
	// NoDeliveryLimitPolicy. From 4.4 on it counts what the broker holds back: see HiddenError. Its
	// VHost, if empty, is that of the URI.
	Management management.API
	// NoDeliveryLimitPolicy says that no policy and no operator policy sets a delivery-limit for a
	// dead-letter queue. Where one does, browsing before RabbitMQ 4.3 lose messages. The answer of
	// Management counts more.
	NoDeliveryLimitPolicy bool
	// UUIDHeader is where the marshaler of the services puts Watermill's UUID. Default:
	// _watermill_message_uuid.
	UUIDHeader string
	// OnBlocked is called when the broker takes no messages, as in a memory or a disk alarm or
	// because the target is full, with the reason: what publishes waits. It is called with nil when
	// the broker takes them again; not if the run ends before because its target is full. It must
	// not block: Import calls it from its caller's goroutine. Nil means nobody.
	OnBlocked func(why error)
	// OrderTime bounds how long a browse or a run goes on after its context has ended, to leave the
	// queue in its order: see OrderError. Default: 5 minutes.
	OrderTime time.Duration
	// OnOrder is told several times a second, from the goroutine of the browse or the run, that it
	// has all that it wanted, and passes messages so that their order stays as it is: how many, and
	// of how many at the most. Short passing is not told of. Nil means nobody.
	OnOrder func(passed, most int)
	// Logger for what happens to the connections. Nil means none.
	Logger watermill.LoggerAdapter
}

// Format prints nothing of it, under no verb: the URI has a password.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "dlq.Config") }

func (c Config) withDefaults() Config {
	c.Names = c.Names.WithDefaults()
	c.UUIDHeader = cmp.Or(c.UUIDHeader, "_watermill_message_uuid")
	c.OrderTime = cmp.Or(c.OrderTime, defaultOrderTime)
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}

	return c
}

// Client is connected to a broker. It may be used by many goroutines.
type Client struct {
	config      Config
	longestHold time.Duration
	room        int // bytes on their way: to us, and likewise to a target
	patience    time.Duration
	answerTime  time.Duration
	pretended   string // version of the server, for tests
	scans       *scans

	telling     sync.Mutex // OnBlocked
	mu          sync.Mutex
	closed      bool
	connections []*connection.Connection // all that are open; the first one is for browsing
	locks       *connection.Connection   // for the locks of browses
	places      map[string]chan struct{}
}

// Open connects.
func Open(ctx context.Context, config Config) (*Client, error) {
	c := &Client{config: config.withDefaults(), longestHold: defaultHold, room: defaultRoom, patience: defaultPatience,
		answerTime: defaultAnswerTime, scans: newScans()}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if _, err := c.connect("dead letters").TryLink(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}

	return c, nil
}

// Validate reports everything that cannot be right, before anything is asked of a broker.
func (c Config) Validate() error {
	var errs []error
	if uri, err := connection.ParseURI(c.URI); err != nil {
		errs = append(errs, &config.FieldError{Path: "Config.URI", Problem: err.Error()})
	} else if c.TLS != nil && uri.Scheme != "amqps" {
		errs = append(errs, &config.FieldError{Path: "Config.TLS", Wanted: "nil with a URI of " + uri.Scheme +
			"://, over which the password goes unencrypted", Found: "a configuration: amqps:// uses it"})
	}
	for i, address := range c.Addresses {
		if err := connection.CheckAddress(address); err != nil {
			errs = append(errs, &config.FieldError{Path: fmt.Sprintf("Config.Addresses[%d]", i),
				Wanted: "host:port or host", Found: fmt.Sprintf("%q", address)})
		}
	}

	return errors.Join(errs...)
}

// connect makes one more connection, which is dialled when it is asked for.
func (c *Client) connect(role string) *connection.Connection {
	connection := connection.New(connection.Settings{
		URI: c.config.URI, Addresses: c.config.Addresses, TLS: c.config.TLS, AMQP: c.config.AMQP, Role: role,
		Reconnect: connection.Reconnect{InitialInterval: 500 * time.Millisecond, MaxInterval: 10 * time.Second,
			RandomizationFactor: 0.5, Multiplier: 2},
		Emit: c.tell,
	}, c.config.Logger)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections = append(c.connections, connection)
	if c.closed {
		connection.Close(time.Now())
	}

	return connection
}

func (c *Client) tell(event retry.Event) {
	switch event.Kind {
	case retry.EventBlocked:
		c.blocked(event.Err)
	case retry.EventUnblocked:
		c.blocked(nil)
	}
}

// blocked tells of it; one at a time, as several connections have something to tell.
func (c *Client) blocked(why error) {
	if c.config.OnBlocked == nil {
		return
	}
	c.telling.Lock()
	defer c.telling.Unlock()
	c.config.OnBlocked(why)
}

// publisher is for a run.
func (c *Client) publisher(link *connection.Link) *publish.QueuePublisher {
	p := publish.NewQueuePublisher(link)
	p.OnRefused = func(queue string, refused bool) {
		if refused {
			c.blocked(fmt.Errorf("queue %q rejects the messages: it is full, or its node is down", queue))
		} else {
			c.blocked(nil)
		}
	}

	return p
}

// place is where browses of a queue wait for each other.
func (c *Client) place(queue string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places == nil {
		c.places = map[string]chan struct{}{}
	}
	if c.places[queue] == nil {
		c.places[queue] = make(chan struct{}, 1)
	}

	return c.places[queue]
}

// locking is the connection for the locks of browses.
func (c *Client) locking(ctx context.Context) (*connection.Link, error) {
	c.mu.Lock()
	connection := c.locks
	c.mu.Unlock()
	if connection == nil {
		connection = c.connect("locks")
		c.mu.Lock()
		c.locks = connection
		c.mu.Unlock()
	}

	return connection.TryLink(ctx)
}

// disconnect closes a connection that a run has made.
func (c *Client) disconnect(connection *connection.Connection) {
	connection.Close(time.Now().Add(closeTimeout))

	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.connections {
		if other == connection {
			c.connections = append(c.connections[:i:i], c.connections[i+1:]...)
			return
		}
	}
}

// link is the connection for browsing.
func (c *Client) link(ctx context.Context) (*connection.Link, error) {
	c.mu.Lock()
	connection := c.connections[0]
	c.mu.Unlock()

	return connection.TryLink(ctx)
}

const closeTimeout = 5 * time.Second

// Close ends browses and runs, which then return an error, and closes the connections. It first
// waits until they have given their messages back in order, at most Config.OrderTime. Do not call
// it from a loop over Browse.
func (c *Client) Close() error {
	c.scans.close()
	c.mu.Lock()
	connections := c.connections
	c.closed = true
	c.mu.Unlock()

	deadline := time.Now().Add(closeTimeout)
	for _, connection := range connections {
		connection.Close(deadline)
	}

	return nil
}

// Queue is the dead-letter queue of a main queue, by Config.Names. It does not ask the broker.
func (c *Client) Queue(mainQueue string) *Queue {
	return c.DeadLetterQueue(c.config.Names.DeadLetterQueue(mainQueue), mainQueue)
}

// DeadLetterQueue is a dead-letter queue of any name, with the main queue that it belongs to. For
// one that has messages of several main queues that may be empty: each message then tells its own.
// The name of the dead-letter queue itself counts as empty.
func (c *Client) DeadLetterQueue(name, mainQueue string) *Queue {
	if mainQueue == name {
		mainQueue = ""
	}
	return &Queue{client: c, name: name, mainQueue: mainQueue}
}
