package groupcmd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// newBroker is one whose statistics are renewed twice a second.
func newBroker(t *testing.T) *brokertest.Broker {
	t.Helper()
	broker := brokertest.StartWithManagement(t)
	broker.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500), application:set_env(rabbit, "+
		"collect_statistics_interval, 500).")

	return broker
}

// setting is a kind of a group.
type setting struct {
	policies  string // a file
	queueType string
	begins    bool // a message that is moved begins with attempt 1
}

// lab is a topic, with groups and a ledger of its messages.
type lab struct {
	*rabbit.Client
	t        *testing.T
	broker   *brokertest.Broker
	setting  setting
	policies config.Policies
	topic    string
	environ  map[string]string

	mu        sync.Mutex
	published map[string]span // by id
	calls     map[string][]call
	both      span // in which both queues may be bound
}

// span is from a request to its answer, or between two requests.
type span struct{ from, to time.Time }

func (s span) meets(o span) bool { return !s.to.Before(o.from) && !s.from.After(o.to) }

// call of a handler.
type call struct {
	group   string
	attempt int
	good    bool
}

func newLab(t *testing.T, broker *brokertest.Broker, s setting) *lab {
	t.Helper()
	policies, err := policyfile.Load(s.policies)
	require.NoError(t, err)
	l := &lab{Client: rabbit.New(t, broker.URI), t: t, broker: broker, setting: s, policies: policies,
		topic: "topic-" + strings.ToLower(rand.Text())[:6], published: map[string]span{}, calls: map[string][]call{},
		environ: map[string]string{cli.EnvURI: broker.URI, cli.EnvManagement: broker.ManagementURL,
			cli.EnvPolicies: s.policies}}

	return l
}

func (l *lab) queue(group string) string { return l.topic + "_" + group }

// serve starts an instance of a group; stop ends it.
func (l *lab) serve(group string) (stop func()) {
	l.t.Helper()
	conf := amqp.NewDurablePubSubConfig(l.broker.URI, amqp.GenerateQueueNameTopicName)
	conf.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: l.setting.queueType}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Policies: l.policies, Logger: watermill.NopLogger{}})
	require.NoError(l.t, err)
	subscriber, err := retrier.Group(group).NewSubscriber()
	require.NoError(l.t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(l.t, err)
	router.AddMiddleware(retrier.Middleware)
	router.AddConsumerHandler(group, l.topic, subscriber, func(msg *message.Message) error {
		return l.handle(group, msg)
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(l.t.Context())) }()
	<-router.Running()
	stop = sync.OnceFunc(func() {
		assert.NoError(l.t, router.Close())
		assert.NoError(l.t, <-stopped)
		assert.NoError(l.t, retrier.Close())
	})
	l.t.Cleanup(stop)

	return stop
}

func (l *lab) handle(group string, msg *message.Message) error {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	err := fate.Handle(msg.UUID, attempt)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[msg.UUID] = append(l.calls[msg.UUID], call{group, attempt.Number, err == nil})

	return err
}

// load publishes about 100 messages a second, until it is stopped.
func (l *lab) load() (stop func()) {
	l.t.Helper()
	channel := l.Channel()
	require.NoError(l.t, channel.Confirm(false))
	ctx, end := context.WithCancel(l.t.Context())
	ended := make(chan struct{})
	fates := []fate.Fate{fate.Succeeds, fate.Once, fate.Succeeds, fate.Twice, fate.Succeeds, fate.Permanent, fate.Never}
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprintf("%s-%d", fates[i%len(fates)], i)
			began := time.Now()
			confirm, err := channel.PublishWithDeferredConfirm(l.topic, "", true, false, rabbit.Message(id, id))
			if assert.NoError(l.t, err) {
				assert.True(l.t, confirm.Wait())
			}
			l.mu.Lock()
			l.published[id] = span{began, time.Now()}
			l.mu.Unlock()
			<-time.After(10 * time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() { end(); <-ended })
	l.t.Cleanup(stop)

	return stop
}

