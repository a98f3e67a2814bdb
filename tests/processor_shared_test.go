package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// declareShared declares main queues with one failed queue. With a type of exchange they
// dead-letter through such an exchange, each with its own name as the routing key; without one by
// the default exchange, all with the same key.
func declareShared(t *testing.T, broker *rabbit.Client, form string, names ...string) []foreignQueue {
	t.Helper()
	failed := uniqueName("proc-shared-failed")
	arguments := func(string) amqp091.Table { return amqp091.Table{"x-dead-letter-routing-key": failed} }
	if form != "" {
		exchange := failed + ".exchange"
		bind := func(c *amqp091.Channel) error {
			if err := c.ExchangeDeclare(exchange, form, true, false, false, false, nil); err != nil {
				return err
			}
			for _, key := range append(slices.Clone(names), "#") {
				if err := c.QueueBind(failed, key, exchange, false, nil); err != nil {
					return err
				}
			}
			return nil
		}
		broker.Declare(failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": unlimitedDeliveries})
		broker.Do(bind)
		t.Cleanup(func() { broker.Remove(exchange) })
		arguments = func(name string) amqp091.Table {
			return amqp091.Table{"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": name}
		}
	}
	queues := []foreignQueue{}
	for _, name := range names {
		queues = append(queues, declareForeignTo(t, broker, name, failed, arguments(name)))
	}

	return queues
}

// A failed queue of ten main queues with different policies: each message returns to its own queue
// and nowhere else, and has as many attempts as the policy of that queue says.
func TestProcessor_SharedFailedQueue(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{"x-death": "", "direct exchange": "direct", "topic exchange": "topic"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newRabbit(t, brokertest.URI(t))
			options := processor.Options{Policies: config.Policies{Topics: map[string]config.Policy{}}}
			options.Names.Shared = uniqueName("proc-shared")
			names, attempts := []string{}, map[string]int{}
			for i := range 10 {
				name := uniqueName(fmt.Sprintf("proc-main-%d", i))
				names = append(names, name)
				policy := config.Policy{Delays: ms(100, 200, 150)[:1+i%3]}
				switch i {
				case 3:
					policy.ClassicQueues = true
				case 4:
					policy.Strategy = config.StrategyShared
				case 5:
					policy.Strategy, policy.Ladder = config.StrategyLadder, commonLadder
				case 6:
					policy = config.Policy{Mode: config.ModeDeadLetter}
				}
				attempts[name] = 1 + len(policy.Delays)
				options.Policies.Topics[name] = policy
				removeTopology(t, broker, name, options)
			}
			queues := declareShared(t, broker, form, names...)
			p := process(t, of(t, queues...), options)
			assert.Len(t, p.Queues(), 10)
			assert.Equal(t, 1, broker.Consumers(queues[0].Failed), "it is consumed from once")

			services := map[string]*foreigner{}
			for i, name := range names {
				services[name] = consumeForeign(t, broker, name)
				ids := []string{"never-" + name, "ok-" + name}
				if attempts[name] > 1 {
					ids = append(ids, "once-"+name)
				}
				broker.Publish(names[i], foreigns(ids...)...)
			}
			for _, name := range names {
				letter := broker.Take(name+".dlq", 1)[0]
				for key, want := range map[string]string{
					header.Count: "-1", header.Reason: "rejected", header.Queue: name, header.Topic: name,
					header.RoutingKey: name, header.Exchange: "", header.Attempts: strconv.Itoa(attempts[name]),
					header.Error: fmt.Sprintf("rejected by a consumer of queue %q", name),
				} {
					assert.Equal(t, want, rabbit.Text(letter, key), "%s of %s", key, name)
				}
				assert.Equal(t, "never-"+name, letter.MessageId)
				service := services[name]
				await.Until(t, func() bool {
					return service.handled("ok-"+name) == 1 &&
						(attempts[name] == 1 || service.handled("once-"+name) == 1)
				}, "all are handled")
				want := []string{"", "1", "2", "3"}[:attempts[name]]
				assert.Equal(t, want, service.counts("never-"+name), name)
				for id := range service.seen {
					assert.True(t, strings.HasSuffix(id, name), "%s came to %s", id, name)
				}
			}
			broker.Has(queues[0].Failed, 0)
			await.Until(t, func() bool { return len(p.Events(retry.EventDeadLettered)) == 10 }, "all are confirmed")
			for _, e := range p.Events(retry.EventDeadLettered) {
				assert.Equal(t, "never-"+e.Topic, e.Message.UUID)
				assert.Equal(t, queues[0].Failed, e.Queue)
			}
			consuming := []string{}
			for _, e := range p.Events(retry.EventConsuming) {
				consuming = append(consuming, e.Topic)
			}
			assert.ElementsMatch(t, names, consuming, "each topic is known to be consumed")
			depths := must(p.QueueDepths(t.Context()))(t)
			assert.Contains(t, depths, retry.QueueDepth{Queue: queues[0].Failed, Role: retry.QueueRoleFailed})
		})
	}
}

