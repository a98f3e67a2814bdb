//go:build cluster

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// run is a scenario while it runs.
type run struct {
	t        *testing.T
	cluster  *brokertest.Cluster
	random   *rand.Rand
	ledger   *ledger
	services []*service
	queues   []string
	faults   int
	resumed  time.Duration // the worst time until every service had messages of every queue again
	remarks  []string
}

// wait is what the messages of a run wait in.
type wait struct {
	name   string
	policy config.Policy
}

var waits = []wait{
	{"quorum", config.Policy{Delays: delays}},
	{"exact", config.Policy{Delays: delays, Strategy: config.StrategyLadder}},
	{"classic", config.Policy{Delays: delays, ClassicQueues: true}},
}

func (w wait) atLeastOnce() bool { return !w.policy.ClassicQueues }

type scenario struct {
	name   string
	what   string // in the report
	faults func(*run)
}

var scenarios = []scenario{
	{"leaders", "each node, one at a time: SIGKILL, started again", func(r *run) {
		r.oneByOne("killed", (*brokertest.Broker).Kill)
	}},
	{"rolling", "each node, one at a time: clean stop, started again", func(r *run) {
		r.oneByOne("stopped", (*brokertest.Broker).Stop)
	}},
	{"minority", "one node cut off from the other two for 15 s", (*run).minority},
	{"majority", "two of three nodes killed, back after 15 s", (*run).majority},
	{"frozen", "one node frozen for 40 s", (*run).frozen},
	{"all", "all three nodes killed, back after 5 s", (*run).all},
}

// The queues have leaders on different nodes, and the nodes fail in many ways under load. Quorum
// retry queues and the ladder of exact delays lose nothing. The test counts what classic retry
// queues lose: the broker hands on their messages at most once.
func TestCluster_OwnBroker(t *testing.T) {
	random, seed := env.Random(t)
	chosen := chosenScenarios(t, os.Getenv("CLUSTER"))

	cluster := brokertest.StartCluster(t)
	version := strings.TrimSpace(cluster.Nodes[0].Ctl("version"))
	table := &report.Table{
		Title: fmt.Sprintf("RabbitMQ %s, three nodes, SEED=%d", version, seed),
		Head: []string{
			"retries wait in", "what happened", "messages", "calls", "lost", "handled again",
			"sent again by their publisher", "longest pause", "all resumed after", "",
		},
	}
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
	defer func() { report.Write(t, table.String()) }()
	for _, c := range chosen {
		t.Run(c.name(), func(t *testing.T) {
			o := play(t, cluster, random, c.wait, c.scenario)
			table.Add(c.wait.name, c.scenario.what, o.Messages, o.Calls, len(o.Lost), o.Twice, o.SentTwice,
				seconds(o.Pause), seconds(o.resumed), strings.Join(o.remarks, "; "))
		})
		if t.Failed() {
			return // the cluster may not be what the next one needs
		}
	}
}

// choice is a scenario with what its messages wait in.
type choice struct {
	wait     wait
	scenario scenario
}

func (c choice) name() string { return c.wait.name + "/" + c.scenario.name }

// chosenScenarios are those that a word of names names: quorum, leaders, quorum/leaders. No word
// names all.
func chosenScenarios(t *testing.T, names string) []choice {
	t.Helper()
	unused := map[string]bool{}
	for _, word := range strings.Fields(names) {
		unused[word] = true
	}
	all := len(unused) == 0
	var chosen []choice
	for _, w := range waits {
		for _, s := range scenarios {
			c, is := choice{w, s}, all
			for _, word := range []string{w.name, s.name, c.name()} {
				if _, named := unused[word]; named {
					unused[word], is = false, true
				}
			}
			if is {
				chosen = append(chosen, c)
			}
		}
	}
	for word, isUnused := range unused {
		require.False(t, isUnused, "CLUSTER has %q, which names no scenario", word)
	}

	return chosen
}

type outcome struct {
	verdict
	*run
}

