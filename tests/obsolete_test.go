package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

type obsoleteBroker struct {
	*topologyBroker
	broker *brokertest.Broker
	client *httpapi.Client
}

// An obsoleteTest begins something that takes the broker's statistics, and returns what is to be
// checked when it is over: so all of them wait at the same time.
type obsoleteTest func(t *testing.T, b *obsoleteBroker) (check func(t *testing.T))

func TestObsolete_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	client := must(httpapi.New(broker.ManagementURL, "/", nil))(t)
	b := &obsoleteBroker{
		topologyBroker: newTopologyBroker(t, broker.URI),
		broker:         broker,
		client:         client,
	}
	tests := []struct {
		name  string
		begin obsoleteTest
	}{
		{"statistics that lag", keepsWhatStatisticsDoNotShowYet},
		{"an empty queue goes", retiresEmpty},
		{"what waits comes back first", retiresAfterWhatWaits},
		{"classic queues", retiresClassic},
		{"classic queue with an unacknowledged message", keepsUnacknowledged},
		{"shared queues", retiresShared},
		{"the retry exchange is gone", retiresWithoutExchange},
		{"odd names", retiresOddNames},
		{"dead letters that cannot be delivered", keepsUndeliverable},
		{"bound again meanwhile", keepsBoundAgain},
		{"declared again meanwhile", keepsDeclaredAgain},
		{"gone meanwhile", acceptsGone},
		{"two at once", oneOfTwo},
		{"a consumer", keepsConsumed},
		{"another binding", keepsBoundElsewhere},
		{"another queue of the name", keepsOtherQueue},
		{"listing", lists},
		{"permissions", needsPermissions},
	}
	checks := make([]func(*testing.T), len(tests))
	for i, test := range tests {
		checks[i] = test.begin(t, b)
		if i == 0 {
			// The first test has a quorum queue that tells every 5 s, which the API collects every
			// 5 s. The others need not wait so long for the first one.
			broker.Ctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")
		}
	}
	for i, test := range tests {
		t.Run(test.name, checks[i])
	}
	t.Run("statistics are disabled", func(t *testing.T) {
		queue := b.obsolete(t, config.Policy{Delays: ms(100)})
		broker.Ctl("eval", "application:set_env(rabbitmq_management, disable_management_stats, true).")
		uncertain := errorAs[*retire.Error](t, <-b.retire(t, queue))
		assert.False(t, uncertain.InUse)
		assert.Contains(t, uncertain.Found, "the broker collects no statistics")
		assert.True(t, b.exists(t, queue.Name))
		assert.Len(t, b.bindings(t, queue.Name), 1, "nothing was changed")
	})
}

func (b *obsoleteBroker) obsolete(t *testing.T, policy config.Policy) retire.Queue {
	t.Helper()
	_, queue := b.obsoletePlan(t, policy, topology.Names{})
	return queue
}

func (b *obsoleteBroker) obsoletePlan(t *testing.T, policy config.Policy, names topology.Names) (topology.Plan,
	retire.Queue) {
	t.Helper()
	plan := must(topology.New(uniqueName("q"), policy, names))(t)
	b.Declare(plan.Queue, nil)
	require.NoError(t, plan.Declare(b.channel()))
	obsolete := retire.Obsolete(nil, plan)
	require.Len(t, obsolete, 1)
	return plan, obsolete[0]
}

func (b *obsoleteBroker) retire(t *testing.T, queue retire.Queue) <-chan error {
	t.Helper()
	return b.retireWithin(t, queue, await.Bound)
}

func (b *obsoleteBroker) retireWithin(t *testing.T, queue retire.Queue, timeout time.Duration) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	go func() {
		defer cancel()
		done <- retire.Delete(ctx, b.client, queue)
	}()
	return done
}

// keeps begins to retire a queue that has messages. The returned function waits until the API has
// shown so many for some seconds, which is as late as the broker likes, and at least as long as
// lasting. Then it ends Retire, which tells of them.
func (b *obsoleteBroker) keeps(t *testing.T, queue retire.Queue, messages int64,
	lasting time.Duration) func(*testing.T) {
	t.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	began := time.Now()
	go func() { done <- retire.Delete(ctx, b.client, queue) }()
	return func(t *testing.T) {
		t.Helper()
		var shown time.Time
		await.Until(t, func() bool {
			if len(done) > 0 {
				return true
			}
			n := b.said(t, queue)
			if shown.IsZero() && n != nil && *n == messages {
				shown = time.Now()
			}
			return !shown.IsZero() && time.Since(shown) > 3*time.Second && time.Since(began) > lasting
		}, "the API shows %d messages in queue %s", messages, queue.Name)
		require.Empty(t, done, "Retire has ended by itself")
		cancel()
		kept := errorAs[*retire.Error](t, await.Value(t, done, "the end of Retire"))
		require.ErrorIs(t, kept, context.Canceled)
		assert.False(t, kept.InUse)
		assert.Equal(t, messages, kept.Messages)
	}
}

