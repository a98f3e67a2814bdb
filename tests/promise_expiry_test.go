package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// expiring is a policy whose retries would go on for 4 s, in steps of 200 ms.
func expiring(change func(*config.Policy)) config.Policies {
	p := config.Policy{Delays: ms(200), Retries: 20}
	change(&p)

	return config.Policies{Default: p}
}

// P10: a deadline, by the policy or by the message itself, holds across retries, from the timestamp
// or the first delivery.
func TestP10_Deadline(t *testing.T) {
	t.Parallel()

	aged := func(p amqp091.Publishing, age time.Duration) amqp091.Publishing {
		p.Timestamp = time.Now().Add(-age)
		return p
	}
	expires := func(p amqp091.Publishing, after string) amqp091.Publishing {
		p.Expiration = after
		return p
	}

	type row struct {
		policy config.Policies
		msg    func() amqp091.Publishing
		lasts  time.Duration // how long it is tried
		calls  int           // how often, at most: a busy machine makes it fewer
	}
	each(t, map[string]row{
		"max age": {
			expiring(func(p *config.Policy) { p.MaxAge = 700 * time.Millisecond }),
			func() amqp091.Publishing { return rabbit.Message("1", "x") }, 700 * time.Millisecond, 4,
		},
		"expiration": {
			expiring(func(*config.Policy) {}),
			func() amqp091.Publishing { return expires(rabbit.Message("1", "x"), "700") }, 700 * time.Millisecond, 4,
		},
		"the earlier of both": {
			expiring(func(p *config.Policy) { p.MaxAge = time.Hour }),
			func() amqp091.Publishing { return expires(rabbit.Message("1", "x"), "500") }, 500 * time.Millisecond, 3,
		},
		"max age, from the timestamp": {
			expiring(func(p *config.Policy) { p.MaxAge = 62200 * time.Millisecond }),
			func() amqp091.Publishing {
				return aged(rabbit.Message("1", "x"), time.Minute)
			}, 3200 * time.Millisecond, 16,
		},
		"a timestamp of the future": {
			expiring(func(p *config.Policy) { p.MaxAge = 500 * time.Millisecond }),
			func() amqp091.Publishing { return aged(rabbit.Message("1", "x"), -time.Hour) }, 500 * time.Millisecond, 3,
		},
		"a timestamp that the expiration contradicts": {
			expiring(func(*config.Policy) {}),
			func() amqp091.Publishing {
				return expires(aged(rabbit.Message("1", "x"), time.Hour), "500")
			}, 500 * time.Millisecond, 3,
		},
		"too old before its first handler": {
			expiring(func(p *config.Policy) { p.MaxAge = time.Minute }),
			func() amqp091.Publishing { return aged(rabbit.Message("1", "x"), time.Hour) }, 0, 0,
		},
	}, func(t *testing.T, _ string, test row) {
		var s seen
		c := setup{Handler: s.handler(failing(99))}
		c.Options.Policies = test.policy
		svc := start(t, c)
		published := time.Now()
		svc.Broker.Publish(svc.Queue, test.msg())

		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		calls := s.of("1")
		require.LessOrEqual(t, len(calls), test.calls)
		require.Equal(t, test.calls == 0, len(calls) == 0)
		assert.Equal(t, "expired", rabbit.Text(dead, header.Reason))
		history := historyOf(t, dead)
		if len(calls) == 0 {
			assert.Contains(t, rabbit.Text(dead, header.Error), "before its handler was called")
			assert.Equal(t, "0", rabbit.Text(dead, header.Attempts))
			require.Len(t, history, 1)

			return
		}
		assert.Contains(t, rabbit.Text(dead, header.Error), "failure", "what it failed of before it expired")
		deadline := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.Deadline)))(t)
		// The timestamp has whole seconds, so a deadline by it may be up to a second late;
		// never early.
		assert.WithinRange(t, deadline, published.Add(test.lasts-1010*time.Millisecond),
			calls[0].At.Add(test.lasts+50*time.Millisecond))
		for _, c := range calls {
			assert.True(t, c.At.Before(deadline.Add(20*time.Millisecond)), "no handler is called after it")
			assert.Equal(t, deadline, c.Attempt.Deadline.UTC().Truncate(time.Millisecond))
		}
		last := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.LastFailure)))(t)
		if n := len(history); history[n-1].Reason == "expired" { // it came back late, and was not handled any more
			assert.False(t, last.Before(deadline))
			assert.False(t, history[n-2].At.Add(200*time.Millisecond).After(deadline.Add(time.Millisecond)),
				"no wait begins that would outlive the deadline")
			return
		}
		// It was found out when the next wait would have outlived it. On a busy machine the
		// last call, which began before the deadline, may have failed after it.
		assert.True(t, last.Add(200*time.Millisecond).After(deadline.Add(-time.Millisecond)))
	})
}