func play(t *testing.T, cluster *brokertest.Cluster, random *rand.Rand, w wait, s scenario) outcome {
	t.Helper()
	r := &run{t: t, cluster: cluster, random: random, ledger: newLedger()}
	for range 3 {
		r.queues = append(r.queues, "q-"+watermill.NewShortUUID())
	}
	uris := make([]string, 3)
	for i := range uris {
		uris[i] = cluster.Nodes[i].URI
	}
	// The first as it comes, the other one as docs/how-to/clusters.md has it.
	quick := amqp.DefaultReconnectConfig()
	quick.BackoffMaxInterval = 2 * time.Second
	r.services = []*service{
		startService(t, "A", uris, nil, r.queues, w.policy, r.ledger),
		startService(t, "B", []string{uris[2], uris[0], uris[1]}, quick, r.queues, w.policy, r.ledger),
	}
	stopOwn := startRetrierPublisher(t, r.services[1], r.queues, random.Uint64(), r.ledger)
	stop := startPublishers(t, uris, r.queues, random.Uint64(), r.ledger)
	r.load(3 * time.Second)
	r.resumes("at the beginning", time.Now(), 30*time.Second)
	r.resumed = 0
	if w.atLeastOnce() {
		r.requireSpread()
	}

	s.faults(r)

	r.load(3 * time.Second)
	until := time.Now()
	stopOwn()
	stop()
	r.awaitEnd()
	took := time.Since(until)
	if took > 30*time.Second {
		r.remark("the last messages ended %.0f s later", took.Seconds())
	}
	for _, svc := range r.services {
		svc.close(t)
	}
	for _, queue := range r.queues {
		letters(t, uris[0], queue+".dlq", r.ledger)
	}
	r.remove(uris[0])

	v := r.ledger.judge(until)
	t.Logf("%d messages, %d refused, %d calls, %d dead letters, %d lost, %d handled again, "+
		"%d sent twice, longest pause %s, resumed after %s; %s",
		v.Messages, v.NotStored, v.Calls, v.DeadLetters, len(v.Lost), v.Twice, v.SentTwice, v.Pause, r.resumed,
		strings.Join(r.remarks, "; "))
	assert.Empty(t, v.Wrong)
	if w.atLeastOnce() {
		assert.Empty(t, v.Lost, "lost")
	}
	// What was in flight at each fault, and what a service had been given.
	assert.LessOrEqual(t, v.Twice, r.faults*prefetch*len(r.queues)*len(r.services), "handled again")

	return outcome{v, r}
}

// load lets some time pass, in which messages are published and handled.
func (r *run) load(d time.Duration) { <-time.After(d) }

func (r *run) remark(format string, args ...any) {
	r.remarks = append(r.remarks, fmt.Sprintf(format, args...))
}

// resumes waits until every service has been given messages of every queue after a time, and keeps
// how long that took.
func (r *run) resumes(what string, since time.Time, within time.Duration, services ...*service) {
	r.t.Helper()
	if len(services) == 0 {
		services = r.services
	}
	last := since
	missing := ""
	all := func() bool {
		for _, s := range services {
			for _, queue := range r.queues {
				at := r.ledger.first(s.name, queue, since)
				if at.IsZero() {
					missing = fmt.Sprintf("service %s has had nothing of %s", s.name, queue)
					return false
				}
				if at.After(last) {
					last = at
				}
			}
		}

		return true
	}
	for deadline := time.Now().Add(within); !all(); r.load(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s, after %s: %s", what, within, missing)
		}
	}
	r.t.Logf("%s: everything is handled again after %s", what, last.Sub(since).Round(10*time.Millisecond))
	r.resumed = max(r.resumed, last.Sub(since))
}

// order gives the nodes in any order.
func (r *run) order() []int { return r.random.Perm(len(r.cluster.Nodes)) }

// nodeOf is the node that a service consumes from.
func (r *run) nodeOf(s *service) int {
	at := s.logs.address("subscriber")
	for i, n := range r.cluster.Nodes {
		if strings.Contains(n.URI, "@"+at+"/") {
			return i
		}
	}
	r.t.Fatalf("service %s is connected to %q, which is no node", s.name, at)

	return -1
}

// oneByOne ends each node and starts it again.
func (r *run) oneByOne(ended string, end func(*brokertest.Broker)) {
	for _, n := range r.order() {
		node := r.cluster.Nodes[n]
		began := time.Now()
		end(node)
		r.faults++
		r.resumes(fmt.Sprintf("node %d %s", n+1, ended), began, time.Minute)
		node.Start()
		r.load(3 * time.Second)
	}
}

// minority cuts off a node that a service consumes from, and says in the report what became of that
// service.
func (r *run) minority() {
	inside := r.services[r.random.IntN(len(r.services))]
	var outside []*service
	n := r.nodeOf(inside)
	for _, s := range r.services {
		if r.nodeOf(s) != n {
			outside = append(outside, s)
		}
	}
	began := time.Now()
	r.cluster.Cut(n)
	r.faults++
	if len(outside) > 0 {
		r.resumes(fmt.Sprintf("node %d cut off: the service at another node", n+1), began, time.Minute, outside...)
	}
	r.load(time.Until(began.Add(15 * time.Second)))
	switch {
	case r.nodeOf(inside) != n:
		r.remark("the service at the node that was cut off moved on to another")
	case r.ledger.first(inside.name, r.queues[0], began.Add(5*time.Second)).IsZero():
		r.remark("the service at the node that was cut off waited there")
	default:
		r.remark("the service at the node that was cut off went on there")
	}
	r.cluster.Heal()
	r.faults++ // those that are connected to it, again
	r.resumes("healed", time.Now(), 2*time.Minute)
}