// Without an x-dead-letter-routing-key a message keeps the key of its publisher. That is no reason
// to bring it back to a queue of that name: the queue that has rejected it gets it.
func TestProcessor_SharedFailedQueue_KeyOfThePublisher(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	orders, mails := uniqueName("proc-orders"), uniqueName("proc-mails")
	queues := declareShared(t, broker, "topic", orders, mails)
	exchange := uniqueName("proc-fanout")
	broker.Remove("", mails)
	queues[1] = declareForeignTo(t, broker, mails, queues[0].Failed, amqp091.Table{
		"x-dead-letter-exchange": queues[0].Failed + ".exchange", "x-dead-letter-routing-key": nil})
	bound(t, broker, exchange, "fanout", mails, "")
	options := processor.Options{Policies: retries(ms(100)...)}
	removeTopology(t, broker, orders, options)
	removeTopology(t, broker, mails, options)
	process(t, of(t, queues...), options)
	others, service := consumeForeign(t, broker, orders), consumeForeign(t, broker, mails)

	broker.PublishTo(exchange, orders, foreign("never-1"))
	letter := broker.Take(mails+".dlq", 1)[0]
	assert.Equal(t, orders, rabbit.Text(letter, header.RoutingKey))
	assert.Equal(t, []string{"", "1"}, service.counts("never-1"))
	assert.Empty(t, others.of("never-1"))
}

// A message of none of the main queues is a dead letter of the first of them, and says what is
// wrong. Where the broker has set the name of a main queue as its routing key, it is retried there.
func TestProcessor_SharedFailedQueue_OtherOrigin(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	a, b := uniqueName("proc-a"), uniqueName("proc-b")
	queues := declareShared(t, broker, "topic", a, b)
	failed := queues[0].Failed
	stranger := declareForeignTo(t, broker, uniqueName("proc-stranger"), failed)
	leads := declareForeignTo(t, broker, uniqueName("proc-leads"), failed, amqp091.Table{
		"x-dead-letter-exchange": failed + ".exchange", "x-dead-letter-routing-key": b})
	options := processor.Options{Policies: retries(ms(100)...)}
	removeTopology(t, broker, a, options)
	removeTopology(t, broker, b, options)
	process(t, of(t, queues[1], queues[0]), options)
	service := consumeForeign(t, broker, a, b, stranger.Main, leads.Main)

	forged := foreign("forged")
	forged.Headers = amqp091.Table{header.Version: "1", header.Queue: b, header.Count: "1", header.Delay: "100ms"}
	broker.Publish(failed, forged)
	letter := broker.Take(a+".dlq", 1)[0]
	assert.Equal(t, []string{"forged", "permanent", "0", a}, []string{letter.MessageId,
		rabbit.Text(letter, header.Reason), rabbit.Text(letter, header.Attempts), rabbit.Text(letter, header.Queue)})
	assert.Contains(t, rabbit.Text(letter, header.Error), "not dead-lettered by a queue")
	broker.PublishTo(failed+".exchange", b, foreign("by-key"))
	letter = broker.Take(b+".dlq", 1)[0]
	assert.Contains(t, rabbit.Text(letter, header.Error), "not dead-lettered by a queue")

	broker.Publish(stranger.Main, foreign("never-1"))
	letter = broker.Take(a+".dlq", 1)[0]
	assert.Equal(t, []string{"never-1", "permanent"}, []string{letter.MessageId, rabbit.Text(letter, header.Reason)})
	assert.Contains(t, rabbit.Text(letter, header.Error), fmt.Sprintf("by queue %q and not by one of its main queues "+
		"[%q %q]", stranger.Main, a, b))

	broker.Publish(leads.Main, foreign("never-2"))
	letter = broker.Take(b+".dlq", 1)[0]
	assert.Equal(t, []string{"never-2", "rejected", "2"}, []string{letter.MessageId,
		rabbit.Text(letter, header.Reason), rabbit.Text(letter, header.Attempts)})
	assert.Equal(t, []string{"", "1"}, service.counts("never-2"))
	broker.Has(failed, 0)
}

