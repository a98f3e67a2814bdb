package dlq_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// waiting is a main queue with messages that wait for it.
type waiting struct {
	*fixture
	policy config.Policy
	plan   topology.Plan
	waits  *dlq.Waits
}

// brief is a delay in which a reader begins on a busy machine as well.
const brief = 5 * time.Second

// kinds are the ways to wait.
func kinds() map[string]config.Policy {
	delays := []time.Duration{brief, time.Minute}
	return map[string]config.Policy{
		"queues": {Delays: delays}, "classic": {Delays: delays, ClassicQueues: true},
		"shared": {Delays: delays, Strategy: config.StrategyShared},
		"ladder": {Delays: delays, Strategy: config.StrategyLadder},
	}
}

func newWaiting(t *testing.T, policy config.Policy) *waiting {
	t.Helper()

	return newWaitingOn(t, brokertest.URI(t), policy)
}

func newWaitingOn(t *testing.T, uri string, policy config.Policy) *waiting {
	t.Helper()
	w := &waiting{fixture: connected(t, uri), policy: policy}
	w.policy.Ladder.Prefix = w.main
	names := topology.Names{Shared: w.main + "-shared"}
	client, err := dlq.Open(t.Context(), dlq.Config{URI: w.URI, NoDeliveryLimitPolicy: true, Names: names})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	w.client = client
	w.Declare(w.main, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	w.plan, err = topology.New(w.main, w.policy, names)
	require.NoError(t, err)
	t.Cleanup(func() { w.RemovePlan(w.plan) })
	w.Do(func(channel *amqp091.Channel) error {
		if w.plan.Ladder != nil {
			t.Cleanup(func() { w.RemovePlan(w.plan.Ladder.Shared()) })
			if err := w.plan.Ladder.Shared().Declare(channel); err != nil {
				return err
			}
		}
		return w.plan.Declare(channel)
	})
	w.waits, err = client.Waits(topology.Target{Key: w.main}, w.policy)
	require.NoError(t, err)

	return w
}

// retry sends a copy to wait, as the service does; told false as one of an older version.
func (w *waiting) retry(uuid string, delay time.Duration, change func(*wire.State)) (due time.Time) {
	w.t.Helper()
	now := time.Now()
	due = now.Add(delay)
	s := wire.State{Count: 1, Attempts: 1, Queue: w.main, Topic: w.main, Delay: config.FormatDelay(delay), Due: due,
		LastFailure: now, FirstFailure: now, Since: now, Error: "boom"}
	if change != nil {
		change(&s)
	}
	m := rabbit.Message(uuid, uuid)
	m.DeliveryMode = amqp091.Persistent
	for key, value := range s.Headers("id-" + uuid) {
		m.Headers[key] = value
	}
	exchange, key := w.plan.Route(1, delay, &m)
	w.PublishTo(exchange, key, m)

	return due
}

func (w *waiting) uuids(filter dlq.Filter) (uuids []string) {
	w.t.Helper()
	found, matched, err := w.waits.Soonest(w.t.Context(), filter, 0)
	require.NoError(w.t, err)
	assert.Len(w.t, found, matched)
	for _, l := range found {
		uuids = append(uuids, l.UUID)
	}

	return uuids
}

// came are the messages of the main queue, with the time at which each came.
func (w *waiting) came() <-chan amqp091.Delivery {
	w.t.Helper()

	return rabbit.Consume(w.t, w.Channel(), w.main)
}

func (w *waiting) run(plan dlq.Plan) dlq.Report {
	w.t.Helper()
	report, err := w.waits.Run(w.t.Context(), plan)
	require.NoError(w.t, err)

	return report
}

type arrived struct {
	uuid string
	at   time.Time
}

// Messages that wait are listed with the times when they are due. They come then, in their order.
func TestWaits(t *testing.T) {
	t.Parallel()
	for name, policy := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, policy)
			due := w.retry("a", brief, nil)
			long := w.retry("long", time.Minute, nil)
			w.retry("b", brief, func(s *wire.State) { s.Due = time.Time{} })
			w.retry("c", brief, func(s *wire.State) {
				s.Due, s.NotBefore = time.Now().Add(brief), long.Add(time.Hour)
			})

			came := make(chan arrived, 10)
			go func(deliveries <-chan amqp091.Delivery) {
				for d := range deliveries {
					came <- arrived{rabbit.UUID(d), time.Now()}
				}
			}(w.came())
			found, matched, err := w.waits.Soonest(t.Context(), dlq.Filter{}, 2)
			require.NoError(t, err)
			assert.Equal(t, 4, matched)
			require.Len(t, found, 2)
			for i, l := range found {
				assert.Equal(t, string("ab"[i]), l.UUID)
				assert.Equal(t, topology.Target{Key: w.main}, l.Wait.Target)
				assert.WithinDuration(t, due, l.Wait.Due, time.Second)
				assert.Equal(t, []dlq.DueBy{dlq.DueTold, dlq.DueEstimated}[i], l.Wait.DueBy)
				assert.Equal(t, "boom", l.Error)
			}
			assert.Equal(t, []string{"a", "b", "long"}, w.uuids(dlq.Filter{DueWithin: 2 * time.Minute}))
			assert.Equal(t, []string{"long", "c"}, w.uuids(dlq.Filter{DueAfter: 10 * time.Second}))
			assert.Equal(t, []string{"long"}, w.uuids(dlq.Filter{UUIDs: []string{"long"}}))

			for _, uuid := range []string{"a", "b", "c"} {
				message := await.Value(t, came, uuid)
				assert.Equal(t, uuid, message.uuid)
				assert.WithinRange(t, message.at, due, due.Add(time.Second))
			}
		})
	}
}

