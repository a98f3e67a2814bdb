package connection

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/retry"
)

// Settings say how to connect. They are those of watermill-amqp, without its types.
type Settings struct {
	URI string
	// Addresses are those of further nodes of the cluster, host:port or host.
	Addresses []string
	TLS       *tls.Config
	AMQP      *amqp091.Config
	Reconnect Reconnect
	// Credentials is asked at each dial, and before what it gave expires. Optional: without it
	// those of the URI, or of AMQP.
	Credentials func(context.Context) (config.Credentials, error)
	// Role ends up in the connection's name, for the people who look at the broker.
	Role string
	// Emit is told what happens to the connection.
	Emit func(retry.Event)
	// Open has all connections of a process, until each is closed. Optional.
	Open *Open
}

func (s Settings) emit(kind retry.EventKind, err error) {
	s.Emit(retry.Event{Kind: kind, Connection: s.Role, Err: err})
}

// VirtualHost is where everything of the connection is.
func (s Settings) VirtualHost() string {
	configured := ""
	if s.AMQP != nil {
		configured = s.AMQP.Vhost
	}
	uri, err := ParseURI(s.URI)
	if err != nil {
		return configured
	}

	return cmp.Or(configured, uri.Vhost, "/")
}

// Reconnect is the backoff between attempts to connect.
type Reconnect struct {
	InitialInterval, MaxInterval time.Duration
	RandomizationFactor          float64
	Multiplier                   float64
}

// Backoff makes the pauses of one series of attempts.
func (r Reconnect) Backoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     r.InitialInterval,
		RandomizationFactor: r.RandomizationFactor,
		Multiplier:          r.Multiplier,
		MaxInterval:         r.MaxInterval,
	}
}

const (
	handshakeTimeout = 30 * time.Second

	// writeTimeout bounds a write to a peer that takes nothing. Without it amqp091-go can hang for
	// ever: its shutdown waits for the channel's lock, which the stuck writer holds, before it
	// closes the socket.
	//
	// Upstream: a write that blocks makes every close wait; rabbitmq/amqp091-go#178; amqp091-go
	// 1.16; TestHealthyWhileCopiesCannotBeStored; remove when amqp091-go bounds its writes.
	writeTimeout = 30 * time.Second
)

// hurriedPause is the longest pause before an attempt that somebody asks for with
// [Connection.TryLink]. Without a pause, a service that publishes 200 messages a second would dial
// a broker that is starting 1000 times a second.
const hurriedPause = time.Second

// ErrClosed is returned after Close.
var ErrClosed = errors.New("closed")

// Connection is a connection that comes back: it is dialled when it is first asked for, and again
// after each loss.
type Connection struct {
	settings Settings
	logger   watermill.LoggerAdapter

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	link   *Link
	dial   *dial
	failed error     // why there is no connection, as far as that is known
	down   time.Time // since when it is needed and not there; zero otherwise
	closed bool

	next   atomic.Uint64 // node
	unsure seldom
	asking chan struct{} // for credentials, one at a time
}

// dial is one attempt, or one series of attempts, that all who wait for a connection share.
type dial struct {
	wanted chan struct{} // closed when somebody waits for this attempt only: just a hurriedPause comes before it then
	once   sync.Once
	done   chan struct{}
	err    error
}

func newDial() *dial { return &dial{wanted: make(chan struct{}), done: make(chan struct{})} }

func (d *dial) hurry() { d.once.Do(func() { close(d.wanted) }) }

// New returns a connection that is not dialled yet.
func New(settings Settings, logger watermill.LoggerAdapter) *Connection {
	ctx, cancel := context.WithCancel(context.Background())

	c := &Connection{
		settings: settings,
		logger:   logger.With(watermill.LogFields{"connection": settings.Role}),
		ctx:      ctx,
		cancel:   cancel,
		asking:   make(chan struct{}, 1),
	}
	settings.Open.add(c)

	return c
}

// TryLink returns the live link, or tries to connect once. It ends the pause that others wait for,
// but for a second: any number of callers makes one attempt a second at most.
func (c *Connection) TryLink(ctx context.Context) (*Link, error) { return c.get(ctx, false) }

// Link gives the live link, or connects with backoff until it succeeds, ctx ends or the connection
// is closed.
func (c *Connection) Link(ctx context.Context) (*Link, error) { return c.get(ctx, true) }