// A main queue that is missing stops no other. Its messages are dead letters until it is there,
// which is seen at once.
func TestProcessor_SharedFailedQueue_MissingMainQueue(t *testing.T) {
	t.Parallel()
	each(t, map[string]config.Policy{
		"tiers": {Delays: ms(100)}, "classic": {Delays: ms(100), ClassicQueues: true},
		"shared": {Delays: ms(100), Strategy: config.StrategyShared},
	}, func(t *testing.T, _ string, policy config.Policy) {
		broker := newRabbit(t, brokertest.URI(t))
		here, gone := uniqueName("proc-here"), uniqueName("proc-gone")
		queues := declareShared(t, broker, "", here, gone)
		options := processor.Options{Policies: config.Policies{Default: policy}, PollInterval: time.Hour}
		options.Names.Shared = uniqueName("proc-shared")
		removeTopology(t, broker, here, options)
		removeTopology(t, broker, gone, options)
		process(t, of(t, queues...), options).stop() // declares what they need

		service := consumeForeign(t, broker, here, gone)
		broker.Publish(gone, foreign("never-1"))
		broker.Publish(here, foreign("once-2"))
		broker.Has(queues[0].Failed, 2)
		broker.Remove("", gone)
		p := process(t, of(t, queues...), options)
		await.Until(t, func() bool { return service.handled("once-2") == 1 }, "the other one goes on")
		letter := broker.Take(gone+".dlq", 1)[0]
		assert.Equal(t, []string{"never-1", "permanent"}, []string{letter.MessageId,
			rabbit.Text(letter, header.Reason)})
		assert.Contains(t, rabbit.Text(letter, header.Error), fmt.Sprintf("main queue %q does not exist", gone))
		for _, q := range p.Queues() {
			assert.True(t, q.Consuming)
			assert.Equal(t, q.MainQueue == gone, q.Err != nil, q.MainQueue)
		}
		assert.Len(t, p.Logs.with("A main queue is missing"), 1)
		_, err := p.QueueDepths(t.Context())
		require.NoError(t, err)

		declareForeignTo(t, broker, gone, queues[1].Failed)
		service = consumeForeign(t, broker, gone)
		broker.Publish(gone, foreign("once-3"))
		await.Until(t, func() bool { return service.handled("once-3") == 1 }, "it is there again")
		for _, q := range p.Queues() {
			assert.NoError(t, q.Err, q.MainQueue)
		}
	})
}

// Main queues that match a pattern are found while the processor runs. A message of a new one waits
// until it is, and is no dead letter of another queue.
func TestProcessor_SharedFailedQueue_FindsMainQueues(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	prefix := uniqueName("proc")
	first := declareForeignTo(t, broker, prefix+"-first", prefix+".failed")
	options := processor.Options{Policies: retries(ms(100)...), PollInterval: time.Hour}
	api, management := newListing(t, first.Main, first.Failed, first.Main+".dlq", "unrelated")
	conf := processor.Config{URI: brokertest.URI(t), Match: []string{first.Failed + "=" + prefix + "-*"},
		Management: management}
	removeTopology(t, broker, first.Main, options)
	p := process(t, conf, options)
	require.Len(t, p.Queues(), 1)

	second := declareForeignTo(t, broker, prefix+"-second", first.Failed)
	removeTopology(t, broker, second.Main, options)
	api.set(first.Main, first.Failed, first.Main+".dlq", second.Main)
	ids := rabbit.Numbered("never", 100)
	service := consumeForeign(t, broker, second.Main)
	broker.Publish(second.Main, foreigns(ids...)...)
	for _, letter := range broker.Take(second.Main+".dlq", len(ids)) {
		assert.Equal(t, []string{"rejected", "2"}, []string{rabbit.Text(letter, header.Reason),
			rabbit.Text(letter, header.Attempts)})
		assert.Equal(t, []string{"", "1"}, service.counts(letter.MessageId))
	}
	broker.Has(first.Main+".dlq", 0)
	require.Len(t, p.Queues(), 2)

	unlisted := declareForeignTo(t, broker, prefix+"-unlisted", first.Failed)
	consumeForeign(t, broker, unlisted.Main)
	broker.Publish(unlisted.Main, foreign("never-1"))
	letter := broker.Take(first.Main+".dlq", 1)[0]
	assert.Equal(t, "permanent", rabbit.Text(letter, header.Reason), "it is known to be none")
	broker.Has(first.Failed, 0)
}

