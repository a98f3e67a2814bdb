package tests

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/health"
	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// patient is a service on a broker that is going to have a fault.
type patient struct {
	*service
	broker  *brokertest.Broker
	handler http.Handler
}

// newPatient starts a service that is well. Its liveness is asked for until the test ends.
func newPatient(t *testing.T, broker *brokertest.Broker, s setup) *patient {
	t.Helper()
	s.URI, s.KeepObjects = broker.URI, true
	s.Configure = func(c *amqp.Config) { c.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 2 * time.Second} }
	if s.Handler == nil {
		s.Handler = byFate
	}
	p := &patient{service: start(t, s), broker: broker}
	p.handler = health.Handler(p.Retrier, p.Router)
	stop := make(chan struct{})
	asked := inBackground(func() {
		for dead := false; !dead; {
			status, body := p.ask("/livez")
			dead = !assert.Equal(t, []any{200, "ok\n"}, []any{status, body}, "it is alive")
			select {
			case <-stop:
				return
			case <-time.After(await.Tick):
			}
		}
	})
	t.Cleanup(func() { close(stop); <-asked })
	p.recovers()

	return p
}

func (p *patient) ask(path string) (int, string) {
	answer := httptest.NewRecorder()
	began := time.Now()
	p.handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	assert.Less(p.t, time.Since(began), 5*time.Second, "a probe waits for nothing")

	return answer.Code, answer.Body.String()
}

// has waits for a problem, with a readiness and a line of the probe that has these words.
func (p *patient) has(kind retry.ProblemKind, ready bool, words ...string) retry.Problem {
	p.t.Helper()
	var found retry.Problem
	var lines []string
	await.Until(p.t, func() bool {
		h := p.Retrier.Health()
		status, body := p.ask("/readyz?verbose")
		lines = strings.Split(body, "\n")
		i := slices.IndexFunc(h.Problems, func(problem retry.Problem) bool { return problem.Kind == kind })
		if i < 0 || h.Ready != ready {
			return false
		}
		found = h.Problems[i]

		return status == map[bool]int{true: 200, false: 503}[ready] && slices.ContainsFunc(lines,
			func(line string) bool {
				misses := func(word string) bool { return !strings.Contains(line, word) }
				return !misses("]"+string(kind)+" ") && !slices.ContainsFunc(words, misses)
			})
	}, "%s, ready: %t, with %q; the probe says: %q", kind, ready, words, &lines)
	assert.NotContains(p.t, strings.Join(lines, " "), "guest:guest")
	assert.WithinRange(p.t, found.Since, p.began(), time.Now())

	return found
}

func (p *patient) began() time.Time { return p.Events()[0].At }

// recovers waits until all is well.
func (p *patient) recovers() {
	p.t.Helper()
	var h retry.Health
	await.Until(p.t, func() bool {
		h = p.Retrier.Health()
		return h.Ready && len(h.Problems) == 0
	}, "all is well: %+v", &h)
	_, body := p.ask("/readyz?verbose")
	assert.NotContains(p.t, strings.ReplaceAll(body, "[+]", ""), "]")
}

// shortFaults are those of the short form of the test, one of each kind of problem.
var shortFaults = []string{"killed", "memory alarm", "queue deleted", "handler runs on", "password changed",
	"no leader"}

