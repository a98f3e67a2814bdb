package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
)

var (
	ofItsOwn = config.Policy{Delays: []time.Duration{time.Second, time.Minute}}
	ofAll    = config.Policy{Delays: []time.Duration{time.Second}, Strategy: config.StrategyShared}
)

func mainOf(topic string) mainQueue { return mainQueue{Topic: topic, Queue: topic, Exchange: topic} }

func (r *registry) size() int {
	return len(r.queues) + len(r.owners) + len(r.publishing) + len(r.letters)
}

// What it takes to register a topic does not depend on how many there are.
func TestRegistry_AddIsIndependentOfOthers(t *testing.T) {
	for name, policy := range map[string]config.Policy{"own": ofItsOwn, "shared": ofAll} {
		t.Run(name, func(t *testing.T) {
			cost := func(others int) float64 {
				r := newRegistry()
				for i := range others {
					_, err := r.add(mainOf(fmt.Sprint(i)), policy, topology.Names{})
					require.NoError(t, err)
				}

				return testing.AllocsPerRun(20, func() {
					if _, err := r.add(mainOf("another"), policy, topology.Names{}); err != nil {
						t.Fatal(err)
					}
					r.leave(mainOf("another"), false)
				})
			}
			few, many := cost(10), cost(2000)
			assert.Less(t, many, few*1.5, "allocations with 10 others: %v", few)
		})
	}
}

