package peers

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// benchmarkKill counts what is lost, and what is handled twice, when the broker is killed while
// messages fail, wait and return. All contenders work side by side on the same broker, and live
// through the same kills: one in each round.
func benchmarkKill(b *testing.B, peers []peer, notes []string) {
	messages := report.Scaled(b, 2000, 200)
	var all []*survivor
	for _, queueType := range []string{classic, quorum} {
		for _, retryType := range []string{quorum, classic} {
			for _, p := range peers {
				all = append(all, &survivor{peer: p, queueType: queueType, retryType: retryType})
			}
		}
	}

	broker := brokertest.Start(b)
	kills := 0
	for b.Loop() {
		kill(b, broker, all, messages)
		kills++
	}
	b.ReportMetric(0, "ns/op") // it says nothing

	t := report.Table{
		Title: "Peers: the broker is killed",
		Notes: append([]string{fmt.Sprintf("The same, of all clients at once on one broker, which is killed "+
			"(SIGKILL) at a random moment before the first of them is done, and started again. Kills: %d, with %d "+
			"confirmed persistent messages for each client. Lost: never succeeded, and in no queue. Late: in a "+
			"queue, though nothing has moved for %s. Dead: not retried, but in the dead-letter queue. Twice: "+
			"succeeded more than once.", kills, messages, forWaiting)},
			notes...),
		Head: []string{"main queue", "retry queue", "client", "messages", "lost", "late", "dead", "twice"},
	}
	for _, s := range all {
		t.Add(s.queueType, s.retryType, s.peer, kills*messages, s.fates.lost, s.fates.late, s.fates.dead, s.fates.twice)
		if _, ours := s.peer.(retrier); ours && s.retryType == quorum && s.fates.lost+s.fates.dead > 0 {
			b.Errorf("the retrier has lost messages: main queue %s, %d lost, %d dead", s.queueType, s.fates.lost,
				s.fates.dead)
		}
	}
	t.WriteOn(b, broker.URI)
}

// survivor is a contender, and the sums of what became of its messages.
type survivor struct {
	peer                 peer
	queueType, retryType string
	fates                fates

	// of this round
	queue   queue
	calls   *calls
	stop    func()
	waiting int // messages that lie in the queues
}

func kill(b *testing.B, broker *brokertest.Broker, all []*survivor, messages int) {
	b.Helper()
	for _, s := range all {
		s.queue, s.calls = newQueue(s.queueType, s.retryType), newCalls(messages)
		s.queue.fill(b, broker.URI, s.peer.arguments(s.queue), messages)
		s.stop = s.peer.start(b, broker.URI, s.queue, s.calls)
	}
	for _, s := range all {
		await.Closed(b, s.calls.there, fmt.Sprintf("%s gets no message", s.peer))
	}
	broker.Settle()

	for _, s := range all {
		s.calls.begin()
	}
	moment := int((0.3 + 0.6*rand.Float64()) * float64(2*messages)) // of the fastest: some have returned, many wait
	until(b, time.Millisecond, time.Minute, func() bool {
		for _, s := range all {
			if s.calls.seen() >= moment {
				return true
			}
		}
		return false
	})
	var at []int
	for _, s := range all {
		at = append(at, s.calls.seen())
	}
	broker.Kill()
	b.Logf("killed when the handlers had been called so often: %v of %d", at, 2*messages)
	broker.Start()

	drain(b, broker, all)
	for _, s := range all {
		s.stop()
		s.count(b, broker.URI, messages)
		s.queue.remove(b, broker.URI, s.peer.beside(s.queue))
	}
}

// count adds what became of a round's messages.
func (s *survivor) count(b *testing.B, uri string, messages int) {
	b.Helper()
	var dead []string
	if name := s.peer.beside(s.queue).dead; name != "" {
		dead = take(b, uri, name)
	}
	now := s.calls.fates(dead, s.waiting)
	b.Logf("main queue %s, %s, %d messages: %+v", s.queueType, entry(s.peer, s.retryType), messages, now)
	s.fates = s.fates.plus(now)
}

// The broker is given so long when nothing moves: to bring what lies in a queue, and what lies in
// none.
const (
	forWaiting = time.Minute // clients take up to half of it to come back
	forMissing = 10 * time.Second
	forRepeats = 3 * time.Second
)

// drain waits until nothing moves any more: depths of queues are the same, and handlers are not
// called.
func drain(b *testing.B, broker *brokertest.Broker, all []*survivor) {
	b.Helper()
	since := make([]time.Time, len(all)) // nothing has moved
	seen := make([]int, len(all))
	until(b, 2*time.Second, 10*time.Minute, func() bool {
		depths := depths(b, broker)
		still := true
		for i, s := range all {
			calls, depth := s.calls.seen(), depths[s.queue.name]+depths[s.peer.beside(s.queue).retry]
			if calls != seen[i] || depth != s.waiting {
				seen[i], s.waiting, since[i] = calls, depth, time.Now()
			}
			still = still && time.Since(since[i]) >= s.patience()
		}
		return still
	})
}

func (s *survivor) patience() time.Duration {
	if s.waiting > 0 {
		return forWaiting
	}
	select {
	case <-s.calls.done:
		return forRepeats
	default:
		return forMissing
	}
}

// depths are the numbers of messages in all queues, those included that a quorum queue dead-letters
// and that are not confirmed yet.
func depths(b *testing.B, broker *brokertest.Broker) map[string]int {
	b.Helper()
	found := map[string]int{}
	for line := range strings.Lines(broker.Ctl("--silent", "list_queues", "name", "messages")) {
		fields := strings.Fields(line)
		require.Len(b, fields, 2, "rabbitmqctl: %s", line)
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			continue // the head
		}
		found[fields[0]] = n
	}

	return found
}

// until looks again and again until it is so.
func until(b *testing.B, every, within time.Duration, so func() bool) {
	b.Helper()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for !so() {
		select {
		case <-ticker.C:
		case <-timeout.C:
			b.Fatalf("not done within %s", within)
		}
	}
}