// output of a command that runs; safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// running is a command line that runs.
type running struct {
	out, errs output
	code      chan int
}

func (l *lab) start(args ...string) *running { return l.startWith(l.t.Context(), args...) }

func (l *lab) startWith(ctx context.Context, args ...string) *running {
	r := &running{code: make(chan int, 1)}
	s := &cli.Session{In: strings.NewReader(""), Out: &r.out, Err: &r.errs, Now: time.Now,
		Getenv: func(key string) string { return l.environ[key] }}
	go func() { r.code <- cli.Run(ctx, s, append([]string{"group"}, args...), Command) }()

	return r
}

// says waits until the command has said a text.
func (r *running) says(t *testing.T, text string) {
	t.Helper()
	await.Until(t, func() bool { return strings.Contains(r.errs.String(), text) || len(r.code) > 0 }, "says %q", text)
	require.Contains(t, r.errs.String(), text, "%s", &r.out)
}

func (r *running) ends(t *testing.T, code int) {
	t.Helper()
	require.Equal(t, code, await.Value(t, r.code, "the command ends"), "%s%s", &r.out, &r.errs)
}

// run runs a command line to its end.
func (l *lab) run(code int, args ...string) *running {
	l.t.Helper()
	r := l.start(args...)
	r.ends(l.t, code)

	return r
}

// names are the queues of the broker whose names begin with a text.
func (l *lab) names(prefix string) (names []string) {
	l.t.Helper()
	for _, kind := range []string{"queues", "exchanges"} {
		var all []struct{ Name string }
		require.NoError(l.t, json.Unmarshal([]byte(l.broker.API(http.MethodGet, nil, kind)), &all))
		for _, q := range all {
			if strings.HasPrefix(q.Name, prefix) {
				names = append(names, q.Name)
			}
		}
	}

	return names
}

// permit lets the commands run as a user with these permissions.
func (l *lab) permit(user, tag, configure, write, read string) {
	l.t.Helper()
	l.broker.API(http.MethodPut, map[string]string{"password": user, "tags": tag}, "users", user)
	l.broker.API(http.MethodPut, map[string]string{"configure": configure, "write": write, "read": read},
		"permissions", "/", user)
	for _, name := range []string{cli.EnvURI, cli.EnvManagement} {
		address, err := url.Parse(l.environ[name])
		require.NoError(l.t, err)
		address.User = url.UserPassword(user, user)
		l.environ[name] = address.String()
	}
}

// mortal is a management API that ends, as the process would, after some requests that change
// something.
type mortal struct {
	lab  *lab
	left atomic.Int64
	next http.Handler
}

func (l *lab) mortal(changes int64) {
	l.t.Helper()
	l.proxied(func(next http.Handler) http.Handler {
		m := &mortal{lab: l, next: next}
		m.left.Store(changes)
		return m
	})
}

// proxied puts a handler before the management API.
func (l *lab) proxied(before func(http.Handler) http.Handler) {
	l.t.Helper()
	target, err := url.Parse(l.broker.ManagementURL)
	require.NoError(l.t, err)
	user := target.User
	target.User = nil
	address, err := url.Parse(newServer(l.t, before(httputil.NewSingleHostReverseProxy(target))))
	require.NoError(l.t, err)
	address.User = user
	l.environ[cli.EnvManagement] = address.String()
}

func (m *mortal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && m.left.Add(-1) < 0 || m.left.Load() < 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	l, binds := m.lab, strings.Contains(r.URL.Path, "/e/"+m.lab.topic+"/q/")
	l.mu.Lock()
	if binds && r.Method == http.MethodPost && l.both.from.IsZero() {
		l.both.from = time.Now()
	}
	l.mu.Unlock()
	m.next.ServeHTTP(w, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if binds && r.Method == http.MethodDelete {
		l.both.to = time.Now()
	}
}