// P10: what has expired can be dropped instead; and it may expire while it waits behind others.
func TestP10_DroppedOrFoundOutLate(t *testing.T) {
	t.Parallel()

	t.Run("dropped", func(t *testing.T) {
		t.Parallel()

		var s seen
		c := setup{Handler: s.handler(failing(99))}
		c.Options.Policies = expiring(func(p *config.Policy) {
			p.MaxAge, p.OnExpiry = 300*time.Millisecond, config.ExpiryDrop
		})
		svc := start(t, c)
		svc.publish("1")

		await.Until(t, func() bool { return len(svc.Logs.with("Message has expired")) == 1 }, "dropped")
		calls := s.count()
		assert.LessOrEqual(t, calls, 2)
		await.Stays(t, 500*time.Millisecond, func() bool {
			return svc.Broker.Depth(svc.dlq()) == 0 && s.count() == calls
		}, "it is gone")
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
		assert.Empty(t, svc.Letters())
	})

	t.Run("behind others", func(t *testing.T) {
		t.Parallel()

		release := make(chan struct{})
		var s seen
		c := setup{Handler: s.handler(func(msg *message.Message) error {
			if msg.UUID == "slow" {
				<-release
			}

			return nil
		})}
		c.Options.Policies = expiring(func(p *config.Policy) { p.MaxAge = 300 * time.Millisecond })
		svc := start(t, c)
		late := rabbit.Message("late", "x")
		late.Timestamp = time.Now()
		svc.Broker.Publish(svc.Queue, rabbit.Message("slow", "x"), late)
		await.Until(t, func() bool {
			return time.Since(late.Timestamp) > 1500*time.Millisecond
		}, "it has become too old")
		close(release)

		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, "late", rabbit.UUID(dead))
		assert.Equal(t, "expired", rabbit.Text(dead, header.Reason))
		assert.Empty(t, s.of("late"), "its handler was not called")
		letters := svc.toldLetters(1)
		assert.Equal(t, retry.ReasonExpired, letters[0].Verdict.Reason)
		assert.Equal(t, "late", letters[0].Message.UUID)
	})
}

// P10: who replays a message wants it handled: its deadlines are those of a new life, and its own
// expiration is over.
func TestP10_ReplayBeginsAnew(t *testing.T) {
	t.Parallel()

	var s seen
	c := setup{Handler: s.handler(failing(99))}
	c.Options.Policies = expiring(func(p *config.Policy) { p.MaxAge, p.Retries = 3*time.Second, 1 })
	svc := start(t, c)
	first := rabbit.Message("1", "x")
	first.Expiration, first.Timestamp = "300", time.Now()
	svc.Broker.Publish(svc.Queue, first)
	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	require.NotEmpty(t, rabbit.Text(dead, header.Deadline))

	await.Until(t, func() bool {
		return time.Since(first.Timestamp) > 4500*time.Millisecond
	}, "all its deadlines are over")
	// A new life may expire as well, when the machine stands still for its 3 s. Then the next
	// replay counts.
	for again := 0; ; again++ {
		before := s.count()
		svc.Broker.Publish(svc.Queue,
			amqp091.Publishing{Headers: dead.Headers, Timestamp: dead.Timestamp, Body: dead.Body})
		dead = svc.Broker.Take(svc.dlq(), 1)[0]
		if again < 2 && rabbit.Text(dead, header.Reason) == "expired" {
			continue
		}
		assert.Equal(t, "exhausted", rabbit.Text(dead, header.Reason))
		assert.Equal(t, before+2, s.count(), "handled, and retried")

		return
	}
}
