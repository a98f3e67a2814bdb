package tests

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// failed wants an error and checks it and all that is in it.
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
