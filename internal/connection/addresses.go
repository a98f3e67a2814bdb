package connection

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// nodeTimeout is what one of several nodes may take until its connection is open: a dead one must
// not keep from the others for long.
const nodeTimeout = 10 * time.Second

var errAddress = errors.New("not an address of a node")

// splitAddress takes apart host:port and host; the port is empty where there is none.
func splitAddress(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil { // there is no port
		host, port = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"), ""
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", "", errAddress
		}
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", errAddress
	}
	if host == "" || strings.ContainsAny(host, "/@?#[]% \t\r\n") {
		return "", "", errAddress
	}

	return host, port, nil
}

// CheckAddress tells whether an address of a node can be read.
func CheckAddress(address string) error {
	_, _, err := splitAddress(address)
	return err
}

// nodesOf are the URIs of all nodes, each once: the URI's own address and the others, with the same
// user, virtual host and TLS. limit is how long each may take until its connection is open.
func nodesOf(uri string, addresses []string) (nodes []string, limit time.Duration, err error) {
	first, err := ParseURI(uri)
	if err != nil {
		return nil, 0, err
	}
	whole, err := url.Parse(uri)
	if err != nil {
		return nil, 0, errors.New("is not an AMQP URI") // impossible: it was parsed before
	}

	nodes = []string{uri}
	known := map[string]bool{net.JoinHostPort(first.Host, strconv.Itoa(first.Port)): true}
	for _, address := range addresses {
		host, port, err := splitAddress(address)
		if err != nil {
			return nil, 0, fmt.Errorf("%q: %w", address, err)
		}
		if port == "" {
			port = "5672"
			if first.Scheme == "amqps" {
				port = "5671"
			}
		}
		if at := net.JoinHostPort(host, port); !known[at] {
			known[at] = true
			node := *whole
			node.Host = at
			nodes = append(nodes, node.String())
		}
	}

	return nodes, timeoutFor(first, len(nodes)), nil
}

// unreachable joins what has kept from each node.
type unreachable []error

func (u unreachable) Error() string {
	texts := make([]string, len(u))
	for i, err := range u {
		texts[i] = err.Error()
	}

	return "none of the nodes can be reached: " + strings.Join(texts, "; ")
}

func (u unreachable) Unwrap() []error { return u }

// inTurn makes one attempt, at each node once at the most. Who connects again begins with next:
// behind the one that was used or tried last.
func inTurn[T any](
	nodes []string, next *atomic.Uint64, over func() bool, open func(node string) (T, error),
) (T, error) {
	var (
		none T
		errs unreachable
	)
	// of this attempt: others may be on their way at the same time, and must not take nodes from it
	first := next.Load()
	for i := range uint64(len(nodes)) {
		next.Store(first + i + 1)
		node := nodes[(first+i)%uint64(len(nodes))]
		opened, err := open(node)
		if err == nil {
			return opened, nil
		}
		if len(nodes) == 1 {
			return none, err
		}
		errs = append(errs, fmt.Errorf("%s: %w", addressOf(node), err))
		if over() {
			break
		}
	}

	return none, errs
}

// addressOf is what may be shown of a node.
func addressOf(node string) string {
	u, err := url.Parse(node)
	if err != nil {
		return "?" // impossible: it was made of one that could be read
	}

	return u.Host
}

// dialWithin bounds a dialer that has perhaps no bound of its own, or a longer one. What it opens
// too late is closed. Until the handshake is over the connection has the same deadline; amqp091-go
// clears it.
func dialWithin(limit time.Duration, dial Dialer, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	deadline := time.Now().Add(limit)
	dialled := make(chan result, 1)
	go func() {
		conn, err := dial(network, address)
		dialled <- result{conn, err}
	}()

	select {
	case r := <-dialled:
		if r.err != nil {
			return nil, r.err
		}
		if err := r.conn.SetDeadline(deadline); err != nil {
			_ = r.conn.Close()
			return nil, err
		}

		return r.conn, nil
	case <-time.After(limit):
		go func() {
			if r := <-dialled; r.conn != nil {
				_ = r.conn.Close()
			}
		}()

		return nil, fmt.Errorf("no connection to %s within %s", address, limit)
	}
}

// Dialer opens a connection, as amqp091.Config.Dial does.
type Dialer = func(network, address string) (net.Conn, error)

// DialInTurn is for clients that know one address only, such as watermill-amqp's: a Dial for the
// amqp091.Config of theirs that opens a connection to one of the nodes, whatever address it is
// asked for. It does TLS itself, because amqp091-go checks the certificate against the name of the
// one address; plain is the URI to go with it, which asks for none.
//
// Upstream: a client knows one address only; no issue known, read in its source; watermill-amqp 2.1
// and 3.1; TestDialInTurn, TestDialInTurnTLS, TestAddressesMoveOnStock; remove when its configs
// have several.
func DialInTurn(uri string, addresses []string, config *tls.Config, dial Dialer) (plain string, inTurnDial Dialer,
	err error) {
	nodes, limit, err := nodesOf(uri, addresses)
	if err != nil {
		return "", nil, err
	}
	first, err := endpointOf(uri, config)
	if err != nil {
		return "", nil, err
	}
	if dial == nil {
		dial = amqp091.DefaultDial(limit)
	}

	next := new(atomic.Uint64)

	return first.uri, func(network, _ string) (net.Conn, error) {
		return inTurn(nodes, next, func() bool { return false }, func(node string) (net.Conn, error) {
			broker, err := endpointOf(node, config)
			if err != nil {
				return nil, err
			}

			return broker.dial(limit, dial, network, func(conn net.Conn) net.Conn { return conn })
		})
	}, nil
}
