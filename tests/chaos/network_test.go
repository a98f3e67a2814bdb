package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// network is the way of one process to the broker.
type network struct {
	uri, name, listen, broker string
	proxy                     *toxiproxy.Proxy
}

func newNetwork(t *testing.T, name, uri string) *network {
	t.Helper()
	u, err := url.Parse(uri)
	require.NoError(t, err)
	n := &network{name: name, listen: "127.0.0.1:0", broker: u.Host}
	require.NoError(t, n.start())
	t.Cleanup(func() { n.proxy.Stop() })
	n.listen = n.proxy.Listen
	u.Host = n.listen
	n.uri = u.String()

	return n
}

func (n *network) start() error {
	zerolog.SetGlobalLevel(zerolog.Disabled) // one of its toxics has a logger of its own
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n.proxy = toxiproxy.NewProxy(server, n.name, n.listen, n.broker)

	return n.proxy.Start()
}

// attributes of a toxic.
type attributes map[string]int

func (n *network) poison(kind, stream string, a attributes) error {
	toxic, err := json.Marshal(map[string]any{"name": kind + stream, "type": kind, "stream": stream, "attributes": a})
	if err != nil {
		return err
	}
	return n.unlessStuck(func(proxy *toxiproxy.Proxy) error {
		_, err := proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
		return err
	})
}

// cure makes it a good network again.
func (n *network) cure() error {
	return n.unlessStuck(func(proxy *toxiproxy.Proxy) error {
		proxy.Toxics.ResetToxics(context.Background())
		return nil
	})
}

// unlessStuck changes the toxics. Toxiproxy 2.12 can deadlock when a connection is just ending, and
// Stop then waits for ever, after it has stopped listening. Another proxy takes its place; those
// that were connected miss the heartbeats.
func (n *network) unlessStuck(change func(*toxiproxy.Proxy) error) error {
	proxy, changed := n.proxy, make(chan error, 1)
	go func() { changed <- change(proxy) }()
	select {
	case err := <-changed:
		return err
	case <-time.After(3 * time.Second):
		go proxy.Stop()
	}

	return n.replace(10 * time.Second)
}

// replace starts another proxy as soon as the address is free.
func (n *network) replace(within time.Duration) (err error) {
	for end := time.Now().Add(within); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if err = n.start(); err == nil {
			return nil
		}
	}

	return fmt.Errorf("cannot replace the proxy %s: %w", n.name, err)
}

// while poisons both directions, or one, for a time.
func (n *network) while(lasting time.Duration, kind string, a attributes, streams ...string) error {
	for _, stream := range streams {
		if err := n.poison(kind, stream, a); err != nil {
			return errors.Join(err, n.cure())
		}
	}
	<-time.After(lasting)

	return n.cure()
}

const up, down = "upstream", "downstream"

func either(r *rand.Rand) string { return []string{up, down}[r.IntN(2)] }

// cut ends all connections with a reset.
func (n *network) cut(*rand.Rand) error {
	return n.while(300*time.Millisecond, "reset_peer", attributes{"timeout": 0}, up, down)
}

// truncate ends connections after some more bytes, in the middle of a frame if it falls so.
func (n *network) truncate(r *rand.Rand) error {
	return n.while(time.Second, "limit_data", attributes{"bytes": 1 + r.IntN(20_000)}, either(r))
}

// stall lets nothing pass for longer or shorter than the heartbeats allow; then all of it passes.
func (n *network) stall(r *rand.Rand) error {
	return n.while(time.Duration(1000+r.IntN(7000))*time.Millisecond, "latency", attributes{"latency": 60_000}, up,
		down)
}

// swallow takes what one side sends and delivers nothing; then the connection ends.
func (n *network) swallow(r *rand.Rand) error {
	return n.while(3*time.Second, "timeout", attributes{"timeout": 500 + r.IntN(2000)}, either(r))
}

// slow is a bad line: far away, narrow, or in small pieces.
func (n *network) slow(r *rand.Rand) error {
	switch r.IntN(3) {
	case 0:
		return n.while(3*time.Second, "latency", attributes{"latency": 20 + r.IntN(80), "jitter": 20}, up, down)
	case 1:
		return n.while(3*time.Second, "bandwidth", attributes{"rate": 50 + r.IntN(200)}, up, down)
	default:
		return n.while(3*time.Second, "slicer", attributes{"average_size": 64, "size_variation": 32, "delay": 100}, up,
			down)
	}
}