// While somebody reads slowly, messages come when they are due, and none earlier. With clocks that
// differ by a second, they and those behind them can be late by that.
func TestWaitsWhileSomebodyReads(t *testing.T) {
	t.Parallel()
	for name, policy := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, policy)
			dues := map[string]time.Time{}
			for i := range 10 {
				uuid := fmt.Sprint(i)
				dues[uuid] = w.retry(uuid, brief, func(s *wire.State) {
					if i%2 == 1 { // the clock of its sender is slow
						s.Due = s.Due.Add(-time.Second)
					}
				})
				<-time.After(50 * time.Millisecond)
			}
			came, read := w.came(), 0
			for l, err := range w.waits.Browse(t.Context(), dlq.Filter{}) {
				require.NoError(t, err)
				if read++; l.UUID != "9" {
					continue
				}
				for range len(dues) {
					uuid := rabbit.UUID(await.Value(t, came, "it comes"))
					assert.WithinRange(t, time.Now(), dues[uuid], dues[uuid].Add(2*time.Second))
					delete(dues, uuid)
				}
				assert.Empty(t, dues)
			}
			assert.Equal(t, 10, read, "each once")
		})
	}
}

// slowly publishes messages with one delay of 12 s, and some more after a pause.
func slowly(t *testing.T, classic bool, first, later int, pause time.Duration, change func(*wire.State)) (w *waiting,
	due time.Time) {
	t.Helper()
	w = newWaiting(t, config.Policy{Delays: []time.Duration{12 * time.Second}, ClassicQueues: classic})
	for i := range first {
		due = w.retry(fmt.Sprint("first-", i), 12*time.Second, change)
	}
	<-time.After(pause)
	for i := range later {
		w.retry(fmt.Sprint("later-", i), 12*time.Second, nil)
	}

	return w, due
}

// A message that was given back too early is delivered again behind others that are due later. It
// does not wait for them.
func TestWaitsGivenBackTooEarly(t *testing.T) {
	t.Parallel()
	for name, classic := range map[string]bool{"quorum": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, due := slowly(t, classic, 1, 5, 6*time.Second, func(s *wire.State) {
				s.Due = s.Due.Add(-2 * time.Second)
			})
			came, read := w.came(), 0
			for _, err := range w.waits.Browse(t.Context(), dlq.Filter{}) {
				require.NoError(t, err)
				if read++; read == 1 {
					assert.Equal(t, "first-0", rabbit.UUID(await.Value(t, came, "it comes")))
					assert.WithinRange(t, time.Now(), due, due.Add(4*time.Second), "those behind it are due after 6 s")
				}
			}
			assert.Equal(t, 6, read, "each once")
		})
	}
}

// The broker delivers more messages in place of those that were given back. A reader gets these as
// well.
func TestWaitsBehindThoseThatAreDue(t *testing.T) {
	t.Parallel()
	for name, classic := range map[string]bool{"quorum": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := slowly(t, classic, 20, 100, time.Second, nil)
			came, read := w.came(), map[string]int{}
			for l, err := range w.waits.Browse(t.Context(), dlq.Filter{}) {
				require.NoError(t, err)
				if read[l.UUID]++; len(read) == 1 {
					for range 20 {
						await.Value(t, came, "those that are due")
					}
				}
			}
			assert.Len(t, read, 120)
		})
	}
}