func (c *Connection) get(ctx context.Context, persist bool) (*Link, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if link := c.live(); link != nil {
			c.mu.Unlock()
			return link, nil
		}
		if c.dial == nil {
			c.dial, c.down = newDial(), time.Now()
			c.wg.Add(1)
			go c.connect(c.dial)
		}
		d := c.dial
		if !persist {
			d.hurry()
		}
		c.mu.Unlock()

		select {
		case <-d.done:
			if d.err != nil && !persist {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.ctx.Done():
			return nil, ErrClosed
		}
	}
}

// Live returns the live link; nil if there is none.
func (c *Connection) Live() *Link {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.live()
}

func (c *Connection) live() *Link {
	if c.link == nil || !c.link.IsAlive() {
		return nil
	}

	return c.link
}

// errConnecting is what keeps the first attempt to connect from being there: RabbitMQ takes 2 to 3
// s to refuse a password.
var errConnecting = errors.New("still connecting to RabbitMQ, which has neither accepted nor refused the login")

// Failure tells why the last attempt to connect failed, or that the first has no end yet; nil if it
// did not.
func (c *Connection) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.failed == nil && c.dial != nil && c.link == nil {
		return errConnecting
	}

	return c.failed
}

// connect makes one attempt, tells who waits for just that, and goes on with backoff if it failed.
// Dialling cannot be interrupted, so it has a goroutine of its own that nobody has to wait for.
func (c *Connection) connect(d *dial) {
	defer c.wg.Done()

	wait := c.settings.Reconnect.Backoff()
	wait.Reset()

	for {
		link, err := c.open()

		c.mu.Lock()
		c.link, c.dial, c.failed = link, nil, err
		switch {
		case c.closed:
			err = errors.Join(ErrClosed, err)
		case err != nil:
			c.dial = newDial() // the next attempt
		default:
			c.down = time.Time{}
		}
		closed, next := c.closed, c.dial
		c.mu.Unlock()

		d.err = err
		close(d.done)

		if err == nil {
			return
		}
		if closed {
			if link != nil {
				link.close(time.Now())
			}
			return
		}

		d = next
		if !c.pause(err, wait.NextBackOff(), d.wanted) {
			d.err = ErrClosed
			close(d.done)

			return
		}
	}
}

// pause waits before an attempt: for a hurriedPause at most if the attempt is wanted. It returns
// false when the connection is closed. Only then it does not tell: who could not connect at all has
// an error, and closes at once.
func (c *Connection) pause(err error, pause time.Duration, wanted <-chan struct{}) bool {
	least, whole := time.After(min(pause, hurriedPause)), time.After(pause)
	select {
	case <-least:
	case <-c.ctx.Done():
		return false
	}
	c.logger.Error("Cannot connect to RabbitMQ; trying again", err, watermill.LogFields{"wait_time": pause.String()})
	select {
	case <-whole:
	case <-wanted:
	case <-c.ctx.Done():
		return false
	}

	return true
}