var (
	hourly        = config.Policy{Delays: []time.Duration{time.Hour}}
	hourlyClassic = config.Policy{Delays: []time.Duration{time.Hour}, ClassicQueues: true}
)

func inUse(t *testing.T, err error, found string) {
	t.Helper()
	used := errorAs[*retire.Error](t, err)
	assert.True(t, used.InUse)
	assert.Contains(t, used.Found, found)
}

// said is how many messages the API says that the queue has; nil if it does not know yet.
func (b *obsoleteBroker) said(t *testing.T, queue retire.Queue) *int64 {
	t.Helper()
	q := must(b.client.Queue(t.Context(), queue.Name))(t)
	return q.Messages
}

func (b *obsoleteBroker) unbound(t *testing.T, queue string) {
	t.Helper()
	await.Until(t, func() bool {
		bindings := b.bindings(t, queue)
		return len(bindings) == 1 && bindings[0].Arguments["amqpretry-retire"] != nil
	})
}

func (b *obsoleteBroker) bindings(t *testing.T, queue string) []httpapi.Binding {
	t.Helper()
	bindings := must(b.client.Bindings(t.Context(), queue))(t)
	return bindings
}

func (b *obsoleteBroker) send(t *testing.T, queue retire.Queue, n int) {
	t.Helper()
	b.Publish(queue.Name, slices.Repeat([]amqp.Publishing{{DeliveryMode: amqp.Persistent}}, n)...)
}

func (b *obsoleteBroker) ready(t *testing.T, queue string) int {
	t.Helper()
	n := b.Depth(queue)
	require.NotEqual(t, -1, n, "queue %s is not there", queue)
	return n
}

func (b *obsoleteBroker) exists(t *testing.T, queue string) bool {
	t.Helper()
	_, err := b.channel().QueueDeclarePassive(queue, true, false, false, false, nil)
	var gone *amqp.Error
	if errors.As(err, &gone) && gone.Code == amqp.NotFound {
		return false
	}
	require.NoError(t, err)
	return true
}

func (b *obsoleteBroker) permit(t *testing.T, vhost, user, configure, write, read string) {
	t.Helper()
	b.put(t, fmt.Sprintf(`{"configure": %q, "write": %q, "read": %q}`, configure, write, read), "permissions", vhost,
		user)
}

func (b *obsoleteBroker) as(t *testing.T, user, password string) *httpapi.Client {
	t.Helper()
	return b.asIn(t, "/", user, password)
}

func (b *obsoleteBroker) asIn(t *testing.T, vhost, user, password string) *httpapi.Client {
	t.Helper()
	address := must(url.Parse(b.broker.ManagementURL))(t)
	address.User = url.UserPassword(user, password)
	client := must(httpapi.New(address.String(), vhost, nil))(t)
	return client
}

// put makes what rabbitmqctl would take a second for.
func (b *obsoleteBroker) put(t *testing.T, body string, path ...string) {
	t.Helper()
	b.broker.API(http.MethodPut, json.RawMessage(body), path...)
}

// It takes no more permissions than the docs say.
func retiresEmpty(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	plan, queue := b.obsoletePlan(t, hourly, topology.Names{})
	user := uniqueName("user")
	b.put(t, `{"password": "secret", "tags": "management"}`, "users", user)
	b.permit(t, "/", user, "^"+plan.Queue+"[.]retry[.]", "^"+plan.Queue+"[.]retry[.]", "^"+plan.Queue+"[.]retry$")
	restricted := *b
	restricted.client = b.as(t, user, "secret")
	retired := restricted.retire(t, queue)
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, b.exists(t, queue.Name))
		assert.True(t, b.exists(t, plan.Queue))
		assert.True(t, b.exists(t, plan.DeadLetterQueue))
		assert.Len(t, b.bindings(t, plan.DeadLetterQueue), 1, "the dead-letter queue stays bound")
		require.NoError(t, <-b.retire(t, queue), "retiring what is gone is no error")
	}
}

func retiresAfterWhatWaits(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	const messages = 50
	plan, queue := b.obsoletePlan(t, config.Policy{Delays: ms(5000)}, topology.Names{})
	b.send(t, queue, messages)
	retired := b.retire(t, queue)
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, b.exists(t, queue.Name))
		assert.Equal(t, messages, b.ready(t, plan.Queue))
	}
}

