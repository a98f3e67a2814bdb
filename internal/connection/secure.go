package connection

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// endpoint is where a URI leads, taken apart so that TLS is ours to do: between it and amqp091-go
// stands what makes headers readable.
type endpoint struct {
	uri     string // without TLS
	address string
	tls     bool
	secure  func(net.Conn) (net.Conn, error)
}

func endpointOf(uri string, config *tls.Config) (endpoint, error) {
	parsed, err := ParseURI(uri)
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{
		uri: uri, address: net.JoinHostPort(parsed.Host, strconv.Itoa(parsed.Port)),
		secure: func(conn net.Conn) (net.Conn, error) { return conn, nil },
	}
	if parsed.Scheme != "amqps" {
		return e, nil
	}

	plain, err := url.Parse(uri)
	if err != nil {
		return endpoint{}, err
	}
	plain.Scheme, e.tls = "amqp", true
	e.uri = plain.String()
	if config == nil {
		if config, err = tlsOf(parsed); err != nil {
			return endpoint{}, fmt.Errorf("create TLS config from URI: %w", err)
		}
	}
	if config = config.Clone(); config.ServerName == "" {
		config.ServerName = parsed.Host
	}
	e.secure = func(conn net.Conn) (net.Conn, error) {
		client := tls.Client(conn, config)
		return client, client.Handshake()
	}

	return e, nil
}

// dial opens a connection that speaks TLS where the endpoint does. wrap gets the socket.
func (e endpoint) dial(
	limit time.Duration, dial Dialer, network string, wrap func(net.Conn) net.Conn,
) (net.Conn, error) {
	conn, err := dialWithin(limit, dial, network, e.address)
	if err != nil {
		return nil, err
	}
	secured, err := e.secure(wrap(conn))
	if err != nil {
		_ = conn.Close()
		return nil, explainTLS(err)
	}

	return secured, nil
}

// tlsOf is what the parameters of a URI say, read as amqp091-go reads them.
func tlsOf(uri amqp091.URI) (*tls.Config, error) {
	config := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if uri.CACertFile != "" {
		pem, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}

	return config, nil
}
