package tests

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

// told collects everything that somebody might read, and knows what may not be in it.
type told struct {
	t       *testing.T
	secrets []string

	mu    sync.Mutex
	texts int
}

// secretsOf are all ways in which a password is written on the way to a broker.
func secretsOf(user, password string) []string {
	return []string{
		password, url.QueryEscape(password), url.PathEscape(password),
		strings.TrimPrefix(url.UserPassword("", password).String(), ":"),
		base64.StdEncoding.EncodeToString([]byte(user + ":" + password)),
		base64.StdEncoding.EncodeToString([]byte("\x00" + user + "\x00" + password)),
		fmt.Sprintf("%x", password), fmt.Sprintf("%d", []byte(password)), strings.Trim(fmt.Sprintf("%q", password),
			`"`),
	}
}

// text checks a text; everything else comes here.
func (c *told) text(where, text string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts++
	for _, secret := range c.secrets {
		assert.NotContains(c.t, text, secret, where)
	}
}

// value checks a value under the verbs that print more than its text.
func (c *told) value(where string, v any) {
	c.t.Helper()
	c.text(where, fmt.Sprintf("%v\n%+v\n%#v\n%q", v, v, v, v))
}

func (c *told) failed(where string, err error) {
	c.t.Helper()
	require.Error(c.t, err, where)
	c.error(where, err)
}

func (c *told) error(where string, err error) {
	c.t.Helper()
	if err == nil {
		return
	}
	c.value(where, err)
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			c.error(where, inner)
		}
	case interface{ Unwrap() error }:
		c.error(where, e.Unwrap())
	}
}

func (c *told) event(e retry.Event) {
	c.error("event "+string(e.Kind), e.Err)
	if e.Message != nil { // the rest of it is for its own synchronisation
		c.text("payload", string(e.Message.Payload))
		c.value("metadata", e.Message.Metadata)
		e.Message = nil
	}
	c.value("event "+string(e.Kind), e)
}

func (c *told) logs(l *logs) {
	c.t.Helper()
	for _, e := range l.All() {
		c.text("log", e.String())
		c.error("log "+e.Text, e.Err)
		for key, field := range e.Fields {
			c.value("log field "+key, field)
		}
	}
}

// No password is in any error, log, event, metric or dead letter, whatever goes wrong, neither as
// it is nor as URIs write it.
func TestCredentials_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Shared(t)
	each(t, map[string]string{
		"plain": "Xq7-Unmistakable-9zT", "with characters of URIs": "Zw8/?#@:%+&= [\"Unmistakable\"]ß",
	}, func(t *testing.T, _ string, password string) {
		user := uniqueName("user")
		b := &obsoleteBroker{broker: broker}
		b.put(t, fmt.Sprintf(`{"password": %q, "tags": "management"}`, password), "users", user)
		b.permit(t, "/", user, ".*", ".*", ".*")
		b.put(t, fmt.Sprintf(`{"password": %q, "tags": ""}`, password), "users", user+"-nobody")
		b.permit(t, "/", user+"-nobody", "^$", "^$", "^$")
		c := &credentials{told: &told{t: t, secrets: secretsOf(user, password)}, t: t, broker: broker, user: user,
			password: password}

		t.Run("life", c.life)
		t.Run("connecting", c.connecting)
		t.Run("refusals", c.refusals)
		t.Run("management", c.management)
		assert.Greater(t, c.texts, 200)
	})
}

type credentials struct {
	*told

	t              *testing.T
	broker         *brokertest.Broker
	user, password string
}

func (c *credentials) uri(t *testing.T, change func(*url.URL)) string {
	t.Helper()
	uri := must(url.Parse(c.broker.URI))(t)
	uri.User = url.UserPassword(c.user, c.password)
	if change != nil {
		change(uri)
	}

	return uri.String()
}

