package tests

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// The connections of a retrier, as their names tell a proxy.
const (
	anyone     = ""
	subscriber = "watermill-retry subscriber"
	forwarder  = "watermill-retry forwarder"
	observer   = "watermill-retry observer"
	letters    = "watermill-retry dead-letter subscriber"
	delayer    = "watermill-retry delay publisher"
	groupsName = "watermill-retry groups"

	plainPublisher = "watermill-retry publisher"
)

// proxy stands between a service and the broker and makes the network's faults. It tells
// connections apart by their name, which each client sends in its first bytes.
type proxy struct {
	URI string

	listener net.Listener
	target   string

	mu       sync.Mutex
	flows    map[*flow]struct{}
	stalls   []stall
	refused  map[string]bool // by name
	accepted map[string]int
	wg       sync.WaitGroup
}

// stall holds what passes on the connections of a name until its gate is closed.
type stall struct {
	name        string
	answersOnly bool
	gate        chan struct{}
}

type flow struct {
	client, broker net.Conn

	mu    sync.Mutex
	name  string
	left  int64 // bytes until the connection is cut; -1: no limit
	ended chan struct{}
	once  sync.Once
}

var (
	proxiesMu sync.Mutex
	proxies   = map[string]string{} // host:port of a proxy -> URI of its broker
)

// brokerBehind gives the URI of the broker behind a proxy; any other URI is its own.
func brokerBehind(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return uri
	}
	proxiesMu.Lock()
	defer proxiesMu.Unlock()
	if direct, ok := proxies[u.Host]; ok {
		return direct
	}

	return uri
}

func newProxy(t *testing.T, uri string) *proxy {
	t.Helper()
	u := must(url.Parse(uri))(t)
	target := u.Host
	if u.Port() == "" {
		target = net.JoinHostPort(u.Hostname(), "5672")
	}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	u.Host = listener.Addr().String()

	p := &proxy{
		URI: u.String(), listener: listener, target: target,
		flows: map[*flow]struct{}{}, refused: map[string]bool{}, accepted: map[string]int{},
	}
	proxiesMu.Lock()
	proxies[u.Host] = uri
	proxiesMu.Unlock()

	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.stop)

	return p
}

func (p *proxy) stop() {
	_ = p.listener.Close()
	p.resume()
	p.cut(anyone)
	p.wg.Wait()
}

func (p *proxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", p.target)
		if err != nil {
			abort(client)
			continue
		}
		f := &flow{client: client, broker: broker, left: -1, ended: make(chan struct{})}
		p.mu.Lock()
		p.flows[f] = struct{}{}
		p.mu.Unlock()

		p.wg.Add(2)
		go p.pump(f, client, broker, true)
		go p.pump(f, broker, client, false)
	}
}

// pump copies one direction. What it holds while the connection is stalled is lost when the
// connection is cut, as on a real network.
func (p *proxy) pump(f *flow, from, to net.Conn, upwards bool) {
	defer p.wg.Done()
	defer p.end(f)

	buffer := make([]byte, 32*1024)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if upwards {
				p.recognise(f, buffer[:n])
			}
			if p.refuses(f) {
				return
			}
			if gate := p.gate(f, upwards); gate != nil {
				select {
				case <-gate:
				case <-f.ended:
					return
				}
			}
			allowed, cut := f.take(n)
			if _, err := to.Write(buffer[:allowed]); err != nil || cut {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) recognise(f *flow, b []byte) {
	f.mu.Lock()
	known := f.name != ""
	f.mu.Unlock()
	if known {
		return
	}
	for _, name := range []string{subscriber, forwarder, observer, letters, delayer, plainPublisher, groupsName} {
		if bytes.Contains(b, []byte(name)) {
			f.mu.Lock()
			f.name = name
			f.mu.Unlock()
			p.mu.Lock()
			p.accepted[name]++
			p.mu.Unlock()
		}
	}
}

func (f *flow) is(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	return name == anyone || f.name == name
}

func (f *flow) take(n int) (allowed int, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left < 0 {
		return n, false
	}
	if int64(n) >= f.left {
		return int(f.left), true
	}
	f.left -= int64(n)

	return n, false
}

func (p *proxy) gate(f *flow, upwards bool) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.stalls {
		if f.is(s.name) && (!upwards || !s.answersOnly) {
			return s.gate
		}
	}

	return nil
}

func (p *proxy) end(f *flow) {
	f.once.Do(func() {
		close(f.ended)
		abort(f.client)
		abort(f.broker)
		p.mu.Lock()
		delete(p.flows, f)
		p.mu.Unlock()
	})
}