// What is held for long goes back, and comes again. A reader gets each message once, also those
// that were on their way to it, and those for which there was no room.
func TestWaitsHeldForLong(t *testing.T) {
	t.Parallel()
	for name, policy := range kinds() {
		for _, room := range []int{64 << 20, 1} {
			t.Run(fmt.Sprint(name, " ", room), func(t *testing.T) {
				t.Parallel()
				w := newWaiting(t, policy)
				w.client.HoldFor(500 * time.Millisecond)
				w.client.RoomFor(room)
				for i := range 40 {
					w.retry(fmt.Sprint(i), time.Minute, nil)
				}
				read := map[string]int{}
				for l, err := range w.waits.Browse(t.Context(), dlq.Filter{}) {
					require.NoError(t, err)
					if read[l.UUID]++; len(read) == 5 {
						<-time.After(600 * time.Millisecond)
					}
				}
				assert.Len(t, read, 40)
				for uuid, n := range read {
					assert.Equal(t, 1, n, uuid)
				}
			})
		}
	}
}

// Messages that have gone on meanwhile do not hold up a run with a rate.
func TestRateOfWaits(t *testing.T) {
	t.Parallel()
	w, _ := slowly(t, false, 25, 1, 6*time.Second, nil)
	var undo strings.Builder
	report := w.run(dlq.Plan{Kind: dlq.Cancel, Rate: 2, Undo: &undo})
	assert.Less(t, report.Done, 20)
	assert.Contains(t, undo.String(), `"later-0"`)
}

// A message that seems to be due for long, and is not, comes once more at most. So a reader is done
// when nothing else comes.
func TestWaitsThatSeemToBeDue(t *testing.T) {
	t.Parallel()
	for name, policy := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, policy)
			due := w.retry("forged", time.Minute, func(s *wire.State) {
				s.Due, s.LastFailure = time.Now().Add(-time.Hour), time.Now().Add(-2*time.Hour)
			})
			for i := range 39 {
				w.retry(fmt.Sprint(i), time.Minute, nil)
			}
			read := 0
			for _, err := range w.waits.Browse(t.Context(), dlq.Filter{}) {
				require.NoError(t, err)
				if read++; read > 1 {
					continue
				}
				w.Do(func(channel *amqp091.Channel) error { // those that were not delivered yet
					queues, err := w.waits.Queues(t.Context())
					for _, q := range queues {
						_, purged := channel.QueuePurge(q.Name, false)
						err = errors.Join(err, purged)
					}
					return err
				})
			}
			assert.GreaterOrEqual(t, read, 32)
			assert.Less(t, read, 40)
			assert.Less(t, time.Now(), due.Add(-30*time.Second))
		})
	}
}

// What is cancelled is gone, what is sent comes at once, and what is postponed comes later, all
// with the number of their attempts. The others stay.
func TestRunOfWaits(t *testing.T) {
	t.Parallel()
	for name, policy := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, policy)
			uuids := func(uuids ...string) dlq.Filter { return dlq.Filter{UUIDs: uuids} }
			for _, uuid := range []string{"stays", "cancel", "send", "postpone", "stays too"} {
				w.retry(uuid, time.Minute, func(s *wire.State) { s.NotBefore = time.Now().Add(2 * time.Minute) })
			}
			var undo strings.Builder
			plan, err := w.waits.Plan(t.Context(), dlq.Plan{Kind: dlq.Cancel, Filter: uuids("cancel"), Undo: &undo})
			require.NoError(t, err)
			assert.Equal(t, 1, plan.Most())
			assert.Len(t, w.uuids(dlq.Filter{}), 5, "a dry run")
			assert.Equal(t, 1, w.run(plan).Done)
			assert.Contains(t, undo.String(), `"cancel"`)
			report := w.run(plan)
			assert.Equal(t, 0, report.Done)
			assert.Equal(t, 1, report.Gone)
			report, err = w.waits.Import(t.Context(), strings.NewReader(undo.String()), dlq.ImportOptions{})
			require.NoError(t, err)
			assert.Equal(t, 1, report.Done)
			found, _, err := w.waits.Soonest(t.Context(), uuids("cancel"), 0)
			require.NoError(t, err)
			require.Len(t, found, 1, "it waits again")
			assert.WithinDuration(t, time.Now().Add(time.Minute), found[0].Wait.Due, 10*time.Second)
			plan.Filter, plan.Counted, plan.Undo = uuids("cancel"), nil, nil
			assert.Equal(t, 1, w.run(plan).Done)

			came := w.came()
			assert.Equal(t, 1, w.run(dlq.Plan{Kind: dlq.SendNow, Filter: uuids("send")}).Done)
			d := await.Value(t, came, "it comes at once")
			assert.Equal(t, "send", rabbit.UUID(d))
			assert.Equal(t, "1", rabbit.Text(d, header.Count))
			kind, state := w.read(d)
			assert.Equal(t, wire.Retry, kind)
			assert.Equal(t, "boom", state.Error)

			until := time.Now().Add(3 * time.Minute)
			report = w.run(dlq.Plan{Kind: dlq.Postpone, Filter: uuids("postpone"), Until: until})
			assert.Equal(t, 1, report.Done)
			report = w.run(dlq.Plan{Kind: dlq.Postpone, Filter: uuids("postpone"), Until: until})
			assert.Equal(t, []dlq.Left{{Why: dlq.LeftLater, Messages: 1}}, report.Left)
			assert.ElementsMatch(t, []string{"stays", "stays too", "postpone"}, w.uuids(dlq.Filter{}))
			found, _, err = w.waits.Soonest(t.Context(), uuids("postpone"), 0)
			require.NoError(t, err)
			assert.WithinDuration(t, until, found[0].Wait.End(), time.Second)

			until = time.Now().Add(1000 * time.Hour)
			report = w.run(dlq.Plan{Kind: dlq.Postpone, Filter: uuids("stays"), Until: until})
			assert.Equal(t, []dlq.Left{{Why: dlq.LeftTooLong, Messages: 1}}, report.Left)
			assert.Equal(t, 3, w.run(dlq.Plan{Kind: dlq.SendNow}).Done)
			got := []string{}
			for range 3 {
				got = append(got, rabbit.UUID(await.Value(t, came, "it comes")))
			}
			assert.ElementsMatch(t, []string{"stays", "stays too", "postpone"}, got)
		})
	}
}