// A change of one policy is one of that failed queue, and of no other.
func TestProcessor_SharedFailedQueue_PoliciesChange(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	a, b := uniqueName("proc-a"), uniqueName("proc-b")
	queues := declareShared(t, broker, "", a, b)
	alone := declareForeign(t, broker, uniqueName("proc-alone"))
	before, after := retries(ms(100)...), retries(ms(100)...)
	after.Topics = map[string]config.Policy{b: {Delays: ms(50, 50)}}
	for _, main := range []string{a, b, alone.Main} {
		removeTopology(t, broker, main, processor.Options{Policies: before})
		removeTopology(t, broker, main, processor.Options{Policies: after})
	}
	p := process(t, of(t, append(queues, alone)...), processor.Options{Policies: before})
	off := retries(ms(100)...)
	off.Topics = map[string]config.Policy{b: {Mode: config.ModeOff}}
	require.ErrorContains(t, p.SetPolicies(off), "mode off")

	require.NoError(t, p.SetPolicies(after))
	await.Until(t, func() bool { return broker.Depth(b+".retry.50ms") == 0 && p.Ready() == nil }, "a new policy")
	service := consumeForeign(t, broker, a, b)
	broker.Publish(a, foreign("never-a"))
	broker.Publish(b, foreign("never-b"))
	broker.Take(a+".dlq", 1)
	broker.Take(b+".dlq", 1)
	assert.Equal(t, []string{"", "1"}, service.counts("never-a"))
	assert.Equal(t, []string{"", "1", "2"}, service.counts("never-b"))
	for _, e := range p.Events(retry.EventStoppedConsuming) {
		assert.NotEqual(t, alone.Failed, e.Queue, "nothing of it has changed")
	}
}

// deadlyTo is a network that takes a connection away when something of a name is declared over it,
// as RabbitMQ does with an error of its own (541).
type deadlyTo struct {
	net.Conn
	name  string
	kills *atomic.Int64
}

func (d deadlyTo) Write(b []byte) (int, error) {
	if isDeclaration := bytes.Contains(b, []byte{0, 50, 0, 10}); isDeclaration && bytes.Contains(b, []byte(d.name)) {
		d.kills.Add(1)
		_ = d.Close()
	}

	return d.Conn.Write(b)
}

// A declaration that costs its connection stops no consumer.
func TestProcessor_DeclarationCostsNoConsumer(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	good, bad := declareForeign(t, broker, uniqueName("proc-good")), declareForeign(t, broker, uniqueName("proc-bad"))
	shared := declareShared(t, broker, "", uniqueName("proc-a"), uniqueName("proc-b"))
	options := processor.Options{PollInterval: 200 * time.Millisecond, Policies: retries(ms(100)...)}
	for _, q := range append(shared, good, bad) {
		removeTopology(t, broker, q.Main, options)
	}
	kills := new(atomic.Int64)
	conf := of(t, append(shared, good, bad)...)
	conf.AMQP = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, 10*time.Second)
		return deadlyTo{conn, bad.Main + ".retry.", kills}, err
	}}
	p := newProcessor(t, conf, options)
	p.run()
	consuming := func() (n int) {
		for _, q := range p.Queues() {
			if q.Consuming {
				n++
			}
		}
		return n
	}
	await.Until(t, func() bool { return consuming() == 3 }, "all others consume")
	before := kills.Load()
	await.Until(t, func() bool { return kills.Load() > before+3 }, "it is tried again and again")
	assert.Equal(t, 3, consuming())
	require.Error(t, p.Ready())
	assert.Empty(t, p.Events(retry.EventStoppedConsuming))
	for _, e := range p.Events(retry.EventDisconnected) {
		assert.Equal(t, "declarer", e.Connection)
	}
	service := consumeForeign(t, broker, good.Main, shared[0].Main)
	broker.Publish(good.Main, foreign("once-1"))
	broker.Publish(shared[0].Main, foreign("once-2"))
	await.Until(t, func() bool { return service.handled("once-1")+service.handled("once-2") == 2 }, "retries")
}

type command struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string // of its probes and metrics
	ended   chan error

	lines records[string]
}