func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (p *proxy) matching(name string) []*flow {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*flow
	for f := range p.flows {
		if f.is(name) {
			found = append(found, f)
		}
	}

	return found
}

// cut resets the connections of this name and reports how many there were.
func (p *proxy) cut(name string) int {
	found := p.matching(name)
	for _, f := range found {
		p.end(f)
	}

	return len(found)
}

// cutAfter resets each connection of this name once n more bytes have passed, in the middle of a
// frame if so it falls.
func (p *proxy) cutAfter(name string, n int64) {
	for _, f := range p.matching(name) {
		f.mu.Lock()
		f.left = n
		f.mu.Unlock()
	}
}

// stall lets nothing pass on the connections of this name, present and future, and keeps them open.
func (p *proxy) stall(name string) { p.addStall(stall{name, false, make(chan struct{})}) }

// stallAnswers does so with what the broker sends only: it gets all, and nobody hears of it.
func (p *proxy) stallAnswers(name string) { p.addStall(stall{name, true, make(chan struct{})}) }

func (p *proxy) addStall(s stall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalls = append(p.stalls, s)
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.stalls {
		close(s.gate)
	}
	p.stalls = nil
}

// refuse ends the connections of this name and lets none come up, until allow.
func (p *proxy) refuse(name string) {
	p.mu.Lock()
	p.refused[name] = true
	p.mu.Unlock()
	p.cut(name)
}

func (p *proxy) allow(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.refused, name)
}

func (p *proxy) refuses(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.refused {
		if f.is(name) {
			return true
		}
	}

	return false
}

func (p *proxy) dialled(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.accepted[name]
}

// sentMethods are some of the AMQP methods that a service sends, in their order.
type sentMethods struct{ records[string] }

var methodNames = map[uint32]string{
	60<<16 | 20: "basic.consume", 60<<16 | 30: "basic.cancel", 60<<16 | 80: "basic.ack",
}

func (s *sentMethods) record(conf *amqp.Config) {
	wrapConnections(conf, func(conn net.Conn) net.Conn { return &recordedConn{Conn: conn, add: s.add} })
}

// wrapConnections makes a config use what wrap makes of its network connections.
func wrapConnections(conf *amqp.Config, wrap func(net.Conn) net.Conn) {
	conf.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: 10 * time.Second, Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqp091.DefaultDial(await.Bound)(network, address)
			if err != nil {
				return nil, err
			}

			return wrap(conn), nil
		},
	}
}

func (s *sentMethods) add(method uint32) {
	if name := methodNames[method]; name != "" {
		s.put(name)
	}
}

type recordedConn struct {
	net.Conn
	add    func(method uint32)
	frames frameReader
}

// Write is called by one goroutine at a time.
func (c *recordedConn) Write(b []byte) (int, error) {
	c.frames.read(b, func(frame []byte) {
		const methodFrame = 1
		if frame[0] == methodFrame {
			c.add(binary.BigEndian.Uint32(frame[frameHead:]))
		}
	})

	return c.Conn.Write(b)
}

const frameHead, frameEnd = 1 + 2 + 4, 1

// frameReader finds the frames in what a client sends.
type frameReader struct {
	greeted bool   // the protocol header, which is no frame, is over
	rest    []byte // the frame that is not yet whole
}

// read returns the protocol header, if it is there now, and calls do with each whole frame.
func (r *frameReader) read(b []byte, do func(frame []byte)) (header []byte) {
	const headerSize = 8
	r.rest = append(r.rest, b...)
	if !r.greeted && len(r.rest) >= headerSize {
		r.greeted, header, r.rest = true, r.rest[:headerSize:headerSize], r.rest[headerSize:]
	}
	for r.greeted && len(r.rest) >= frameHead {
		size := frameHead + int(binary.BigEndian.Uint32(r.rest[3:])) + frameEnd
		if len(r.rest) < size {
			break
		}
		do(r.rest[:size:size])
		r.rest = r.rest[size:]
	}

	return header
}

func address(t *testing.T, uri string) string {
	t.Helper()
	u := must(url.Parse(uri))(t)

	return u.Host
}

// nobody is a URI like that of the broker, at an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	u := must(url.Parse(brokertest.URI(t)))(t)
	u.Host = "127.0.0.1:1"

	return u.String()
}

