package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// The variables of the environment that hold addresses, where a flag would show a password to
// everybody on the machine.
const (
	EnvURI        = "AMQP_URI"
	EnvManagement = "AMQP_MANAGEMENT_URL"
)

// EnvNoLimitPolicy is the variable for --no-delivery-limit-policy.
const EnvNoLimitPolicy = "AMQPRETRY_NO_DELIVERY_LIMIT_POLICY"

const connectionName = "amqpretry"

const schemeTLS = "amqps"

// connection is what the flags say of the way to the broker.
type connectionFlags struct {
	uri, management, vhost string
	addresses              []string
	caCert, cert, key      string
	noLimitPolicy          bool
	timeout                time.Duration
}

// ConnectionFlags adds the flags of the connection to a command and those below it.
func (s *Session) ConnectionFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().AddFlagSet(s.connectionFlagSet())
}

// ConnectionTopic is the help topic about the flags of the connection.
func ConnectionTopic(s *Session) *cobra.Command {
	text := `Set the address of the broker in the environment variable ` + EnvURI +
		` or with --uri. Some commands need the
management API, others report more with it: set ` + EnvManagement + ` or --management-url. Keep passwords in the
environment: other users of the machine can see the flags of a process. No command prints a password.`

	return HelpTopic("connection", "How to reach the broker and its management API", text, s.connectionFlagSet())
}

func (s *Session) connectionFlagSet() *pflag.FlagSet {
	c, flags := &s.connection, pflag.NewFlagSet("connection", pflag.ContinueOnError)
	flags.Var(Text(&c.uri), "uri", "address of the broker, amqp://user:password@host:5672/vhost or amqps://; "+
		"prefer the environment variable "+EnvURI)
	flags.StringArrayVar(&c.addresses, "address", nil, "another node of the cluster, `host:port` or host; "+
		"repeatable")
	flags.StringVar(&c.caCert, "ca-cert", "", "PEM `file` with trusted certificate authorities, for amqps and https")
	flags.StringVar(&c.cert, "cert", "", "PEM `file` with the client certificate; needs --key")
	flags.StringVar(&c.key, "key", "", "PEM `file` with the client's private key; needs --cert")
	flags.StringVar(&c.management, "management-url", "", "address of the management API, "+
		"http://user:password@host:15672; prefer the environment variable "+EnvManagement)
	flags.Var(Text(&c.vhost), "vhost", "virtual host (default: the one in the URI)")
	flags.BoolVar(&c.noLimitPolicy, "no-delivery-limit-policy", false, "confirm that no policy of the broker sets "+
		"a delivery-limit for dead-letter queues. Before RabbitMQ 4.3,\ndlq needs this for quorum queues, or the "+
		"management API; in the environment: "+EnvNoLimitPolicy+"=yes")
	flags.DurationVar(&c.timeout, "timeout", 30*time.Second, "timeout of a connection attempt, and of a "+
		"request to the management API, such as 10s")
	DescribeInTopic(flags, "Connection flags", "connection")

	return flags
}

// URI is the address of the broker, with the virtual host of --vhost if there is one. It never
// belongs into any output.
func (s *Session) URI() (string, error) {
	uri := cmp.Or(s.connection.uri, s.Getenv(EnvURI))
	if uri == "" {
		return "", Usage("no broker address: set %s, or --uri", EnvURI)
	}
	parsed, err := connection.ParseURI(uri)
	if err != nil {
		return "", Usage("the address of the broker %w", err)
	}
	vhost := s.connection.vhost
	switch {
	case vhost == "" || vhost == parsed.Vhost:
		return uri, nil
	case s.connection.uri != "" && namesVHost(uri):
		return "", Usage("two virtual hosts: --uri has %q and --vhost %q: omit one of them", parsed.Vhost, vhost)
	}

	return withVHost(uri, vhost)
}

// Again are the flags with which a command line that is printed, to be pasted, goes to the same
// virtual host.
func (s *Session) Again() []string {
	if s.connection.vhost == "" {
		return nil
	}

	return []string{"--vhost=" + s.connection.vhost}
}

// DLQ connects to work with dead letters.
func (s *Session) DLQ(ctx context.Context, names topology.Names) (*dlq.Client, error) {
	conf, err := s.DLQConfig()
	if err != nil {
		return nil, err
	}
	conf.Names = names
	conf.OnBlocked = func(why error) {
		if why == nil {
			s.Note("The broker accepts messages again.")
			return
		}
		s.Note("Waiting: the broker accepts no messages at the moment (%v). Run amqpretry doctor, or rabbitmqctl "+
			"status.", why)
	}
	// Whoever does not want to wait interrupts once more, which ends the process.
	conf.OrderTime, conf.OnOrder = 24*time.Hour, (&order{session: s, every: 10 * time.Second}).tell

	bounded, cancel := s.bound(ctx)
	defer cancel()
	client, err := dlq.Open(bounded, conf)

	return client, s.explain(ctx, bounded, err)
}

// DLQConfig is what the flags and the environment say of the way to dead letters.
func (s *Session) DLQConfig() (dlq.Config, error) {
	broker, err := s.Broker()
	if err != nil {
		return dlq.Config{}, err
	}
	management, _, err := s.Management()
	if err != nil {
		return dlq.Config{}, err
	}

	return dlq.Config{
		URI: broker.URI, Addresses: broker.Addresses, TLS: broker.TLS, Management: management,
		NoDeliveryLimitPolicy: s.connection.noLimitPolicy || s.Getenv(EnvNoLimitPolicy) == "yes",
		AMQP:                  &amqp091.Config{Locale: "en_US", Properties: properties()},
	}, nil
}