func runProcessor(t *testing.T, path, uri string, args ...string) *command {
	t.Helper()
	c := &command{t: t, ended: make(chan error, 1)}
	c.cmd = exec.Command(path, append([]string{"processor", "--listen", "127.0.0.1:0"}, args...)...)
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "AMQP")
	}), "AMQP_URI="+uri)
	stderr := must(c.cmd.StderrPipe())(t)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			c.lines.put(lines.Text())
		}
	}()
	go func() {
		<-read
		c.ended <- c.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		if t.Failed() {
			logged := c.logged()
			t.Logf("the end of its log:\n%s", strings.Join(logged[max(0, len(logged)-20):], "\n"))
		}
	})
	await.Until(t, func() bool {
		for _, line := range c.logged() {
			if _, address, found := strings.Cut(line, "Serving probes and metrics\" address="); found {
				c.address = address
				return true
			}
		}
		return false
	}, "it serves its probes")

	return c
}

func (c *command) logged(parts ...string) []string {
	return c.lines.where(func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

func (c *command) get(path string) (int, string) {
	response, err := http.Get("http://" + c.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body := must(io.ReadAll(response.Body))(c.t)

	return response.StatusCode, string(body)
}

func (c *command) ready() {
	c.t.Helper()
	await.Until(c.t, func() bool {
		status, _ := c.get("/readyz")
		return status == http.StatusOK
	}, "it is ready")
}

func (c *command) kill() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Kill())
	require.Error(c.t, await.Value(c.t, c.ended, "the end of the process"), "it was killed")
}

func (c *command) exit(signal os.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(signal))
	require.NoError(c.t, await.Value(c.t, c.ended, "the end of the process"))
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "retry.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

	return path
}

// The command processes, answers probes, shows its series, reads its policies again, and ends with
// a signal.
func TestProcessorCommand(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	q := declareForeign(t, broker, uniqueName("proc"))
	for _, delay := range ms(100, 250) {
		removeTopology(t, broker, q.Main, processor.Options{Policies: retries(delay)})
	}
	policies := policyFile(t, "default: {delays: [100ms]}")
	_, management := newListing(t, q.Failed, q.Main)
	c := runProcessor(t, commandtest.Build(t, t.TempDir()), uri, "--policies", policies, "--match", "*.failed",
		"--management-url", management.URL)
	c.ready()
	service := consumeForeign(t, broker, q.Main)
	broker.Publish(q.Main, foreigns("once-1", "never-1")...)
	broker.Has(q.Main+".dlq", 1)
	await.Until(t, func() bool { return service.handled("once-1") == 1 }, "a retry")

	status, body := c.get("/livez")
	assert.Equal(t, []any{200, "ok\n"}, []any{status, body})
	series := []string{
		`amqpretry_dead_letters_total{reason="rejected",topic="` + q.Main + `"} 1`,
		`amqpretry_messages_total{handler="",result="retried",topic="` + q.Main + `"} 2`,
		`amqpretry_calls_total{handler="",outcome="rejected",topic="` + q.Main + `"} 3`,
		`amqpretry_consuming_subscriptions{topic="` + q.Main + `"} 1`,
		`amqpretry_queue_messages_ready{main_queue="` + q.Main + `",queue="` + q.Main + `.dlq",role="dead-letter"} 1`,
		`amqpretry_queue_messages_ready{main_queue="` + q.Main + `",queue="` + q.Failed + `",role="failed"} 0`,
		`amqpretry_connections_opened_total{connection="processor"} 1`,
	}
	var missing []string // the processor counts a copy when it is confirmed, which is after the copy can be seen
	await.Until(t, func() bool {
		status, body = c.get("/metrics")
		require.Equal(t, 200, status)
		missing = slices.DeleteFunc(slices.Clone(series), func(line string) bool {
			return strings.Contains(body, line+"\n")
		})
		return len(missing) == 0
	}, "all series; missing: %q", &missing)

	require.NoError(t, os.WriteFile(policies, []byte("default: {delays: [100ms, oops]}"), 0o600))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGHUP))
	await.Until(t, func() bool {
		return len(c.logged("level=ERROR", "keeping the current policies", "oops")) == 1
	}, "it keeps its policies")
	require.NoError(t, os.WriteFile(policies, []byte("default: {delays: [250ms]}"), 0o600))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGHUP))
	await.Until(t, func() bool { return broker.Depth(q.Main+".retry.250ms") == 0 }, "new policies")
	c.ready()
	broker.Publish(q.Main, foreign("once-2"))
	await.Until(t, func() bool { return service.handled("once-2") == 1 }, "a retry")
	deliveries := service.of("once-2")
	assert.GreaterOrEqual(t, deliveries[1].At.Sub(deliveries[0].At), 250*time.Millisecond)

	c.exit(syscall.SIGTERM)
	assert.Len(t, c.logged("Processor ended"), 1)
	status, _ = c.get("/livez")
	assert.Zero(t, status)
	broker.Has(q.Failed, 0)
	assert.Empty(t, c.logged("guest:guest"), "no password")
}