// classicTime is more than the 14 s after which Retire takes the statistics of a classic queue for
// certain.
const classicTime = 18 * time.Second

func retiresClassic(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	plan, queue := b.obsoletePlan(t, config.Policy{Delays: ms(3000), ClassicQueues: true}, topology.Names{})
	b.send(t, queue, 5)
	_, full := b.obsoletePlan(t, hourlyClassic, topology.Names{})
	b.send(t, full, 1)
	retired, kept := b.retire(t, queue), b.keeps(t, full, 1, classicTime)
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, b.exists(t, queue.Name))
		assert.Equal(t, 5, b.ready(t, plan.Queue))

		kept(t)
		assert.Equal(t, 1, b.ready(t, full.Name))
	}
}

// AMQP says 0 ready, and a deletion "if empty" would take it away.
func keepsUnacknowledged(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	_, queue := b.obsoletePlan(t, hourlyClassic, topology.Names{})
	b.send(t, queue, 1)
	ch := b.channel()
	_, ok, err := ch.Get(queue.Name, false)
	require.NoError(t, err)
	require.True(t, ok)
	kept := b.keeps(t, queue, 1, classicTime)
	return func(t *testing.T) {
		kept(t)
		assert.Zero(t, b.ready(t, queue.Name))
		require.NoError(t, ch.Close())
		await.Until(t, func() bool { return b.ready(t, queue.Name) == 1 })
	}
}

func retiresShared(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	names := topology.Names{Shared: uniqueName("shared")}
	plan, queue := b.obsoletePlan(t, config.Policy{Delays: ms(4000), Strategy: config.StrategyShared}, names)
	b.PublishTo(plan.RetryExchange, plan.Queue, amqp.Publishing{Headers: amqp.Table{"amqpretry-delay": "4s"}})
	retired := b.retire(t, queue)
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, b.exists(t, queue.Name))
		assert.Equal(t, 1, b.ready(t, plan.Queue))
	}
}

func retiresWithoutExchange(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	plan, queue := b.obsoletePlan(t, hourly, topology.Names{})
	require.NoError(t, b.channel().ExchangeDelete(plan.RetryExchange, false, false))
	retired := b.retire(t, queue)
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, b.exists(t, queue.Name))
	}
}

// oddName has all that means something in paths, queries and shells.
const oddName = `-a/b %2F+&?#;='"$(touch pwned)` + "`x`" + ` \n{}*!~ é😀/..`

func retiresOddNames(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	b.put(t, `{}`, "vhosts", oddName)
	b.permit(t, oddName, "guest", ".*", ".*", ".*")
	odd := *b
	odd.topologyBroker = newTopologyBroker(t, strings.TrimSuffix(b.broker.URI, "/")+"/"+url.PathEscape(oddName))
	odd.client = b.asIn(t, oddName, "guest", "guest")

	plan := must(topology.New(oddName, hourly, topology.Names{}))(t)
	require.NoError(t, plan.Declare(odd.channel()))
	off := must(topology.New(oddName, config.Policy{Mode: config.ModeOff}, topology.Names{}))(t)
	obsolete := must(retire.Find(t.Context(), odd.client, topology.Names{}, off))(t).Queues
	require.Equal(t, retire.Obsolete(nil, plan), obsolete)
	retired := odd.retire(t, obsolete[0])
	return func(t *testing.T) {
		require.NoError(t, <-retired)
		assert.False(t, odd.exists(t, obsolete[0].Name))
		assert.True(t, odd.exists(t, plan.DeadLetterQueue))
	}
}

// Over AMQP such a queue is empty, and the API says so of its ready messages.
func keepsUndeliverable(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	plan, queue := b.obsoletePlan(t, config.Policy{Delays: ms(100)}, topology.Names{})
	_, err := b.channel().QueueDelete(plan.Queue, false, false, false)
	require.NoError(t, err)
	b.send(t, queue, 3)
	await.Until(t, func() bool { return b.ready(t, queue.Name) == 0 })
	retired := b.retireWithin(t, queue, 24*time.Second) // longer than it takes to retire an empty one
	return func(t *testing.T) {
		stuck := errorAs[*retire.Error](t, <-retired)
		assert.False(t, stuck.InUse)
		require.ErrorIs(t, stuck, context.DeadlineExceeded)
		assert.EqualValues(t, 3, stuck.Messages)
		assert.Contains(t, stuck.Found, fmt.Sprintf("not accepted by %q, where they return to: 3", plan.Queue))
		assert.Zero(t, b.ready(t, queue.Name))
		assert.Empty(t, b.bindings(t, queue.Name), "the mark is taken away")
	}
}