// open makes one attempt, at each node of the cluster if it needs to be.
func (c *Connection) open() (*Link, error) {
	nodes, limit, err := nodesOf(c.settings.URI, c.settings.Addresses)
	// Upstream: an error of ParseURI shows the whole address, with its password; no issue known,
	// measured; amqp091-go 1.16; TestParseURISaysWhatIsWrong; remove when it shows none.
	if err != nil { // amqp091-go's own error shows all of it
		return nil, fmt.Errorf("cannot connect to RabbitMQ: the address %w", err)
	}

	credentials, err := c.credentials()
	if err != nil {
		return nil, fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	link, err := inTurn(nodes, &c.next, func() bool { return c.ctx.Err() != nil }, func(node string) (*Link, error) {
		return c.openNode(node, limit, credentials)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	if credentials != nil {
		go c.refresh(link, *credentials)
	}

	return link, nil
}

// amqpConfig returns the config for one dial.
func (c *Connection) amqpConfig() amqp091.Config {
	config := amqp091.Config{Locale: "en_US"}
	if c.settings.AMQP != nil {
		config = *c.settings.AMQP
	}
	if c.settings.TLS != nil {
		config.TLSClientConfig = c.settings.TLS
	}
	config.Recovery = nil // two who reconnect would get into each other's way

	// amqp091-go writes into them while it connects, and several connections may do so at the same
	// time.
	//
	// Upstream: Dial writes into the properties of its caller; no issue known, read in its source;
	// amqp091-go 1.16; TestConnectionsOfSharedConfig; remove when amqp091-go copies them.
	config.Properties = maps.Clone(config.Properties)

	if config.Properties == nil {
		config.Properties = amqp091.NewConnectionProperties()
		config.Properties.SetClientConnectionName("watermill-retry " + c.settings.Role)
	}

	return config
}

func (c *Connection) openNode(uri string, limit time.Duration, credentials *config.Credentials) (*Link, error) {
	config := c.amqpConfig()
	authenticate(&config, credentials)
	dialer := config.Dial
	if dialer == nil {
		dialer = amqp091.DefaultDial(limit)
	}

	broker, err := endpointOf(uri, config.TLSClientConfig)
	if err != nil {
		return nil, err
	}

	var (
		socket   *timedConn
		answers  *heard
		readable *codec.ReadableConn
		writes   *held
		late     *time.Timer
		keep     = func() bool { return true } // the socket, whatever becomes of the one who dials
	)
	began := time.Now()
	config.Dial = func(network, _ string) (net.Conn, error) {
		secured, err := broker.dial(limit, dialer, network, func(conn net.Conn) net.Conn {
			// a broker that says nothing must not hold up a close
			keep = context.AfterFunc(c.ctx, func() { _ = conn.Close() })
			socket = &timedConn{Conn: conn}
			return socket
		})
		if err != nil {
			return nil, err
		}
		// Its deadline does not bound the rest of the handshake: amqp091-go moves it on with each
		// heartbeat of a broker that does not open the connection.
		//
		// Upstream: heartbeats extend the time of a handshake; no issue known, read in its source;
		// amqp091-go 1.16; no test; remove when amqp091-go bounds the whole handshake.
		late = time.AfterFunc(limit-time.Since(began), func() { _ = socket.Close() })
		answers = &heard{Conn: secured}
		readable = codec.Readable(answers)
		writes = &held{Conn: readable}

		return writes, nil
	}

	connection, err := amqp091.DialConfig(broker.uri, config)
	inTime := late == nil || late.Stop()
	keep()
	if err != nil || !inTime {
		// Upstream: a handshake that fails leaves the socket open; no issue known, read in its
		// source; amqp091-go 1.16; no test; remove when Dial closes it.
		if socket != nil {
			_ = socket.Close() // amqp091-go leaves it open when it does not agree with the broker
		}
		if !inTime {
			return nil, fmt.Errorf("no connection to %s within %s: %s", broker.address, limit, whatIsMissing(answers))
		}

		return nil, explainDial(err, answers, broker.tls)
	}

	readable.LimitFrames(connection.Config.FrameSize)

	c.logger.Info("Connected to RabbitMQ", watermill.LogFields{"address": broker.address})
	c.settings.emit(retry.EventConnected, nil) // before it can be lost

	link := newLink(connection, socket, c.logger, c.settings.emit, &c.unsure)
	link.writes, link.reads = writes, readable
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		link.watch()
	}()

	return link, nil
}

// Close closes the connection for good. It returns at the deadline at the latest, whatever the
// broker does.
func (c *Connection) Close(deadline time.Time) {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	link := c.link
	c.mu.Unlock()

	if already {
		return
	}

	c.settings.Open.remove(c)
	c.cancel()
	if link != nil {
		link.close(deadline)
	}

	// What is still dialling ends by itself and closes what it opened.
	WaitUntil(deadline, c.wg.Wait)
}

// timedConn is a socket whose writes cannot block for ever. It counts what it reads and writes.
type timedConn struct {
	net.Conn

	received, sent atomic.Int64
}

func (c *timedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))

	return n, err
}

// writeSize is how much is written at a time: a frame of 128 KiB takes seconds on a slow line, and
// the count of what is sent must tell such a line from one on which nothing moves.
const writeSize = 16 << 10

func (c *timedConn) Write(b []byte) (written int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(b[written:min(len(b), written+writeSize)])
		c.sent.Add(int64(n))
		written += n
		if err != nil || written == len(b) {
			return written, err
		}
	}
}

// WaitUntil runs wait in a goroutine and reports whether it returned before the deadline.
func WaitUntil(deadline time.Time, wait func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()

	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()

	select {
	case <-done:
		return true
	case <-timer.C:
		select { // both were ready
		case <-done:
			return true
		default:
			return false
		}
	}
}
