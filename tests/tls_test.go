package tests

import (
	"crypto/tls"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// A broker that takes only clients with a certificate: all of the retrier's connections have it,
// also when they come back; and who has none, or does not trust the broker, is told so, and nothing
// spins.
func TestTLS_OwnBroker(t *testing.T) {
	t.Parallel()

	authority := brokertest.NewAuthority(t)
	broker := brokertest.StartTLS(t, authority)
	testTLSMixedUp(t, broker)
	testTLSRefused(t, broker, authority)
	testTLSLife(t, broker, authority)
}

const endedUnheard = "does the broker accept the client's certificate?"

// dials counts the attempts to connect of one config.
func dials(conf *amqp.Config) *atomic.Int32 {
	own := amqp091.Config{}
	if conf.Connection.AmqpConfig != nil {
		own = *conf.Connection.AmqpConfig
	}
	n, dial := new(atomic.Int32), amqp091.DefaultDial(await.Bound)
	own.Dial = func(network, address string) (net.Conn, error) {
		n.Add(1)
		return dial(network, address)
	}
	conf.Connection.AmqpConfig = &own

	return n
}

func testTLSRefused(t *testing.T, broker *brokertest.Broker, authority *brokertest.Authority) {
	t.Helper()
	const password = "Pa55-that-nobody-may-see"
	uri := must(url.Parse(broker.TLSURI))(t)
	uri.User = url.UserPassword("guest", password)

	stranger := brokertest.NewAuthority(t)
	client, expired := authority.Client(t, "guest"), authority.ExpiredClient(t, "guest")
	for _, test := range []struct {
		name   string
		config *tls.Config
		says   []string // one of these: the broker's word, or where the network has lost that with the connection, ours
	}{
		{"the broker's authority is unknown",
			&tls.Config{RootCAs: stranger.Pool, Certificates: []tls.Certificate{client}},
			[]string{"unknown authority"}},
		{"no certificate", &tls.Config{RootCAs: authority.Pool}, []string{"certificate required", endedUnheard}},
		{"certificate of an unknown authority", &tls.Config{
			RootCAs: authority.Pool, GetClientCertificate: certificate(stranger.Client(t, "guest")),
		}, []string{"unknown certificate authority", endedUnheard}},
		{"certificate that has expired", &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{expired}},
			[]string{"expired certificate", endedUnheard}},
		{"the broker's certificate has expired", &tls.Config{
			RootCAs: authority.Pool, Certificates: []tls.Certificate{client},
			Time: func() time.Time { return time.Now().Add(24 * time.Hour) },
		}, []string{"expired"}},
		{"another host", &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{client},
			ServerName: "rabbit.example"}, []string{"rabbit.example"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			conf := amqp.NewDurableQueueConfig(uri.String())
			conf.Connection.TLSConfig = test.config
			conf.Connection.Reconnect = fastReconnect()
			attempts := dials(&conf)
			options := noOptions()
			logs := newLogs(t)
			options.Logger = logs
			retrier := newRetrier(t, conf, options)

			began := time.Now()
			_, err := retrier.NewSubscriber()
			require.Error(t, err)
			t.Log(err)
			assert.Less(t, time.Since(began), 25*time.Second, "it does not wait until the dial times out")
			assert.ErrorContains(t, err, "cannot connect to RabbitMQ")
			found := false
			for _, text := range test.says {
				found = found || strings.Contains(err.Error(), text)
			}
			assert.True(t, found, "%v: none of %q", err, test.says)

			_, err = retrier.NewDeadLetterSubscriber()
			require.Error(t, err)
			await.Stays(t, 300*time.Millisecond, func() bool {
				return attempts.Load() == 2
			}, "one attempt each, and none behind their back")
			assert.NotContains(t, err.Error(), password)
			for _, e := range logs.All() {
				assert.NotContains(t, e.String(), password)
			}
		})
	}
}