func BenchmarkRegistry(b *testing.B) {
	for _, n := range []int{500, 1000, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r := newRegistry()
				for i := range n {
					if _, err := r.add(mainOf(fmt.Sprint(i)), ofItsOwn, topology.Names{}); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// A queue is known as long as somebody uses it, and then nothing of it.
func TestRegistry_ForgetsWhatNobodyUses(t *testing.T) {
	r := newRegistry()
	add := func(main mainQueue) {
		t.Helper()
		_, err := r.add(main, ofItsOwn, topology.Names{})
		require.NoError(t, err)
	}
	a, b := mainQueue{Topic: "a", Queue: "q", Exchange: "x"}, mainQueue{Topic: "b", Queue: "q", Exchange: "y"}

	add(a)
	add(a)
	add(b)
	assert.False(t, r.leave(a, false))
	assert.Contains(t, r.publishing, "x")
	assert.False(t, r.leave(a, false))
	assert.NotContains(t, r.publishing, "x")
	assert.Contains(t, r.queues, "q", "b uses it")
	assert.True(t, r.leave(b, false))
	assert.Zero(t, r.size())

	add(a)
	r.leave(a, true)
	assert.NotZero(t, r.size(), "it was initialized")
	add(b)
	assert.True(t, r.leave(b, false), "a subscription has come and gone")
	assert.Zero(t, r.size())

	// One topic with a queue for each subscription.
	add(mainQueue{Topic: "a", Queue: "q1", Exchange: "x"})
	add(mainQueue{Topic: "a", Queue: "q2", Exchange: "x"})
	r.leave(mainQueue{Topic: "a", Queue: "q1", Exchange: "x"}, false)
	assert.Contains(t, r.publishing, "x")
	r.leave(mainQueue{Topic: "a", Queue: "q2", Exchange: "x"}, false)
	assert.Zero(t, r.size())

	plan, err := topology.New("q", onlyDeadLetters, topology.Names{})
	require.NoError(t, err)
	letters := &consumer.Queue{Plan: plan}
	r.addLetters(letters)
	r.addLetters(letters)
	r.leaveLetters(letters, false)
	assert.Len(t, r.plans(), 1)
	r.leaveLetters(letters, true)
	assert.Len(t, r.plans(), 1, "it was initialized")
	r.addLetters(letters)
	r.leaveLetters(letters, false)
	assert.Zero(t, r.size())

	_, err = r.add(mainQueue{Topic: "a", Queue: "amq.q", Exchange: "x"}, ofItsOwn, topology.Names{})
	require.Error(t, err)
	assert.Zero(t, r.size(), "what is refused is not known")
}

func TestRegistry_SharedQueue(t *testing.T) {
	r := newRegistry()
	_, err := r.add(mainQueue{Topic: "a", Queue: "q", Exchange: ""}, ofItsOwn, topology.Names{})
	require.NoError(t, err)
	_, err = r.add(mainQueue{Topic: "b", Queue: "q", Exchange: ""}, ofAll, topology.Names{})
	var shared *topology.SharedQueueError
	require.ErrorAs(t, err, &shared)
	assert.Equal(t, topology.SharedQueueError{Queue: "q", Topics: [2]string{"a", "b"}}, *shared)

	r.leave(mainQueue{Topic: "a", Queue: "q", Exchange: ""}, false)
	_, err = r.add(mainQueue{Topic: "b", Queue: "q", Exchange: ""}, ofAll, topology.Names{})
	require.NoError(t, err, "a is gone")
}

// Every collision with a topic that is there is found, in the words of topology.Check, and none
// with those that are gone.
func TestRegistry_Collisions(t *testing.T) {
	policies := []config.Policy{ofItsOwn, ofAll, {Mode: config.ModeDeadLetter}, {Mode: config.ModeOff}}
	queues := []string{"a", "a.dlq", "a.retry", "a.retry.1s", "retry", "retry.1s", "b", "b.dlq", "b.dlq.dlq", "same"}
	exchanges := append(queues, "", "retry.return", "b.retry", "a.dlq.retry")
	same := func(suffix string) func(string) string {
		return func(queue string) string {
			if strings.HasPrefix(queue, "b.") {
				return "same"
			}

			return queue + suffix
		}
	}
	names := topology.Names{DeadLetterQueue: same(".dlq"), RetryExchange: same(".retry")}

	found := map[string]int{}
	count := func(collisions []string) {
		for _, line := range collisions {
			_, problem, _ := strings.Cut(line, `": `)
			found[strings.Fields(problem)[0]]++
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := newRegistry()
		policyOf := map[string]config.Policy{}
		for _, q := range queues {
			policyOf[q] = rapid.SampledFrom(policies).Draw(rt, "policy of "+q)
		}
		var live []mainQueue
		for range 20 {
			if len(live) > 0 && rapid.Bool().Draw(rt, "one leaves") {
				i := rapid.IntRange(0, len(live)-1).Draw(rt, "which")
				r.leave(live[i], false)
				live = slices.Delete(live, i, i+1)
				continue
			}
			queue := rapid.SampledFrom(queues).Draw(rt, "queue")
			main := mainQueue{Topic: queue, Queue: queue, Exchange: rapid.SampledFrom(exchanges).Draw(rt, "exchange")}
			if _, err := topology.New(queue, policyOf[queue], names); err != nil {
				continue // it collides with itself
			}
			_, err := r.add(main, policyOf[queue], names)
			want := collisions(rt, live, main, policyOf, names)
			require.Equal(rt, want, lines(err))
			count(want)
			if err == nil {
				live = append(live, main)
			}
		}
		for _, main := range live {
			r.leave(main, false)
		}
		require.Zero(rt, r.size())
	})

	// Chance may not find each kind, all pairs do.
	clear(found)
	for _, first := range queues {
		for _, second := range queues {
			for _, exchange := range []string{"", "same", "retry.return"} {
				for _, policy := range policies[:2] {
					live := mainQueue{Topic: first, Queue: first, Exchange: exchange}
					main := mainQueue{Topic: second + "2", Queue: second, Exchange: exchange}
					policyOf := map[string]config.Policy{first: policy, second: policy}
					r := newRegistry()
					if _, err := r.add(live, policy, names); err != nil {
						continue
					}
					if _, err := topology.New(second, policy, names); err != nil {
						continue
					}
					_, err := r.add(main, policy, names)
					want := collisions(t, []mainQueue{live}, main, policyOf, names)
					require.Equal(t, want, lines(err))
					count(want)
				}
			}
		}
	}
	assert.Subset(t, slices.Collect(maps.Keys(found)), []string{"exchange", "queue", "retry"},
		"there were collisions of each kind")
}

// collisions compares a topic with all others, one by one.
func collisions(t require.TestingT, live []mainQueue, main mainQueue, policyOf map[string]config.Policy,
	names topology.Names) []string {
	plan := func(m mainQueue) topology.Plan {
		p, err := topology.New(m.Queue, policyOf[m.Queue], names)
		require.NoError(t, err)

		return p
	}
	plans := []topology.Plan{}
	all := append(slices.Clone(live), main)
	for _, m := range all {
		plans = append(plans, plan(m))
	}
	errs := []error{topology.Check(plans...)}

	told := map[string]bool{}
	for _, p := range plans {
		for _, x := range p.Exchanges {
			var topics []string
			for _, m := range all {
				if m.Exchange == x.Name {
					topics = append(topics, m.Topic)
				}
			}
			if len(topics) == 0 || told[p.Queue+x.Name] {
				continue
			}
			told[p.Queue+x.Name] = true
			owner, field := slices.Min(topics), "Names.RetryExchange"
			if slices.Contains(topics, main.Topic) && main.Exchange == x.Name {
				owner = main.Topic
			}
			if x.Shared {
				field = "Names.Shared"
			}
			errs = append(errs, &topology.NameError{Queue: p.Queue, Object: "retry exchange", Name: x.Name,
				Problem: fmt.Sprintf(
					"is the exchange that topic %q publishes to; give another name through %s", owner, field)})
		}
	}

	return lines(errors.Join(errs...))
}

// lines are those of an error, each once.
func lines(err error) []string {
	if err == nil {
		return nil
	}
	all := strings.Split(err.Error(), "\n")
	slices.Sort(all)

	return slices.Compact(all)
}

// What was told of a queue is forgotten with it.
func TestLeave_ForgetsWhatWasTold(t *testing.T) {
	p := &Retrier{registry: newRegistry()}
	p.limitsTold.Store("q", true)
	for range 2 {
		_, err := p.registry.add(mainOf("q"), ofItsOwn, topology.Names{})
		require.NoError(t, err)
	}
	p.leave(mainOf("q"))
	_, told := p.limitsTold.Load("q")
	assert.True(t, told, "it is still used")
	p.leave(mainOf("q"))
	_, told = p.limitsTold.Load("q")
	assert.False(t, told)
}

// A stock subscriber that tries again and again with a name of its own each time leaves nothing of
// those that were refused.
func TestGenerated_ForgetsRefusedNames(t *testing.T) {
	g, r := newGenerated(), newRegistry()
	for i := range 10 {
		main := mainQueue{Topic: "t", Queue: fmt.Sprint(i)}
		g.add("t", main.Queue, func() (*consumer.Queue, error) { return r.add(main, ofItsOwn, topology.Names{}) })
		_, err := g.of(main)
		assert.Equal(t, i > 0, err != nil)
	}
	assert.Len(t, g.mains, 1)
	assert.Len(t, g.latest, 1)
	assert.Len(t, r.queues, 1)
}