func (r *run) majority() {
	order := r.order()
	for _, n := range order[:2] {
		r.cluster.Nodes[n].Kill()
		r.faults++
	}
	r.load(15 * time.Second)
	r.cluster.Nodes[order[0]].Start() // returns when it answers AMQP
	r.resumes("a majority is back", time.Now(), 2*time.Minute)
	r.cluster.Nodes[order[1]].Start()
	r.load(3 * time.Second)
}

func (r *run) frozen() {
	node := r.cluster.Nodes[r.nodeOf(r.services[0])]
	began := time.Now()
	node.Pause()
	r.faults++
	handled := time.Now().Add(time.Second) // what the services had been given before
	r.resumes("frozen, services at other nodes", handled, time.Minute, r.services[1:]...)
	r.load(time.Until(began.Add(40 * time.Second)))
	node.Resume()
	r.faults++
	// The service at the frozen node needs that: a queue that is led there may not answer who
	// begins to consume from it.
	r.resumes("thawed", time.Now(), time.Minute)
	r.load(5 * time.Second)
}

func (r *run) all() {
	for _, n := range r.order() {
		r.cluster.Nodes[n].Kill()
		r.faults++
	}
	r.load(5 * time.Second)
	r.cluster.Start()
	r.resumes("all are back", time.Now(), 2*time.Minute)
}

// awaitEnd waits until every message has ended; or nothing is left in the queues, so that what is
// missing is lost.
func (r *run) awaitEnd() {
	r.t.Helper()
	const quiet, bound = 10 * time.Second, 5 * time.Minute
	emptySince := time.Time{}
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); r.load(time.Second) {
		missing := r.ledger.missing()
		if len(missing) == 0 {
			return
		}
		if left := r.waiting(); left > 0 {
			emptySince = time.Time{}
			continue
		}
		if emptySince.IsZero() {
			emptySince = time.Now()
		} else if time.Since(emptySince) > quiet {
			return
		}
	}
	r.t.Errorf("after %s these have not ended: %v, and %d messages are still in the queues", bound, r.ledger.missing(),
		r.waiting())
}

// listed is a line of rabbitmqctl list_queues.
type listed struct {
	name, leader string
	messages     int
}

func (r *run) list() []listed {
	r.t.Helper()
	var all []listed
	out := r.cluster.Nodes[0].Ctl("list_queues", "--no-table-headers", "name", "messages", "leader")
	for line := range strings.Lines(out) {
		fields := append(strings.Split(strings.TrimRight(line, "\n"), "\t"), "", "")
		isOfRun := func(queue string) bool { return strings.HasPrefix(fields[0], queue) }
		if slices.ContainsFunc(r.queues, isOfRun) || isOfRun(ladder.Name()) {
			n, _ := strconv.Atoi(fields[1])
			all = append(all, listed{fields[0], fields[2], n})
		}
	}

	return all
}

// waiting is how many messages are in the main queues, the retry queues and the ladder, with those
// that the broker has not handed on yet.
func (r *run) waiting() int {
	n := 0
	for _, q := range r.list() {
		if !strings.HasSuffix(q.name, ".dlq") {
			n += q.messages
		}
	}

	return n
}

// requireSpread requires that the leaders of a main queue and of the queues that its messages pass
// are on different nodes, and that each node has leaders.
func (r *run) requireSpread() {
	r.t.Helper()
	all, leads := r.list(), map[string]int{}
	for _, q := range all {
		require.NotEmpty(r.t, q.leader, "leader of %s", q.name)
		leads[q.leader]++
	}
	r.t.Logf("leaders: %v", leads)
	assert.Len(r.t, leads, len(r.cluster.Nodes), "nodes with leaders")
	for _, queue := range r.queues {
		of := map[string]bool{}
		for _, q := range all {
			if strings.HasPrefix(q.name, queue) || strings.HasPrefix(q.name, ladder.Name()) {
				of[q.leader] = true
			}
		}
		assert.Greater(r.t, len(of), 1, "nodes with leaders of %s and the queues that its messages pass", queue)
	}
}

func (r *run) remove(uri string) {
	r.t.Helper()
	client := rabbit.New(r.t, uri)
	for _, queue := range r.queues {
		plan, err := r.services[0].retrier.Plan(queue)
		require.NoError(r.t, err)
		plan.Ladder = nil // it stays for the next run
		client.RemovePlan(plan)
	}
}