// Right after a message was confirmed the API still says 0.
func keepsWhatStatisticsDoNotShowYet(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	_, queue := b.obsoletePlan(t, hourly, topology.Names{})
	require.Nil(t, b.said(t, queue), "a queue without statistics is not an empty one")
	return func(t *testing.T) {
		saysNone := func() bool {
			n := b.said(t, queue)
			return n != nil && *n == 0
		}
		await.Until(t, saysNone)
		b.send(t, queue, 1)
		for !saysNone() { // the statistics were collected just now: again
			_, err := b.channel().QueuePurge(queue.Name, false)
			require.NoError(t, err)
			await.Until(t, saysNone)
			b.send(t, queue, 1)
		}
		require.Equal(t, 1, b.ready(t, queue.Name))
		b.keeps(t, queue, 1, 0)(t)
		assert.Equal(t, 1, b.ready(t, queue.Name))
	}
}

func keepsBoundAgain(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	plan, queue := b.obsoletePlan(t, hourly, topology.Names{})
	retired := b.retire(t, queue)
	b.unbound(t, queue.Name)
	require.True(t, b.publish(plan, amqp.Table{"amqpretry-delay": "1h"}), "nobody can route into it: returned")
	require.NoError(t, plan.Declare(b.channel())) // as the instance does, to which its copy was returned
	require.False(t, b.publish(plan, amqp.Table{"amqpretry-delay": "1h"}))
	return func(t *testing.T) {
		inUse(t, <-retired, "again, as an old instance does")
		assert.Equal(t, 1, b.ready(t, queue.Name))
		bindings := b.bindings(t, queue.Name)
		require.Len(t, bindings, 1, "the instance's own, without the mark")
		assert.Equal(t, "1h", bindings[0].Arguments["amqpretry-delay"])
	}
}

func keepsDeclaredAgain(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	retired := b.retire(t, queue)
	b.unbound(t, queue.Name)
	_, err := b.channel().QueueDelete(queue.Name, false, false, false)
	require.NoError(t, err)
	// Without its binding: what shows that it is another one is that the mark is gone.
	require.NoError(t, topology.Plan{Queues: []topology.Queue{queue.Queue}}.Declare(b.channel()))
	return func(t *testing.T) {
		inUse(t, <-retired, "")
		assert.True(t, b.exists(t, queue.Name))
	}
}

func acceptsGone(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	retired := b.retire(t, queue)
	b.unbound(t, queue.Name)
	_, err := b.channel().QueueDelete(queue.Name, false, false, false)
	require.NoError(t, err)
	return func(t *testing.T) { require.NoError(t, <-retired) }
}

func oneOfTwo(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	first := b.retire(t, queue)
	b.unbound(t, queue.Name)
	second := b.retire(t, queue)
	return func(t *testing.T) {
		inUse(t, <-first, "another Retire")
		require.NoError(t, <-second)
		assert.False(t, b.exists(t, queue.Name))
	}
}

func keepsConsumed(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	b.consume(queue.Name)
	retired := b.retire(t, queue)
	return func(t *testing.T) {
		inUse(t, <-retired, "consumers on it: 1")
		assert.True(t, b.exists(t, queue.Name))
	}
}

func keepsBoundElsewhere(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	require.NoError(t, b.channel().QueueBind(queue.Name, "audit", "amq.topic", false, nil))
	inUse(t, <-b.retire(t, queue), "amq.topic")
	return func(t *testing.T) {
		assert.Len(t, b.bindings(t, queue.Name), 2, "nothing was changed")
	}
}

func keepsOtherQueue(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	for argument, value := range map[string]any{"x-message-ttl": int64(1000), "x-dead-letter-routing-key": "other",
		"x-queue-type": "classic"} {
		other := queue
		other.Arguments = maps.Clone(queue.Arguments)
		other.Arguments[argument] = value
		if argument == "x-message-ttl" {
			other.Delay = time.Second
		}
		inUse(t, <-b.retire(t, other), argument)
	}
	return func(t *testing.T) {
		assert.Len(t, b.bindings(t, queue.Name), 1, "nothing was changed")
	}
}