// life: retries, dead letters, panics, a lost connection, a missing exchange, and everything that
// can be printed.
func (c *credentials) life(t *testing.T) {
	network := newProxy(t, c.broker.URI)
	proxied := must(url.Parse(network.URI))(t)
	at := c.uri(t, func(u *url.URL) { u.Host = proxied.Host })
	m := newMeasured(t, metrics.Config{})

	s := setup{URI: network.URI, QueueType: "quorum", KeepObjects: true, Configure: func(conf *amqp.Config) {
		conf.Connection.AmqpURI = at
	}}
	s.Options.PanicStacks = true
	s.Options.OnEvent = func(e retry.Event) {
		c.event(e)
		m.OnEvent(e)
	}
	s.Handler = func(msg *message.Message) error {
		if msg.UUID == "panic" {
			panic(errFate)
		}

		return errFate
	}
	svc := start(t, s)
	network.cut(anyone)
	svc.publish("1", "panic")
	letters := svc.Broker.Take(svc.dlq(), 2)
	for _, d := range letters {
		c.value("dead letter", d.Headers)
		assert.NotEmpty(t, rabbit.Text(d, header.Error))
	}
	network.refuse(anyone)
	network.cut(anyone)
	await.Until(t, func() bool { return len(svc.Logs.with("Cannot connect")) > 1 }, "it tries to come back")
	_, err := svc.Retrier.QueueDepths(t.Context())
	c.failed("depths", err)
	consuming := func() int { return len(svc.Events(retry.EventConsuming)) }
	before := consuming()
	network.allow(anyone)
	await.Until(t, func() bool { return consuming() > before }, "it has declared everything again")
	svc.Broker.Remove("", svc.dlq())
	await.Until(t, func() bool {
		_, err = svc.Retrier.QueueDepths(t.Context())
		return err != nil && strings.Contains(err.Error(), "NOT_FOUND")
	}, "it is back")
	c.failed("depths", err)
	svc.Broker.Remove(svc.exchange())
	svc.publish("2")
	svc.Broker.Take(svc.dlq(), 1)

	c.value("retrier", svc.Retrier)
	c.value("subscriber", svc.Sub)
	letterSub := must(svc.Retrier.NewDeadLetterSubscriber())(t)
	c.value("dead-letter subscriber", letterSub)
	c.value("the retrier in something else", struct{ P *adapter.Retrier }{svc.Retrier})
	definitions := must(svc.Retrier.Definitions(svc.Queue))(t)
	c.text("definitions", string(definitions))
	policy := must(svc.Retrier.ProtectPolicy(svc.Queue))(t)
	c.value("policy", policy)
	families := must(m.registry.Gather())(t)
	for _, family := range families {
		c.text("metric", family.String())
	}
	svc.close()
	_, err = svc.Retrier.NewSubscriber()
	c.failed("after Close", err)
	c.logs(svc.Logs)
}

// try makes a retrier and everything of it that connects, and checks what each has to say.
func (c *credentials) try(t *testing.T, where, uri string, change func(*amqp.Config), options amqpretry.Options) {
	t.Helper()
	logger := newLogs(t)
	options.Logger, options.OnEvent = logger, c.event
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Connection.Reconnect = fastReconnect()
	if change != nil {
		change(&conf)
	}
	retrier, err := adapter.New(conf, options)
	if err != nil {
		c.failed(where, err)
		return
	}
	defer func() { c.error(where, retrier.Close()) }()
	c.value(where, retrier)

	queue := uniqueName("secret")
	failures := 0
	failed := func(err error) {
		if err != nil {
			failures++
			c.error(where, err)
		}
	}
	if sub, err := retrier.NewSubscriber(); err == nil {
		_, err = sub.Subscribe(t.Context(), queue)
		failed(err)
		failed(sub.SubscribeInitialize(queue))
	} else {
		failed(err)
	}
	letters, err := retrier.NewDeadLetterSubscriber()
	if err == nil {
		_, err = letters.Subscribe(t.Context(), queue)
	}
	failed(err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // where nobody answers; its error is one more
	_, err = retrier.QueueDepths(ctx)
	cancel()
	failed(err)
	_, err = retrier.Definitions(queue)
	failed(err)
	stock, err := amqp.NewSubscriber(retrier.Config(), logger)
	if err == nil {
		_, err = stock.Subscribe(t.Context(), queue)
		failed(err)
		failed(stock.Close())
	} else {
		failed(err)
	}
	assert.NotZero(t, failures, where)
	c.logs(logger)
}

func (c *credentials) connecting(t *testing.T) {
	each(t, map[string]func(*url.URL){
		"wrong user":     func(u *url.URL) { u.User = url.UserPassword("nobody", c.password) },
		"wrong password": func(u *url.URL) { u.User = url.UserPassword(c.user, c.password+"x") },
		"no such host":   func(u *url.URL) { u.Host = "no-such-host.invalid:5672" },
		"nobody listens": func(u *url.URL) { u.Host = "127.0.0.1:1" },
		"no broker": func(u *url.URL) {
			u.Host = strings.TrimPrefix(c.broker.ManagementURL, "http://guest:guest@")
		},
		"TLS where none is":   func(u *url.URL) { u.Scheme = "amqps" },
		"no such vhost":       func(u *url.URL) { u.Path = "/nowhere" },
		"no such certificate": func(u *url.URL) { u.Scheme, u.RawQuery = "amqps", "cacertfile=/nowhere" },
		"unknown mechanism":   func(u *url.URL) { u.RawQuery = "auth_mechanism=none" },
		"heartbeat":           func(u *url.URL) { u.RawQuery = "heartbeat=none" },
		"port":                func(u *url.URL) { u.Host = "127.0.0.1:99999" },
	}, func(t *testing.T, where string, change func(*url.URL)) {
		// some wait for an answer
		c.try(t, where, c.uri(t, change), nil, amqpretry.Options{})
	})
	c.try(t, "mechanism that the broker has not", c.uri(t, nil), func(conf *amqp.Config) {
		conf.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.ExternalAuth{}}}
	}, amqpretry.Options{})
	c.try(t, "wrong password of the config", c.broker.URI, func(conf *amqp.Config) {
		conf.Connection.AmqpConfig =
			&amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "nobody",
				Password: c.password}}}
	}, amqpretry.Options{})
	for _, uri := range []string{"amqp://" + c.user + ":" + c.password + "@[::1", "amqp://%zz" + c.password + "@h",
		c.password} {
		c.try(t, "not a URI", uri, nil, amqpretry.Options{})
	}
	unreachable := c.uri(t, func(u *url.URL) { u.Host = "127.0.0.1:1" })
	c.try(t, "several nodes", unreachable, nil,
		amqpretry.Options{Addresses: []string{"127.0.0.1:2", "no-such-host.invalid"}})
	c.try(t, "a URI as an address", unreachable, nil,
		amqpretry.Options{Addresses: []string{c.uri(t, nil), c.user + ":" + c.password + "@h:1"}})
}