// The first address is dead from the beginning, the second dies later: all of the retrier's
// connections go on with the third.
func TestAddressesMoveOn(t *testing.T) {
	t.Parallel()

	second, third := newProxy(t, brokertest.URI(t)), newProxy(t, brokertest.URI(t))
	svc := start(t, setup{
		URI: nobody(t),
		Options: amqpretry.Options{Policies: retries(ms(100, 100)...), Addresses: []string{address(t, second.URI),
			address(t, third.URI)}},
		Handler: byFate,
	})
	svc.Broker = newRabbit(t, brokertest.URI(t))

	svc.publish(fates(10)...)
	await.Until(t, func() bool {
		return svc.deadLettered() == 4 && svc.processed() == 6
	}, "all is done through the second")
	assert.NotZero(t, second.dialled(subscriber))
	assert.NotZero(t, second.dialled(forwarder))
	assert.Empty(t, third.matching(anyone))

	second.stop()
	svc.Broker.Publish(svc.Queue, rabbit.Messages(rabbit.Numbered("never-again", 5)...)...)
	await.Until(t, func() bool { return svc.deadLettered() == 9 }, "all is done through the third")
	assert.NotZero(t, third.dialled(subscriber))
	assert.NotZero(t, third.dialled(forwarder))
}

// Stock watermill-amqp, with the retrier's config, does the same.
func TestAddressesMoveOnStock(t *testing.T) {
	t.Parallel()

	second, third := newProxy(t, brokertest.URI(t)), newProxy(t, brokertest.URI(t))
	logs, queue := newLogs(t), uniqueName("addresses")
	conf := amqp.NewDurableQueueConfig(nobody(t))
	conf.Connection.Reconnect = fastReconnect()
	retrier := newRetrier(t, conf, amqpretry.Options{
		Policies: retries(ms(100)...), Logger: logs, Addresses: []string{address(t, second.URI), address(t, third.URI)},
	})
	broker := newRabbit(t, brokertest.URI(t))
	t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.100ms", queue+".dlq") })

	sub := must(amqp.NewSubscriber(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = sub.Close() })
	pub := must(amqp.NewPublisher(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = pub.Close() })
	messages := must(sub.Subscribe(t.Context(), queue))(t)

	got := make(chan string, 100)
	go func() {
		for msg := range messages {
			msg.Ack()
			got <- msg.UUID
		}
	}()
	arrives := func(id string, pub *amqp.Publisher) {
		t.Helper()
		await.Until(t, func() bool { return pub.Publish(queue, message.NewMessage(id, nil)) == nil })
		await.Until(t, func() bool {
			select {
			case found := <-got:
				return found == id
			default:
				return false
			}
		}, "%s arrives", id)
	}
	arrives("by the second", pub)
	second.stop()
	// A new publisher: that of watermill-amqp has a data race while it reconnects.
	again := must(amqp.NewPublisher(retrier.Config(), logs))(t)
	t.Cleanup(func() { _ = again.Close() })
	arrives("by the third", again)
	assert.NotEmpty(t, third.matching(anyone))
}

// SubscribeInitialize has no context: a broker that does not answer it must not keep it from ending
// with its subscriber or retrier.
func TestSubscribeInitializeEndsWithClose(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(*service) error{
		"subscriber": func(s *service) error { return s.Sub.Close() },
		"retrier":    func(s *service) error { return s.Retrier.Close() },
	}, func(t *testing.T, _ string, end func(*service) error) {
		network := newProxy(t, brokertest.URI(t))
		svc := newService(t, setup{
			URI: network.URI, Handler: byFate, Options: amqpretry.Options{CloseTimeout: time.Minute},
		})
		network.stallAnswers(subscriber)
		result := make(chan error, 1)
		go func() { result <- svc.Sub.SubscribeInitialize(svc.Queue) }()
		await.Stays(t, 200*time.Millisecond, func() bool { return len(result) == 0 }, "it waits for the broker")

		closed := make(chan error, 1)
		began := time.Now()
		go func() { closed <- end(svc) }()
		require.ErrorIs(t, await.Value(t, result, "the end of SubscribeInitialize"), amqpretry.ErrClosed)
		assert.Less(t, time.Since(began), 30*time.Second, "after CloseTimeout it ends with the connection")
		network.resume()
		require.NoError(t, await.Value(t, closed, "the end of the close"))
	})
}

// Further consumers of a channel have tags of their own, which must not be longer than AMQP allows:
// amqp091-go would close the connection.
func TestConsumerTagOfAnyLength(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{
		QueueType: "quorum",
		Configure: func(c *amqp.Config) { c.Consume.Consumer = strings.Repeat("x", 255) },
		Handler:   succeed,
	})
	svc.publish(rabbit.Numbered("message", 30)...)
	await.Until(t, func() bool { return len(svc.Calls.ids()) == 30 }, "all are handled")
	svc.close()
	assert.Len(t, svc.Events(retry.EventConnected), 1, "the connection is not lost")
}
