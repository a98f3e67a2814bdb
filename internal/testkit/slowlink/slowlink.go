// Package slowlink puts a slow network between a client and a server.
package slowlink

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chunk is how much passes at a time. It is small, so that connections take turns.
const chunk = 16 << 10

// To listens on a port of this machine and forwards all connections to a server. All of them share
// one link, which passes so many bytes a second in each direction. It returns the address, host and
// port, and ends with the test.
func To(t testing.TB, server string, bytesPerSecond int) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, server: server, open: map[net.Conn]bool{}}
	up, down := &link{rate: bytesPerSecond}, &link{rate: bytesPerSecond}
	p.all.Go(func() { p.accept(up, down) })
	t.Cleanup(p.close)

	return listener.Addr().String()
}

type proxy struct {
	listener net.Listener
	server   string
	all      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

func (p *proxy) accept(up, down *link) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		p.all.Go(func() { p.pump(up, client, server) })
		p.all.Go(func() { p.pump(down, server, client) })
	}
}

// keep remembers connections, to close them. It returns false when the proxy is closed.
func (p *proxy) keep(both ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range both {
		p.open[c] = true
		if p.closed {
			_ = c.Close()
		}
	}

	return !p.closed
}

// pump copies one direction. When that ends, both do.
func (p *proxy) pump(l *link, from, to net.Conn) {
	_, _ = io.CopyBuffer(slow{to, l}, struct{ io.Reader }{from}, make([]byte, chunk))
	_, _ = from.Close(), to.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, from)
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// link passes one chunk at a time.
type link struct {
	mu   sync.Mutex
	rate int
}

func (l *link) pass(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	<-time.After(time.Duration(n) * time.Second / time.Duration(l.rate))
}

type slow struct {
	io.Writer
	link *link
}

func (s slow) Write(b []byte) (int, error) {
	s.link.pass(len(b))

	return s.Writer.Write(b)
}
