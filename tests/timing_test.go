package tests

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// lateness is how much later than its delay a retry may be on an idle broker. Quorum queues may
// round a fraction of a millisecond down.
const (
	lateness = 100 * time.Millisecond
	rounding = time.Millisecond
)

// TestAttemptTimes measures from the failure of an attempt to the call of the next. It is not
// parallel: other tests' load would be measured as well. What else the machine is doing is measured
// beside it, with a retry queue that the library has no part in, and is not held against it; what
// is late all the same is measured again; what is early fails at once.
func TestAttemptTimes(t *testing.T) {
	var late []string
	for range 3 {
		if late = measureAttempts(t); len(late) == 0 {
			return
		}
		t.Logf("late, measuring again: %q", late)
	}
	require.Empty(t, late)
}

// noise is how late messages come back by themselves from a queue with a TTL.
type noise struct{ records[disturbance] }

type disturbance struct {
	due time.Time
	by  time.Duration
}

func measureNoise(t *testing.T) *noise {
	t.Helper()
	const ttl = 200 * time.Millisecond
	n, queue := &noise{}, uniqueName("noise")
	broker := newRabbit(t, brokertest.URI(t))

	broker.Declare(queue, nil)
	broker.Declare(queue+".wait", amqp091.Table{
		"x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
	})
	conn := broker.Dial()
	ch := must(conn.Channel())(t)
	back := rabbit.Consume(t, ch, queue)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-time.After(25 * time.Millisecond):
				due := time.Now().Add(ttl)
				_ = ch.Publish("", queue+".wait", false, false,
					amqp091.Publishing{MessageId: due.Format(time.RFC3339Nano)})
			case <-stop:
				return
			}
		}
	}()
	go func() {
		defer wg.Done()
		for d := range back {
			due, err := time.Parse(time.RFC3339Nano, d.MessageId)
			if err != nil {
				continue
			}
			n.put(disturbance{due, time.Since(due)})
		}
	}()
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close()
		wg.Wait()
	})

	return n
}

// within is the worst of it between two times.
func (n *noise) within(from, to time.Time) time.Duration {
	var worst time.Duration
	for _, d := range n.All() {
		if d.due.After(from) && d.due.Before(to) {
			worst = max(worst, d.by)
		}
	}

	return worst
}

func measureAttempts(t *testing.T) (late []string) {
	t.Helper()
	delays := ms(500, 1000, 2000)
	ids := rabbit.Numbered("m", 3)
	noise := measureNoise(t)

	type run struct {
		name string
		seen *seen
	}
	var runs []run
	for name, c := range map[string]struct {
		main    string
		classic bool
		runner  func(*testing.T, setup) *service
	}{
		"classic": {"classic", true, start},
		"quorum":  {"quorum", false, start},
		"stock":   {"classic", false, startStock},
	} {
		s := &seen{}
		service := setup{QueueType: c.main}
		service.Options.Policies = config.Policies{Default: config.Policy{Delays: delays, ClassicQueues: c.classic}}
		service.Handler = s.handler(func(msg *message.Message) error {
			a, _ := retry.AttemptFromContext(msg.Context())
			if a.Number <= len(delays) {
				return fmt.Errorf("failure %d", a.Number)
			}

			return nil
		})
		svc := c.runner(t, service)
		svc.publish(ids...)
		runs = append(runs, run{name, s})
	}

	for _, r := range runs {
		await.Until(t, func() bool { return r.seen.count() == len(ids)*(len(delays)+1) }, "%s: all attempts", r.name)
		for _, id := range ids {
			attempts := r.seen.of(id)
			require.Len(t, attempts, len(delays)+1)
			for i, delay := range delays {
				took := attempts[i+1].At.Sub(attempts[i].Left)
				require.GreaterOrEqual(t, took, delay-rounding, "%s: %s was retried before its time", r.name, id)
				// Copying takes its part as well, at the beginning of the wait.
				disturbed := noise.within(attempts[i].At.Add(-time.Second), attempts[i+1].At)
				if took > delay+lateness+2*disturbed {
					late = append(late, fmt.Sprintf("%s: %s, retry %d after %s instead of %s, noise %s", r.name, id,
						i+1, took, delay, disturbed))
				}
			}
		}
	}

	return late
}

// Whoever looks at what waits gives it back again: that makes no retry early, whatever the broker
// counts.
func TestLookedAtRetriesStayPut(t *testing.T) {
	t.Parallel()
	const delay, looks = 4 * time.Second, 45
	for name, policies := range map[string]config.Policies{"own": retries(delay), "exact": exact(delay)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s seen
			c := setup{Handler: s.handler(failing(1))}
			c.Options.Policies = policies
			if name == "exact" { // with queues that nobody else looks into
				c.Options.Policies.Default.Ladder = ownLadder()
			}
			svc := start(t, c)
			plan := must(svc.Retrier.Plan(svc.Queue))(t)
			if plan.Ladder != nil {
				plan = plan.Ladder.Shared()
			}
			waits := plan.Queues[slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })]
			svc.publish("seen")
			svc.Broker.Has(waits.Name, 1)
			ch := svc.Broker.Channel()
			for range looks {
				d, ok, err := ch.Get(waits.Name, false)
				require.NoError(t, err)
				require.True(t, ok, "it still waits")
				require.NoError(t, d.Reject(true))
			}
			await.Until(t, func() bool { return len(s.of("seen")) == 2 }, "it comes back")
			require.GreaterOrEqual(t, gaps(s.of("seen"))[0], delay-rounding)
		})
	}
}
