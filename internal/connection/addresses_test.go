package connection

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNodesHaveWhatTheURIHas(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		uri       string
		addresses []string
		want      []string
	}{
		"one": {"amqp://u:p@a/v", nil, []string{"amqp://u:p@a/v"}},
		"several": {"amqp://u:p%40@a:1/v?heartbeat=5", []string{"b:2", "c"},
			[]string{"amqp://u:p%40@a:1/v?heartbeat=5", "amqp://u:p%40@b:2/v?heartbeat=5",
				"amqp://u:p%40@c:5672/v?heartbeat=5"}},
		"TLS": {"amqps://a/%2Fv", []string{"b", "10.0.0.1:5673"},
			[]string{"amqps://a/%2Fv", "amqps://b:5671/%2Fv", "amqps://10.0.0.1:5673/%2Fv"}},
		"IPv6": {"amqp://a", []string{"[::1]:5", "::2"}, []string{"amqp://a", "amqp://[::1]:5",
			"amqp://[::2]:5672"}},
		"each only once": {"amqp://a/v", []string{"a", "b:5672", "a:5672", "b"},
			[]string{"amqp://a/v", "amqp://b:5672/v"}},
		"without a host":  {"amqp:///v", []string{"localhost", "b"}, []string{"amqp:///v", "amqp://b:5672/v"}},
		"a user's of two": {"amqp://u@a", []string{"b:1"}, []string{"amqp://u@a", "amqp://u@b:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, _, err := nodesOf(test.uri, test.addresses)
			require.NoError(t, err)
			assert.Equal(t, test.want, nodes)
		})
	}
}

func TestCheckAddress(t *testing.T) {
	t.Parallel()

	for _, address := range []string{"a", "a:1", "a.example:65535", "10.0.0.1", "::1", "[::1]", "[::1]:5672"} {
		assert.NoError(t, CheckAddress(address), address)
	}
	for _, address := range []string{"", ":5672", "a:", "a:0", "a:65536", "a:x", "amqp://a", "amqp://u:p@a:1", "u@a",
		"a/v", "a b", "a:1,b:2", "a:1:2"} {
		assert.Error(t, CheckAddress(address), address)
	}
}

// Who connects again begins behind the node that was used last, whether it was lost or did not
// answer.
func TestDialInTurn(t *testing.T) {
	t.Parallel()

	down, b, c := "127.0.0.1:1", serve(t, func(net.Conn) {}), serve(t, func(net.Conn) {})
	plain, dial, err := DialInTurn("amqp://"+down, []string{b, c}, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "amqp://"+down, plain)

	var used []string
	for range 4 {
		conn, err := dial("tcp", down)
		require.NoError(t, err)
		used = append(used, conn.RemoteAddr().String())
		require.NoError(t, conn.Close())
	}
	assert.Equal(t, []string{b, c, b, c}, used)
}

func TestDialInTurnSaysWhatKeepsFromEach(t *testing.T) {
	t.Parallel()

	failed := errors.New("no route")
	_, dial, err := DialInTurn("amqp://user:secret@a:1", []string{"b:2"}, nil, func(string, string) (net.Conn, error) {
		return nil, failed
	})
	require.NoError(t, err)
	_, err = dial("tcp", "a:1")
	require.ErrorIs(t, err, failed)
	assert.EqualError(t, err, "none of the nodes can be reached: a:1: no route; b:2: no route")
}

// A dialer that does not come back keeps nobody from the other nodes.
func TestDialWithin(t *testing.T) {
	t.Parallel()

	hang := make(chan struct{})
	ours, theirs := net.Pipe()
	_, err := dialWithin(50*time.Millisecond, func(string, string) (net.Conn, error) {
		<-hang
		return ours, nil
	}, "tcp", "a:1")
	require.ErrorContains(t, err, "no connection to a:1 within 50ms")

	require.NoError(t, theirs.SetDeadline(time.Now().Add(10*time.Second))) // refused once the other end is closed
	close(hang)
	_, err = theirs.Read(make([]byte, 1))
	assert.ErrorContains(t, err, "EOF", "what came too late is closed")
}

// The certificate of each node is checked against its own address.
func TestDialInTurnTLS(t *testing.T) {
	t.Parallel()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(leaf)

	address := serve(t, func(socket net.Conn) {
		conn := tls.Server(socket, &tls.Config{MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		_, _ = conn.Read(make([]byte, 1)) // the handshake
	})
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	config := &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	plain, dial, err := DialInTurn("amqps://127.0.0.1:"+port+"/v", []string{"localhost:" + port}, config, nil)
	require.NoError(t, err)
	assert.Equal(t, "amqp://127.0.0.1:"+port+"/v", plain, "the dialer does TLS")
	conn, err := dial("tcp", "")
	require.NoError(t, err, "the first is another host's, the second is not")
	require.NoError(t, conn.Close())
	assert.Empty(t, config.ServerName, "the user's stays as it was")

	_, dial, err = DialInTurn("amqps://127.0.0.1:"+port, []string{"localhost:" + port}, &tls.Config{
		RootCAs: trusted, MinVersion: tls.VersionTLS12, ServerName: "rabbit.example",
	}, nil)
	require.NoError(t, err)
	_, err = dial("tcp", "")
	assert.ErrorContains(t, err, "rabbit.example", "the name that the user gives is that of all")
}