func (c *credentials) refusals(t *testing.T) {
	nobody := c.uri(t, func(u *url.URL) { u.User = url.UserPassword(c.user+"-nobody", c.password) })
	for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
		for _, assume := range []bool{false, true} {
			c.try(t, fmt.Sprintf("no permission, %s, assume %t", name, assume), nobody, nil,
				amqpretry.Options{AssumeTopology: assume,
					Policies: config.Policies{Default: config.Policy{Delays: ms(50), Strategy: strategy}}})
		}
	}
	c.try(t, "nothing is there", c.uri(t, nil), nil, amqpretry.Options{AssumeTopology: true})
	c.try(t, "conflict", c.uri(t, nil), func(conf *amqp.Config) {
		conf.Queue.Arguments = amqp091.Table{"x-queue-type": "nonsense"}
	}, amqpretry.Options{})
	c.try(t, "exclusive consumer", c.uri(t, nil), func(conf *amqp.Config) {
		conf.Consume.Exclusive = true
		conf.Consume.Arguments = amqp091.Table{"x-priority": "none"}
	}, amqpretry.Options{})
}

func (c *credentials) management(t *testing.T) {
	plan := must(topology.New(uniqueName("secret"), config.Policy{Delays: ms(50)}, topology.Names{}))(t)
	retired := retire.Obsolete(nil, plan)[0]
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/moved"):
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/broken"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"reason": `))
		default:
			_, _ = w.Write([]byte("<html>")) // neither what it was asked with: a proxy that shows that is none of ours
		}
	}))
	t.Cleanup(pages.Close)

	secret := url.UserPassword(c.user, c.password)
	api := must(url.Parse(c.broker.ManagementURL))(t)
	foreign := must(url.Parse(pages.URL))(t)
	plain := "http://" + c.user + ":" + c.password + "@" + api.Host
	for where, address := range map[string]string{
		"wrong password": (&url.URL{Scheme: "http", User: url.UserPassword(c.user, c.password+"x"), Host: api.Host}).
			String(),
		"no permission": (&url.URL{Scheme: "http", User: url.UserPassword(c.user+"-nobody", c.password),
			Host: api.Host}).String(),
		"nobody listens": (&url.URL{Scheme: "http", User: secret, Host: "127.0.0.1:1"}).String(),
		"no such host":   (&url.URL{Scheme: "http", User: secret, Host: "no-such-host.invalid"}).String(),
		"TLS":            (&url.URL{Scheme: "https", User: secret, Host: api.Host}).String(),
		"a page":         (&url.URL{Scheme: "http", User: secret, Host: foreign.Host}).String(),
		"redirect":       (&url.URL{Scheme: "http", User: secret, Host: foreign.Host, Path: "/moved"}).String(),
		"no JSON":        (&url.URL{Scheme: "http", User: secret, Host: foreign.Host, Path: "/broken"}).String(),
		"scheme":         strings.Replace(plain, "http:", "amqp:", 1),
		"no scheme":      strings.TrimPrefix(plain, "http://"),
		"query":          (&url.URL{Scheme: "http", User: secret, Host: api.Host, RawQuery: "a=b"}).String(),
		"fragment":       plain + "/#/queues",
		"port":           plain + "x",
		"digits":         "http://" + c.user + ":1/" + c.password + "@" + api.Host,
		"not a URL":      "http://%zz" + c.password,
	} {
		m := management.API{URL: address}
		client, err := httpapi.New(m.URL, "/", m.HTTPClient)
		if err == nil {
			_, err = retire.Find(t.Context(), client, topology.Names{}, plan)
			c.failed(where, err)
			err = retire.Delete(t.Context(), client, retired)
		}
		c.failed(where, err)
		c.value(where, m)
		c.value(where, &m)
		c.value(where, []any{m, struct{ M management.API }{m}})
	}
	good := management.API{URL: (&url.URL{Scheme: "http", User: secret, Host: api.Host}).String()}
	client := must(httpapi.New(good.URL, "/", nil))(t)
	_, err := retire.Find(t.Context(), client, topology.Names{}, plan)
	require.NoError(t, err, "with the password all is well")
	c.value("management", good)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	c.failed("over", retire.Delete(ctx, client, retired))
}