func lists(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	now := must(topology.New(uniqueName("q"), config.Policy{Delays: ms(5000)}, topology.Names{}))(t)
	q := now.Queue
	for _, policy := range []config.Policy{{Delays: ms(5000, 1500, 3_600_000)},
		{Delays: ms(2000), ClassicQueues: true}} {
		old := must(topology.New(q, policy, topology.Names{}))(t)
		require.NoError(t, old.Declare(b.channel()))
	}
	other := must(topology.New(q+".retry", config.Policy{Delays: ms(1500)}, topology.Names{}))(t)
	require.NoError(t, other.Declare(b.channel()))
	// What looks alike, and is not of the plan's making.
	for name, arguments := range map[string]amqp.Table{
		q + ".retry.7s": {"x-queue-type": "classic", "x-message-ttl": int64(7000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q},
		q + ".retry.8s": {"x-queue-type": "quorum", "x-message-ttl": int64(8000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q + "2"},
		q + ".retry.9s": {"x-queue-type": "quorum", "x-message-ttl": int64(9001), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q},
		q + ".retry.10s": {"x-queue-type": "quorum", "x-message-ttl": int64(10000),
			"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": q},
		q + ".retry.11s": {"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q},
		q + ".retry.12s": {"x-message-ttl": int64(12000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q},
		"x" + q + ".retry.13s": {"x-queue-type": "quorum", "x-message-ttl": int64(13000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": q},
	} {
		b.Declare(name, arguments)
	}
	return func(t *testing.T) {
		obsolete := must(retire.Find(t.Context(), b.client, topology.Names{}, now))(t)
		var names []string
		for _, o := range obsolete.Queues {
			names = append(names, strings.TrimPrefix(o.Name, q))
		}
		slices.Sort(names)
		assert.Equal(t, []string{".retry.1500ms", ".retry.1h", ".retry.2s.classic"}, names)
	}
}

func needsPermissions(t *testing.T, b *obsoleteBroker) func(*testing.T) {
	queue := b.obsolete(t, hourly)
	user := uniqueName("user")
	refused := func(api *httpapi.Client, status int, texts ...string) {
		err := retire.Delete(t.Context(), api, queue)
		refused := errorAs[*httpapi.Error](t, err)
		assert.Equal(t, status, refused.Status, "%v", err)
		for _, text := range texts {
			assert.ErrorContains(t, err, text)
		}
		assert.NotContains(t, err.Error(), "secret")
		_, err = retire.Find(t.Context(), api, topology.Names{})
		if refused.Needs == "" {
			assert.Error(t, err)
		}
	}
	worker := b.as(t, user, "secret")
	b.put(t, `{"password": "secret", "tags": ""}`, "users", user)
	refused(b.as(t, user, "wrong-secret"), http.StatusUnauthorized, user, "password")
	refused(worker, http.StatusUnauthorized, "the tag management")
	b.put(t, `{"password": "secret", "tags": "management"}`, "users", user)
	// RabbitMQ 4.3 says 404, as of a queue that is gone: it must not count as retired.
	err := retire.Delete(t.Context(), worker, queue)
	require.ErrorContains(t, err, "access to")
	b.permit(t, "/", user, "^$", "^$", "^$")
	refused(worker, http.StatusUnauthorized, "write on queue", "read on exchange")
	b.permit(t, "/", user, "^$", ".*", ".*")
	retired := make(chan error, 1)
	go func() { retired <- retire.Delete(context.WithoutCancel(t.Context()), worker, queue) }()

	missing := must(httpapi.New(b.broker.ManagementURL, "nowhere", nil))(t)
	require.Error(t, retire.Delete(t.Context(), missing, queue), "without the virtual host")
	return func(t *testing.T) {
		err := <-retired
		refused := errorAs[*httpapi.Error](t, err)
		assert.Equal(t, http.StatusUnauthorized, refused.Status)
		assert.ErrorContains(t, err, "configure on queue")
		assert.True(t, b.exists(t, queue.Name))
	}
}

// What is at the address may be anything.
func TestObsoleteManagementIsNotThere(t *testing.T) {
	t.Parallel()
	plan := must(topology.New("q", config.Policy{Delays: ms(100)}, topology.Names{}))(t)
	queue := retire.Obsolete(nil, plan)[0]
	silent := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	closed := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	require.NoError(t, closed.Close())
	amqpURI := must(url.Parse(brokertest.URI(t)))(t)
	for name, host := range map[string]string{"silent": silent.Addr().String(), "closed": closed.Addr().String(),
		"AMQP": amqpURI.Host} {
		t.Run(name, func(t *testing.T) {
			timeout := await.Bound
			if name == "silent" {
				timeout = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			api := must(httpapi.New("http://guest:secret@"+host, "/", nil))(t)
			err := retire.Delete(ctx, api, queue)
			unanswered := errorAs[*httpapi.Error](t, err)
			assert.Zero(t, unanswered.Status)
			assert.ErrorContains(t, err, host)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}