// Dial connects for a command that speaks AMQP itself. When ctx ends, the connection does, and with
// it whatever waits for an answer of the broker.
func (s *Session) Dial(ctx context.Context) (*amqp091.Connection, error) {
	uri, err := s.URI()
	if err != nil {
		return nil, err
	}
	security, err := s.tls()
	if err != nil {
		return nil, err
	}
	if err := s.checkAddresses(); err != nil {
		return nil, err
	}

	bounded, cancel := s.bound(ctx)
	defer cancel()
	dialer := new(net.Dialer)
	plain, dial, err := connection.DialInTurn(uri, s.connection.addresses, security,
		func(network, address string) (net.Conn, error) {
			socket, err := dialer.DialContext(bounded, network, address)
			if err != nil {
				return nil, err
			}

			return closedWith(ctx, bounded, socket), nil
		})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	opened, err := amqp091.DialConfig(plain, amqp091.Config{Locale: "en_US", Properties: properties(), Dial: dial})
	if err != nil {
		return nil, s.explain(ctx, bounded, fmt.Errorf("cannot connect to RabbitMQ: %w", err))
	}

	return opened, nil
}

// closedWith closes a socket with ctx, and with bounded while nothing ends that one but time: its
// cancel comes when the connection is open.
func closedWith(ctx, bounded context.Context, socket net.Conn) net.Conn {
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	context.AfterFunc(bounded, func() {
		if errors.Is(bounded.Err(), context.DeadlineExceeded) {
			_ = socket.Close()
		}
	})

	return socket
}

// explain says what has ended an attempt to connect, which the error of a closed socket does not.
func (s *Session) explain(ctx, bounded context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case bounded.Err() != nil:
		return fmt.Errorf("cannot connect to RabbitMQ: no connection within %s; check the address, or raise --timeout",
			s.connection.timeout)
	default:
		return err
	}
}

// Management is the management API, if one was given.
func (s *Session) Management() (m management.API, ok bool, err error) {
	address := cmp.Or(s.connection.management, s.Getenv(EnvManagement))
	if address == "" {
		return management.API{}, false, nil
	}
	security, err := s.tls()
	if err != nil {
		return management.API{}, false, err
	}

	vhost, err := s.VHost()
	if err != nil {
		return management.API{}, false, err
	}
	client := &http.Client{Timeout: s.connection.timeout}
	if security != nil {
		client.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: security}
	}

	return management.API{URL: address, VHost: vhost, HTTPClient: client}, true, nil
}

// ManagementClient asks the management API. Without one it is nil, or, if something needs it, an
// error that names what does.
func (s *Session) ManagementClient(needs string) (*httpapi.Client, error) {
	m, ok, err := s.Management()
	switch {
	case err != nil:
		return nil, err
	case ok:
		return httpapi.New(m.URL, cmp.Or(m.VHost, "/"), m.HTTPClient)
	case needs != "":
		return nil, Usage("%s needs the management API: set %s, or --management-url", needs, EnvManagement)
	default:
		return nil, nil
	}
}

// VHost is the virtual host: that of --vhost, else of the URI, else /.
func (s *Session) VHost() (string, error) {
	if s.connection.uri == "" && s.Getenv(EnvURI) == "" {
		return cmp.Or(s.connection.vhost, "/"), nil
	}
	uri, err := s.URI()
	if err != nil {
		return "", err
	}
	parsed, err := connection.ParseURI(uri)

	return parsed.Vhost, err
}

func (s *Session) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.connection.timeout <= 0 {
		return context.WithCancel(ctx)
	}

	return context.WithTimeout(ctx, s.connection.timeout)
}

func (s *Session) checkAddresses() error {
	for _, address := range s.connection.addresses {
		if err := connection.CheckAddress(address); err != nil {
			return Usage("--address: %w: wanted host:port or host, without user and password", err)
		}
	}

	return nil
}

// tls is what the flags say; nil means what the URI says.
func (s *Session) tls() (*tls.Config, error) {
	c := s.connection
	if c.caCert == "" && c.cert == "" && c.key == "" {
		return nil, nil
	}
	uri, api := cmp.Or(c.uri, s.Getenv(EnvURI)), cmp.Or(c.management, s.Getenv(EnvManagement))
	if parsed, err := connection.ParseURI(uri); err == nil && parsed.Scheme != schemeTLS &&
		!strings.HasPrefix(strings.ToLower(api), "https:") {
		return nil, Usage("--ca-cert, --cert and --key need amqps:// or https://, and the address of the broker has "+
			"%s://, which sends the password unencrypted: use %s://, or omit them",
			parsed.Scheme, schemeTLS)
	}
	if (c.cert == "") != (c.key == "") {
		return nil, Usage("--cert and --key need each other: the client certificate and its private key")
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caCert != "" {
		pem, err := os.ReadFile(c.caCert)
		if err != nil {
			return nil, fmt.Errorf("--ca-cert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-cert: no certificate in %s: wanted PEM (-----BEGIN CERTIFICATE-----)",
				c.caCert)
		}
	}
	if c.cert != "" {
		certificate, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("--cert, --key: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}

	return config, nil
}

// properties name the connection, for the people who look at the broker.
func properties() amqp091.Table {
	p := amqp091.NewConnectionProperties()
	p.SetClientConnectionName(connectionName)

	return p
}