// A broker that takes only clients with a certificate: all of the retrier's connections have it,
// also when they come back. Who has none, or does not trust the broker, is told so.
func TestTLS_OwnBroker(t *testing.T) {
	t.Parallel()

	authority := brokertest.NewAuthority(t)
	broker := brokertest.StartTLS(t, authority)
	testTLSMixedUp(t, broker)
	testTLSRefused(t, broker, authority)
	testTLSLife(t, broker, authority)
}

const endedUnheard = "does the broker accept the client's certificate?"

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

// Where a permission is missing, nobody is disturbed by attempts to fix that.
func TestMissingPermissionIsNoExpiry_OwnBroker(t *testing.T) {
	t.Parallel()
	b := &obsoleteBroker{broker: brokertest.Shared(t)}
	user, queue := uniqueName("user"), uniqueName("queue")
	b.put(t, `{"password": "guest", "tags": ""}`, "users", user)
	b.permit(t, "/", user, ".*", ".*", ".*")
	svc := start(t, setup{URI: strings.Replace(b.broker.URI, "guest:", user+":", 1), Queue: queue, QueueType: "quorum",
		KeepObjects: true, Tiers: true, Handler: byFate})
	b.permit(t, "/", user, ".*", `^amq\.default$`, ".*")
	svc.publish("once-1")
	// By then the connection is so old that it might have credentials which have expired.
	await.Until(t, func() bool {
		held := svc.Held()
		return len(held) > 0 && held[len(held)-1].For > 15*time.Second
	}, "it is held")
	assert.Empty(t, svc.Logs.with("its token seems to have expired"))
	svc.publish("ok")
	await.Until(t, func() bool { return len(svc.Calls.of("ok")) == 1 }, "others are handled")
	b.permit(t, "/", user, ".*", ".*", ".*")
	await.Until(t, func() bool { return len(svc.Calls.of("once-1")) == 2 }, "it goes on with the permission")
}

// renewed is a mechanism that brings a new token at each dial.
type renewed struct{ lives time.Duration }

func (r renewed) Mechanism() string { return "PLAIN" }
func (r renewed) Response() string {
	return fmt.Sprintf("\x00%s\x00%s", "service", token(time.Now().Add(r.lives)))
}

