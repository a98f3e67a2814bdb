package tests

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
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

// flow is one connection through the proxy.
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

// newProxy listens before the broker at uri until the test ends.
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

// stop ends the proxy with all its connections.
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

// recognise finds the connection's name in what a client says first.
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

// abort closes a connection with a reset: nothing that is still on its way arrives.
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

// resume ends all stalls; what was held passes.
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

// dialled is how many connections of this name there were so far.
func (p *proxy) dialled(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.accepted[name]
}