// Each fault is a problem that goes away with the fault, and only what keeps all subscriptions from
// consuming makes a service unready. It is alive all the time.
func TestHealth_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	run := func(name string, test func(t *testing.T)) {
		if !testing.Short() || slices.Contains(shortFaults, name) {
			t.Run(name, test)
		}
	}
	reconnect := func() { broker.Ctl("close_all_connections", "a test") }

	for name, end := range map[string]func(){"stopped": broker.Stop, "killed": broker.Kill, "frozen": broker.Pause} {
		run(name, func(t *testing.T) {
			p := newPatient(t, broker, setup{})
			broker.Settle()
			end()
			p.has(retry.ProblemConnection, false, "[!]", `connection "subscriber"`)
			p.has(retry.ProblemConsumer, false, "[-]", "has no consumer")
			if name == "frozen" {
				broker.Resume()
			} else {
				broker.Start()
			}
			p.recovers()
		})
	}

	run("connections closed", func(t *testing.T) {
		p := newPatient(t, broker, setup{})
		reconnect()
		await.Until(t, func() bool {
			return assert.True(t, p.Retrier.Health().Ready) && len(p.Events(retry.EventConsuming)) == 2
		}, "it is ready all the time")
		p.recovers()
	})

	for name, alarm := range map[string]struct{ command, on, off string }{
		"memory": {"set_vm_memory_high_watermark", "0.00001", "0.6"},
		"disk":   {"set_disk_free_limit", "1000000GB", "1MB"},
	} {
		run(name+" alarm", func(t *testing.T) {
			isOn := make(chan struct{})
			p := newPatient(t, broker, setup{Handler: func(msg *message.Message) error {
				if msg.UUID == "never-alarm" {
					<-isOn
				}

				return byFate(msg)
			}})
			p.publish("never-before", "never-alarm") // the first opens the connection
			await.Until(t, func() bool { return p.Calls.ids()["never-alarm"] == 1 }, "a call")
			broker.Ctl(alarm.command, alarm.on)
			await.Until(t, func() bool { return strings.Contains(broker.Ctl("status"), "larm") }, "an alarm")
			close(isOn)
			p.has(retry.ProblemAlarm, true, "[!]", `connection "forwarder"`, name)
			p.has(retry.ProblemCopies, true, "[!]", p.Queue)
			broker.Ctl(alarm.command, alarm.off)
			p.recovers()
		})
	}

	run("queue deleted", func(t *testing.T) {
		p := newPatient(t, broker, setup{})
		p.Broker.Remove("", p.Queue)
		await.Until(t, func() bool { return len(p.Events(retry.EventConsuming)) == 2 }, "it is declared again")
		p.recovers()
		p.close()

		p = newPatient(t, broker, setup{Queue: p.Queue, Options: amqpretry.Options{AssumeTopology: true}})
		p.Broker.Remove("", p.Queue)
		problem := p.has(retry.ProblemConsumer, false, "[-]", p.Queue, "does not exist")
		assert.Equal(t, []string{p.Queue, p.Queue}, []string{problem.Queue, problem.Topic})
		assert.Error(t, problem.Err)
		p.Broker.Declare(p.Queue, mainQueueArguments(""))
		p.recovers()
	})

	run("dead-letter queue full", func(t *testing.T) {
		p := newPatient(t, broker, setup{})
		broker.Ctl("set_policy", "--apply-to", "queues", "full", `\.dlq$`,
			`{"max-length":1,"overflow":"reject-publish"}`)
		await.Until(t, func() bool { // the queue takes a few more than its limit
			p.publish(fmt.Sprint("never-", time.Now().UnixNano()))
			return len(p.Held()) > 0
		}, "copies are held")
		held := p.has(retry.ProblemCopies, true, "[!]", p.Queue, "are held")
		require.ErrorContains(t, held.Err, "are held")
		broker.Ctl("clear_policy", "full")
		p.recovers()
	})

	run("handler runs on", func(t *testing.T) {
		release := make(chan struct{})
		p := newPatient(t, broker, setup{Handler: func(*message.Message) error { <-release; return nil }})
		p.publish("ok-0")
		await.Until(t, func() bool { return p.Calls.count() == 1 }, "a call")
		reconnect()
		p.has(retry.ProblemHandlers, true, "[!]", "messages: 1;", p.Queue)
		close(release)
		p.recovers()
	})

	for name, refusal := range map[string]struct {
		refuse, allow []string
		kind          retry.ProblemKind
		mark, words   string
	}{
		"password changed": {[]string{"change_password", "guest", "other"},
			[]string{"change_password", "guest", "guest"}, retry.ProblemCredentials, "[!]", "username or password"},
		"permission revoked": {[]string{"set_permissions", "guest", ".*", ".*", "^$"},
			[]string{"set_permissions", "guest", ".*", ".*", ".*"}, retry.ProblemConsumer, "[-]", "permission"},
		"no access": {[]string{"clear_permissions", "guest"},
			[]string{"set_permissions", "guest", ".*", ".*", ".*"}, retry.ProblemCredentials, "[!]", "NOT_ALLOWED"},
	} {
		run(name, func(t *testing.T) {
			p := newPatient(t, broker, setup{})
			broker.Ctl(refusal.refuse...)
			reconnect()
			p.has(refusal.kind, false, refusal.mark, refusal.words)
			p.has(retry.ProblemConsumer, false, "[-]", p.Queue)
			broker.Ctl(refusal.allow...)
			p.recovers()
		})
	}

	run("no leader", func(t *testing.T) {
		other := uniqueName("other")
		p := newPatient(t, broker, setup{QueueType: "quorum", Route: func(s *service) {
			for _, topic := range []string{s.Queue, other} {
				s.Router.AddConsumerHandler(topic, topic, s.Sub, s.recorded(byFate))
			}
		}})
		leaderless(broker, p.Queue)
		p.has(retry.ProblemLeader, true, "[!]", p.Queue, "without leader")
		elect(broker, p.Queue)
		reconnect() // this way to lose a leader has lost the consumer as well
		p.recovers()
	})
}

// What is closed in good order is no problem, and a service that has no subscription yet is not
// ready.
func TestHealth_Close(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{Handler: byFate})
	health := svc.Retrier.Health
	assert.Equal(t, retry.Health{Ready: true}, health())

	second := must(svc.Retrier.NewSubscriber())(t)
	h := health()
	assert.False(t, h.Ready)
	assert.Equal(t, retry.ProblemRunning, h.Problems[0].Kind)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		messages := must(second.Subscribe(ctx, svc.Queue))(t)
		assert.Equal(t, retry.Health{Ready: true}, health())
		cancel()
		await.Closed(t, messages, "the subscription has ended")
		assert.Equal(t, retry.Health{Ready: true}, health())
	}
	require.NoError(t, second.Close())
	assert.Equal(t, retry.Health{Ready: true}, health())

	svc.close()
	h = health()
	assert.False(t, h.Ready)
	assert.Equal(t, "the retrier is closed", h.Problems[0].Text)
}

// A subscription that a middleware would lose messages of has ended, and its service is not ready
// although others consume: a rollout is not to go on.
func TestHealth_Refused(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{Route: func(svc *service) {
		bare(t, svc, watermillsDeduplicator(), svc.Retrier.Middleware)
		for _, queue := range []string{svc.Queue, svc.Queue + "-other"} {
			removeTopology(t, svc.Broker, queue, processor.Options{Policies: retries(ms(200)...)})
			svc.Router.AddConsumerHandler(queue, queue, svc.Sub, svc.recorded(byFate))
		}
	}})
	svc.publish("never-0")
	var h retry.Health
	await.Until(t, func() bool { h = svc.Retrier.Health(); return !h.Ready }, "not ready")
	require.Len(t, h.Problems, 1)
	assert.Equal(t, svc.Queue, h.Problems[0].Queue)
	assert.Contains(t, h.Problems[0].Text, "restart the service")
}