// Tokens of OAuth 2 that end after seconds: with the time of their end connections live on, without
// it they are opened again. Everything is handled and retried either way.
func TestTokens_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	enabled := filepath.Join(broker.Dir, "etc", "enabled_plugins")
	require.NoError(t, os.WriteFile(enabled, []byte("[rabbitmq_auth_backend_oauth2].\n"), 0o600))
	broker.Ctl("eval", fmt.Sprintf(`
		application:load(rabbitmq_auth_backend_oauth2),
		application:set_env(rabbitmq_auth_backend_oauth2, resource_server_id, <<"rabbitmq">>),
		application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"k">>}, {signing_keys,
			#{<<"k">> => {map, #{<<"kty">> => <<"oct">>, <<"alg">> => <<"HS256">>, <<"k">> => <<"%s">>,
			<<"kid">> => <<"k">>}}}}]),
		application:set_env(rabbit, channel_tick_interval, 500), %% after which a channel asks for permissions again
		application:set_env(rabbit, auth_backends, [rabbit_auth_backend_internal, rabbit_auth_backend_oauth2]),
		rabbit_plugins:ensure("%s").`, base64.RawURLEncoding.EncodeToString(tokenKey), enabled))
	const lives = 8 * time.Second
	asks := func(tells bool, asked *atomic.Int64) setup {
		return setup{Options: amqpretry.Options{Credentials: func(context.Context) (config.Credentials, error) {
			asked.Add(1)
			expires := time.Now().Add(lives)
			c := config.Credentials{User: "service", Password: token(expires)}
			if tells {
				c.Expires = expires
			}

			return c, nil
		}}}
	}
	each(t, map[string]func(asked *atomic.Int64) setup{
		"with their end": func(asked *atomic.Int64) setup { return asks(true, asked) },
		"without":        func(asked *atomic.Int64) setup { return asks(false, asked) },
		"kept too long": func(asked *atomic.Int64) setup {
			var kept config.Credentials
			var mu sync.Mutex
			s := asks(true, asked)
			next := s.Options.Credentials
			s.Options.Credentials = func(ctx context.Context) (_ config.Credentials, err error) {
				mu.Lock()
				defer mu.Unlock()
				if time.Until(kept.Expires) < time.Second {
					kept, err = next(ctx)
				}

				return kept, err
			}

			return s
		},
		"by a mechanism": func(*atomic.Int64) setup {
			return setup{Configure: func(c *amqp.Config) {
				c.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{renewed{lives}}}
			}}
		},
	}, func(t *testing.T, name string, begin func(asked *atomic.Int64) setup) {
		var asked atomic.Int64
		s := begin(&asked)
		s.URI, s.QueueType, s.KeepObjects, s.Handler = broker.URI, "quorum", true, byFate
		svc := start(t, s)
		publisher := must(svc.Retrier.NewPublisher())(t)
		client := must(dlq.Open(t.Context(), dlq.Config{URI: broker.URI, NoDeliveryLimitPolicy: true,
			AMQP: &amqp091.Config{SASL: []amqp091.Authentication{renewed{lives}}}}))(t)
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		var ids []string
		for began := time.Now(); time.Since(began) < 3*lives; {
			id := fmt.Sprintf("once-%d", len(ids))
			ids = append(ids, id)
			require.NoError(t, publisher.Publish(svc.Queue, message.NewMessage(id, nil)))
			<-time.After(lives / 4)
		}
		await.Until(t, func() bool {
			for _, id := range ids {
				if len(svc.Calls.of(id)) < 2 {
					return false
				}
			}

			return true
		}, "all are retried")
		await.Until(t, func() bool {
			_, err := client.Queue(svc.Queue).Stat(t.Context(), dlq.Filter{})
			return err == nil
		}, "the dead-letter queue can be looked at")
		switch {
		case name == "kept too long": // most of it is over before the next one comes
		case name == "with their end":
			assert.Empty(t, svc.Events(retry.EventDisconnected))
			assert.Empty(t, svc.Logs.with("its token seems to have expired"))
			assert.Greater(t, asked.Load(), int64(6), "three connections, three times")
		case svc.Broker.AtLeast(4, 3):
			assert.NotEmpty(t, svc.Events(retry.EventDisconnected), "the broker closes the connection")
		default:
			told := svc.Logs.with("its token seems to have expired")
			assert.GreaterOrEqual(t, len(told), 2, "copies and publisher")
		}
	})
}

var tokenKey = []byte("a key for tests, of thirty-two bytes or more")

// token is one that the broker trusts until then.
func token(expires time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	signed := part(`{"alg":"HS256","typ":"JWT","kid":"k"}`) + "." + part(fmt.Sprintf(`{"sub":"service",`+
		`"client_id":"service","aud":["rabbitmq"],"exp":%d,`+
		`"scope":["rabbitmq.configure:*/*","rabbitmq.write:*/*","rabbitmq.read:*/*"]}`, expires.Unix()))
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(signed))

	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
