package waiting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// job is an operation of a process of its own, which may be killed.
type job struct {
	URI, Main, Undo string
	Policy          config.Policy
	Kind            dlq.Kind
	UUIDs           []string
	Until           time.Time
}

const jobVariable = "WAITING_JOB"

// TestMain is also that process.
func TestMain(m *testing.M) {
	text := os.Getenv(jobVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (j *job) run(ctx context.Context) error {
	client, err := dlq.Open(ctx, dlq.Config{URI: j.URI, NoDeliveryLimitPolicy: true})
	if err != nil {
		return err
	}
	waits, err := client.Waits(topology.Target{Key: j.Main}, j.Policy)
	if err != nil {
		return err
	}
	undo, err := os.OpenFile(j.Undo, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = waits.Run(ctx, dlq.Plan{Kind: j.Kind, Filter: dlq.Filter{UUIDs: j.UUIDs}, Until: j.Until, Undo: undo,
		Rate: 200})

	return err
}

// killed runs a job and kills it after a time.
func (f *fixture) killed(ctx context.Context, j job, after time.Duration) {
	text, err := json.Marshal(j)
	assert.NoError(f.t, err)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	if !assert.NoError(f.t, cmd.Start()) {
		return
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // killed, or done, or another one is at work
}

// Messages that wait are cancelled, sent and postponed by several processes at once, of which some
// are killed. In the end each is where it belongs: those that were cancelled nowhere but in the
// undo files, all others in the main queue, and none came early.
func TestEachIsAccountedFor(t *testing.T) {
	n, delay, kills := 1000, 10*time.Second, 2
	if os.Getenv("WAITING") != "" {
		n, delay, kills = 10_000, 2*time.Minute, 6
	}
	for name, policy := range map[string]config.Policy{
		"queues": {}, "classic": {ClassicQueues: true}, "ladder": {Strategy: config.StrategyLadder},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy.Delays = []time.Duration{delay}
			f := newFixture(t, policy)
			began := time.Now()
			f.retries("", n, delay)
			var came arrivals
			came.listen(rabbit.Consume(t, f.Channel(), f.main))

			until := time.Now().Add(delay) // one more wait, as no service lets them wait again
			jobs := []job{}
			for i, of := range []struct {
				kind dlq.Kind
				n    int
			}{{dlq.Cancel, n / 20}, {dlq.SendNow, n / 20}, {dlq.Postpone, n / 100}} {
				j := job{URI: f.URI, Main: f.main, Policy: f.policy, Kind: of.kind,
					Undo: filepath.Join(t.TempDir(), string(of.kind))}
				for k := range of.n {
					j.UUIDs = append(j.UUIDs, fmt.Sprint(3*k+i))
				}
				if of.kind == dlq.Postpone {
					j.Until = until
				}
				jobs = append(jobs, j)
			}
			var all sync.WaitGroup
			for _, j := range jobs {
				all.Go(func() {
					for range kills {
						f.killed(t.Context(), j, time.Duration(100+rand.IntN(900))*time.Millisecond)
					}
				})
			}
			all.Wait()
			done := f.finish(jobs)
			t.Logf("%s: %s for %d operations with %d kills each; the last runs did %v", name,
				time.Since(began).Round(time.Millisecond), len(jobs), kills, done)
			require.Less(t, time.Since(began), delay, "before any is due")

			fate := map[string]dlq.Kind{}
			for _, j := range jobs {
				for _, uuid := range j.UUIDs {
					fate[uuid] = j.Kind
				}
			}
			left := n - len(jobs[0].UUIDs)
			await.Within(t, delay+30*time.Second, func() bool {
				seen := map[string]bool{}
				for _, a := range came.all() {
					seen[a.uuid] = true
				}
				if len(seen) < left {
					return false
				}
				_, waiting, err := f.waits.Soonest(t.Context(), dlq.Filter{}, 1) // doubles of what was postponed
				return err == nil && waiting == 0
			}, "all that was not cancelled comes")
			f.account(came.all(), fate, jobs, n, kills)
		})
	}
}

// finish repeats the operations until there is nothing left to do, two at a time.
func (f *fixture) finish(jobs []job) map[dlq.Kind]int {
	done, mu, all := map[dlq.Kind]int{}, sync.Mutex{}, sync.WaitGroup{}
	for _, j := range jobs {
		all.Go(func() {
			_, waits := f.open()
			undo, err := os.OpenFile(j.Undo, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if !assert.NoError(f.t, err) {
				return
			}
			for range 50 {
				report, err := waits.Run(f.t.Context(), dlq.Plan{Kind: j.Kind, Until: j.Until, Undo: undo,
					Filter: dlq.Filter{UUIDs: j.UUIDs}})
				mu.Lock()
				done[j.Kind] += report.Done
				mu.Unlock()
				if errors.As(err, new(*dlq.BusyError)) {
					continue
				}
				assert.NoError(f.t, err)
				return
			}
		})
	}
	all.Wait()

	return done
}

// account checks where each message is.
func (f *fixture) account(came []arrival, fate map[string]dlq.Kind, jobs []job, n, kills int) {
	t := f.t
	times, latest, early, double := map[string]int{}, time.Duration(0), 0, 0
	for _, a := range came {
		times[a.uuid]++
		assert.Equal(t, "1", a.count)
		switch fate[a.uuid] {
		case dlq.Cancel:
			assert.Fail(t, "a cancelled message came", a.uuid)
		case dlq.Postpone:
			if a.at.Before(jobs[2].Until) {
				early++
			}
		case "":
			if latest = max(latest, a.at.Sub(a.due)); a.at.Before(a.due) {
				early++
			}
		}
	}
	for i := range n {
		uuid := fmt.Sprint(i)
		switch k := times[uuid]; {
		case fate[uuid] == dlq.Cancel:
		case k == 0:
			assert.Fail(t, "lost", uuid)
		case k > 1 && (fate[uuid] == "" || f.plan.Ladder == nil && fate[uuid] == dlq.SendNow):
			assert.Fail(t, "doubled", uuid)
		default:
			double += k - 1
		}
	}
	undo, err := os.ReadFile(jobs[0].Undo)
	require.NoError(t, err)
	for _, uuid := range jobs[0].UUIDs {
		assert.Contains(t, string(undo), `"uuid":"`+uuid+`"`)
	}
	assert.Zero(t, early, "early")
	assert.LessOrEqual(t, double, 256*kills*2)
	t.Logf("RabbitMQ %s: %d came, %d twice after kills; the others at most %s late; %d lines in undo files",
		f.Version(), len(came), double, latest.Round(time.Millisecond), strings.Count(string(undo), "\n"))
}

// A full target takes what is sent at once later, and nothing is lost.
func TestFullTarget_OwnBroker(t *testing.T) {
	const n = 50
	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, time.Second))
	for name, policy := range map[string]config.Policy{"queues": {}, "ladder": {Strategy: config.StrategyLadder}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy.Delays = []time.Duration{time.Hour}
			f := newFixtureOn(t, broker.URI, policy)
			f.Remove("", f.main)
			f.Declare(f.main, amqp091.Table{amqp091.QueueTypeArg: "quorum", amqp091.QueueMaxLenArg: 5,
				amqp091.QueueOverflowArg: amqp091.QueueOverflowRejectPublish})
			f.retries("", n, time.Hour)
			report, err := f.waits.Run(t.Context(), dlq.Plan{Kind: dlq.SendNow})
			require.NoError(t, err)
			assert.Equal(t, n, report.Done)
			var came arrivals
			came.listen(rabbit.Consume(t, f.Channel(), f.main))
			seen := map[string]bool{}
			await.Until(t, func() bool {
				for _, a := range came.all() {
					seen[a.uuid] = true
				}
				return len(seen) == n
			}, "all of them come: %v", seen)
		})
	}
}