// Processes that are killed and closed while another goes on lose no message and mix up none. What
// is doubled, with its message id, was in flight.
func TestProcessorCommand_Killed(t *testing.T) {
	t.Parallel()
	killProcessors(t, "", "twice", 2, 1, 600)
}

func TestProcessorCommand_SharedFailedQueue_Killed(t *testing.T) {
	t.Parallel()
	killProcessors(t, "direct", "once", 1, 4, 100)
}

// killProcessors has main queues with one failed queue, see declareShared. The first has that many
// retries, and each other one more. Each gets so many messages that die, and that survive.
func killProcessors(t *testing.T, form, survives string, tries, mains, each int) {
	t.Helper()
	const prefetch = 20
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	names, args, policies := []string{}, []string{"--prefetch", strconv.Itoa(prefetch)}, "topics:\n"
	for i := range mains {
		name := uniqueName(fmt.Sprintf("proc-%d", i))
		names = append(names, name)
		delays := ms(100, 150, 200, 250)[:tries+i]
		removeTopology(t, broker, name, processor.Options{Policies: retries(delays...)})
		policies += fmt.Sprintf("  %s: {delays: %s}\n", name, strings.ReplaceAll(fmt.Sprint(delays), " ", ", "))
	}
	queues := declareShared(t, broker, form, names...)
	for _, q := range queues {
		args = append(args, "--queues", q.Failed+"="+q.Main)
	}
	args = append(args, "--policies", policyFile(t, policies))
	path := commandtest.Build(t, t.TempDir())
	start := func() *command {
		c := runProcessor(t, path, uri, args...)
		c.ready()

		return c
	}
	survivor, victim := start(), start()
	services := map[string]*foreigner{}
	for _, name := range names {
		services[name] = consumeForeign(t, broker, name)
	}

	published := inBackground(func() {
		batch := 20 / min(mains, 2)
		for i := 0; i < each; i += batch {
			for _, name := range names {
				for j := range batch {
					id := fmt.Sprintf("-%d-%s", i+j, name)
					broker.Publish(name, foreigns("never"+id, survives+id)...)
				}
			}
			<-time.After(200 * time.Millisecond)
		}
	})
	kills := 0
	for publishing := true; publishing; {
		<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
		if kills%3 == 2 {
			victim.exit(syscall.SIGTERM)
		} else {
			victim.kill()
		}
		kills++
		victim = start()
		select {
		case <-published:
			publishing = false
		default:
		}
	}

	doubled := 0
	for i, name := range names {
		letters := map[string]int{}
		await.Until(t, func() bool {
			for _, d := range broker.Drain(name + ".dlq") {
				letters[d.MessageId]++
				says(t, d, "rejected", strconv.Itoa(1+tries+i))
				hasHeaders(t, d, headers{header.Queue: name})
				assert.Regexp(t, "^never-.*-"+name+"$", d.MessageId)
			}
			handled := 0
			for n := range each {
				handled += min(1, services[name].handled(fmt.Sprintf("%s-%d-%s", survives, n, name)))
			}

			return len(letters) == each && handled == each
		}, "each message comes to its end")
		for _, n := range letters {
			doubled += n - 1
		}
		for n := range each {
			doubled += services[name].handled(fmt.Sprintf("%s-%d-%s", survives, n, name)) - 1
		}
		services[name].mu.Lock()
		for id := range services[name].seen {
			assert.True(t, strings.HasSuffix(id, name), "%s came to %s", id, name)
		}
		services[name].mu.Unlock()
	}
	t.Logf("%d processes ended, %d doubled", kills, doubled)
	assert.LessOrEqual(t, doubled, kills*prefetch)
	broker.Has(queues[0].Failed, 0)
	survivor.exit(os.Interrupt)
	victim.exit(syscall.SIGTERM)
}
