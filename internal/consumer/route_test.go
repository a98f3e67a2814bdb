package consumer

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// matches is the rule of headers exchanges and of direct ones, as RabbitMQ has it.
func matches(b topology.Binding, exchange, key string, headers amqp091.Table) bool {
	if b.Exchange != exchange {
		return false
	}
	if b.Arguments["x-match"] == nil {
		return b.Key == key
	}
	for name, value := range b.Arguments {
		if !strings.HasPrefix(name, "x-") && headers[name] != value {
			return false
		}
	}

	return true
}

func anyPolicy(t *rapid.T) config.Policy {
	delay := rapid.Map(rapid.SampledFrom([]int{1, 100, 1000, 1500, 30_000, 60_000, 90_000, 3_600_000}),
		func(ms int) time.Duration {
			return time.Duration(ms) * time.Millisecond
		})
	p := config.Policy{
		Mode: rapid.SampledFrom([]config.Mode{config.ModeRetry, config.ModeRetry, config.ModeDeadLetter}).Draw(t,
			"mode"),
		Strategy: rapid.SampledFrom([]config.Strategy{config.StrategyQueues, config.StrategyShared}).Draw(t,
			"strategy"),
		OnExpiry:  rapid.SampledFrom([]config.Expiry{config.ExpiryDeadLetter, config.ExpiryDrop}).Draw(t, "on expiry"),
		MaxAge:    rapid.SampledFrom([]time.Duration{0, time.Hour, 10 * time.Hour}).Draw(t, "max age"),
		Immediate: rapid.IntRange(0, 2).Draw(t, "immediate"),
	}
	if p.Mode == config.ModeRetry {
		p.ClassicQueues = rapid.Bool().Draw(t, "classic")
		p.Delays = rapid.SliceOfN(delay, 1, 6).Draw(t, "delays")
		p.Retries = len(p.Delays) + rapid.IntRange(0, 3).Draw(t, "more")
		p.Jitter = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "jitter")
		p.MaxAge = min(p.MaxAge, 1) * (p.Delay(1) + time.Second)
		if rapid.Bool().Draw(t, "exact") {
			p.Strategy, p.ClassicQueues = config.StrategyLadder, false
		}
	}

	return p.WithDefaults()
}

func anyFailure(t *rapid.T) retry.Failure {
	wait := time.Duration(rapid.Int64Range(-1, 5_000_000).Draw(t, "asked")) * time.Millisecond
	err := rapid.SampledFrom([]error{
		errors.New("boom"), retry.Permanent(errors.New("boom")), retry.Transient(errors.New("boom")),
		&retry.PanicError{Value: 1},
		retry.RetryAfter(wait, errors.New("boom")), retry.Postpone(wait), retry.Drop(errors.New("boom")),
		errors.New(strings.Repeat("long ", 2000)),
	}).Draw(t, "error")
	class := rapid.SampledFrom([]retry.Class{
		retry.ClassError, retry.ClassError, retry.ClassUndecodable, retry.ClassCrashed, retry.ClassUnpublishable,
		retry.ClassExpired,
	}).Draw(t, "class")

	return retry.Failure{Class: class, Err: err, Topic: "topic"}
}

// Every publish matches exactly one binding, whatever the policy, the failure and the message; also
// where the exchange has the bindings of other policies, past ones and those of others who share
// it; and it comes to where the verdict says.
func TestEveryPublishMatchesExactlyOneBinding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := anyPolicy(t)
		plan, err := topology.New("orders", policy, topology.Names{})
		require.NoError(t, err)

		bindings := map[string]topology.Binding{} // the broker keeps equal ones once
		queues := map[string]topology.Queue{}
		add := func(p topology.Plan) {
			for _, b := range p.Bindings {
				bindings[b.Exchange+" "+b.Queue] = b
			}
			for _, q := range p.Queues {
				queues[q.Name] = q
			}
		}
		add(plan)
		for range rapid.IntRange(0, 3).Draw(t, "other policies") {
			other := anyPolicy(t)
			p, err := topology.New(rapid.SampledFrom([]string{"orders", "payments"}).Draw(t, "queue"), other,
				topology.Names{})
			require.NoError(t, err)
			add(p)
		}

		d := hostile.AnyDelivery(6).Draw(t, "delivery")
		h := &handout{queue: &Queue{Name: "orders", Policy: policy, Plan: plan}, delivery: d}
		h.arrival.State = wire.State{Queue: "orders", Count: rapid.IntRange(0, policy.MaxRetries()).Draw(t, "failures"),
			Since: time.Now()}
		if rapid.Bool().Draw(t, "has a deadline") {
			h.arrival.State.Deadline = time.Now().Add(time.Duration(rand.Int64N(int64(time.Minute))))
		}
		h.Arrive(&policy, &h.arrival.State)
		s := (&engine.Engine{Logger: watermill.NopLogger{}}).Judge(h, anyFailure(t))
		if a := s.Action; a != retry.ActionRetry && a != retry.ActionPostpone && a != retry.ActionDeadLetter {
			return // nothing is published
		}

		limit := rapid.SampledFrom([]int{0, 128 << 10, 4 << 10, 1 << 10}).Draw(t, "frame")
		publishing, state := codec.CopyOf(&codec.CopyRequest{Delivery: &d, State: s.State, Wait: s.Wait}, limit)
		exchange, key := plan.Route(state.Count, s.Delay, &publishing)
		if plan.Ladder != nil && state.Count != header.CountDead {
			target, delay, ok := plan.Ladder.ParseKey(key)
			require.True(t, ok)
			require.Equal(t, topology.Target{Key: "orders"}, target)
			require.Equal(t, s.Delay, delay)
			require.Empty(t, publishing.Expiration)
			require.LessOrEqual(t, publishing.Priority, uint8(4))
			return
		}

		var found []string
		if exchange == "" {
			found = append(found, key)
		}
		for _, b := range bindings {
			if matches(b, exchange, key, publishing.Headers) {
				found = append(found, b.Queue)
			}
		}
		require.Len(t, found, 1, "from exchange %q with key %q", exchange, key)

		q, planned := queues[found[0]]
		require.True(t, planned)
		if state.Count == header.CountDead {
			require.Equal(t, plan.DeadLetterQueue, q.Name)
			require.Empty(t, publishing.Expiration)
			return
		}
		require.Equal(t, s.Delay, q.Delay)
		if exchange := q.Arguments["x-dead-letter-exchange"]; exchange == "" {
			require.Equal(t, "orders", q.Arguments["x-dead-letter-routing-key"])
		} else {
			back := 0
			for _, b := range bindings {
				if matches(b, exchange.(string), key, nil) {
					require.Equal(t, "orders", b.Queue)
					back++
				}
			}
			require.Equal(t, 1, back, "and back to where it came from")
		}
	})
}