// testTLSMixedUp asks a port for TLS without it, and one without it for TLS.
func testTLSMixedUp(t *testing.T, broker *brokertest.Broker) {
	t.Helper()
	for uri, says := range map[string]string{
		strings.Replace(broker.TLSURI, "amqps://", "amqp://", 1): "amqps://",
		strings.Replace(broker.URI, "amqp://", "amqps://", 1):    "the port speaks AMQP without TLS; use amqp://",
	} {
		retrier := newRetrier(t, amqp.NewDurableQueueConfig(uri), noOptions())
		_, err := retrier.NewSubscriber()
		require.ErrorContains(t, err, says)
		t.Log(err)
	}
}

// certificate gives it whatever authorities the broker says that it takes.
func certificate(c tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
}

func testTLSLife(t *testing.T, broker *brokertest.Broker, authority *brokertest.Authority) {
	t.Helper()
	valid, expired := authority.Client(t, "guest"), authority.ExpiredClient(t, "guest")
	trusted := &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{valid}}
	var current atomic.Pointer[tls.Certificate] // of a service whose certificate is renewed while it runs
	current.Store(&valid)
	var attempts *atomic.Int32
	nobody := must(url.Parse(broker.TLSURI))(t)
	nobody.User = url.UserPassword("nobody", "no password")

	services, publishers := map[string]*service{}, map[string]*amqpretry.Publisher{}
	for name, configure := range map[string]func(*amqp.Config){
		"TLSConfig":       func(c *amqp.Config) { c.Connection.TLSConfig = trusted },
		"TLSClientConfig": func(c *amqp.Config) { c.Connection.AmqpConfig = &amqp091.Config{TLSClientConfig: trusted} },
		"EXTERNAL": func(c *amqp.Config) { // the user is the certificate's, whatever the URI says
			c.Connection.AmqpURI = nobody.String()
			c.Connection.TLSConfig = trusted
			c.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.ExternalAuth{}}}
		},
		"renewed": func(c *amqp.Config) {
			c.Connection.TLSConfig = &tls.Config{RootCAs: authority.Pool,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return current.Load(), nil
				}}
			attempts = dials(c)
		},
	} {
		services[name] = start(t, setup{
			URI: broker.URI, Handler: failing(9), KeepObjects: true,
			Configure: func(c *amqp.Config) {
				c.Connection.AmqpURI = broker.TLSURI
				configure(c)
			},
		})
		publishers[name] = must(services[name].Retrier.NewPublisher())(t)
	}
	life := func(id string) {
		for name, svc := range services {
			require.NoError(t, publishers[name].Publish(svc.Queue, watermillMessages(id)...), name)
			dead := svc.Broker.Take(svc.dlq(), 1)
			assert.Equal(t, map[string]string{id: string(retry.ReasonExhausted)}, reasons(dead), name)
			assert.Equal(t, []int{1, 2}, svc.Calls.attempts(id), name)
			_, err := svc.Retrier.QueueDepths(t.Context())
			require.NoError(t, err, name)
		}
	}
	life("1")
	secured, external := 0, 0
	for line := range strings.Lines(broker.Ctl("list_connections", "ssl", "auth_mechanism", "user",
		"peer_cert_subject")) {
		if strings.Contains(line, "true") && strings.Contains(line, "CN=guest") && strings.Contains(line, "guest\t") {
			secured++
			if strings.Contains(line, "EXTERNAL") {
				external++
			}
		}
	}
	assert.Equal(t, 16, secured, "subscriber, forwarder, observer and publisher of each")
	assert.Equal(t, 4, external)

	current.Store(&expired)
	broker.Kill()
	broker.Start()
	renewed := services["renewed"]
	refused := func() (n int) {
		for _, e := range renewed.Logs.with("Cannot connect") {
			if e.Err != nil && strings.Contains(e.Err.Error(), "certificate") {
				n++
			}
		}

		return n
	}
	await.Until(t, func() bool { return refused() >= 3 }, "it is told why it cannot come back")
	before, began := attempts.Load(), time.Now()
	await.Until(t, func() bool { return time.Since(began) > 2*time.Second }, "time goes by")
	// The backoff is at its longest by now, which is 500 ms and 20 % less: three connections.
	assert.LessOrEqual(t, attempts.Load()-before, int32(3*(time.Since(began)/(400*time.Millisecond)+2)), "it spins")
	assert.Empty(t, renewed.Events(retry.EventAbandoned))

	current.Store(&valid)
	life("2")
}