// A queue that drops what was looked at too often is not read.
func TestWaitsInAnUnsafeQueue(t *testing.T) {
	t.Parallel()
	w := newWaiting(t, kinds()["queues"])
	queue := w.plan.Queues[0]
	arguments := maps.Clone(queue.Arguments)
	arguments["x-delivery-limit"] = int64(3)
	w.Remove("", queue.Name)
	w.Declare(queue.Name, arguments)
	w.Publish(queue.Name, rabbit.Message("a", "a"))
	w.Has(queue.Name, 1)
	_, _, err := w.waits.Soonest(t.Context(), dlq.Filter{}, 0)
	var unsafe *dlq.UnsafeError
	require.ErrorAs(t, err, &unsafe)
	assert.Equal(t, queue.Name, unsafe.Queue)
	assert.ErrorContains(t, err, "retry queue or wait queue")
	assert.NotContains(t, err.Error(), "dead-letter")
}

// Dead letters cannot be cancelled, nor messages that wait be replayed.
func TestKindsOfPlans(t *testing.T) {
	t.Parallel()
	w := newWaiting(t, kinds()["queues"])
	var wrong *config.FieldError
	_, err := w.waits.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
	assert.ErrorAs(t, err, &wrong)
	_, err = w.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Cancel})
	assert.ErrorAs(t, err, &wrong)
	_, err = w.waits.Run(t.Context(), dlq.Plan{Kind: dlq.Postpone})
	assert.ErrorAs(t, err, &wrong, "until when")
	_, err = w.client.Waits(topology.Target{}, w.policy)
	assert.ErrorAs(t, err, &wrong)
}

// Retry queues of delays that the policy no longer has are found by the management API.
func TestWaitsOfOlderDelays_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	w := newWaitingOn(t, broker.URI, kinds()["classic"])
	w.retry("a", time.Minute, nil)
	client, err := dlq.Open(t.Context(), dlq.Config{URI: broker.URI, NoDeliveryLimitPolicy: true,
		Names: topology.Names{Shared: w.main + "-shared"}, Management: management.API{URL: broker.ManagementURL}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	w.waits, err = client.Waits(topology.Target{Key: w.main}, config.Policy{Delays: []time.Duration{time.Hour}})
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, w.uuids(dlq.Filter{}))
	assert.Equal(t, 1, w.run(dlq.Plan{Kind: dlq.SendNow}).Done)
	assert.Equal(t, "a", rabbit.UUID(await.Value(t, w.came(), "it comes")))
}

// read tells what a service would take a message for.
func (w *waiting) read(d amqp091.Delivery) (wire.Kind, wire.State) {
	deaths, _ := d.Headers[header.Death].([]any)
	newest, _ := deaths[0].(amqp091.Table)
	death, _ := newest["queue"].(string)
	state, kind := wire.Read(d.Headers, wire.Reading{Queue: w.main, MaxRetries: 2, Death: death,
		IsRetryQueue: func(name, delay string) bool {
			return slices.Contains(topology.Names{Shared: w.main + "-shared"}.RetryQueues(w.main, delay), name)
		}})

	return kind, state
}
