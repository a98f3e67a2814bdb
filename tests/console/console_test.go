package console

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// Views leave a queue as it was, whatever its visitors do: each of two consoles reads it once and
// no more, in the order of the queue, and what comes meanwhile nobody takes.
func TestViews(t *testing.T) {
	t.Parallel()
	views := env.Int(t, "VIEWS", 80)
	const messages = 3000
	w := newWorld(t, messages)
	consoles := []*world{w, w.another()}

	stop, stopped := make(chan struct{}), make(chan int)
	go func() { stopped <- w.arrive(messages, stop) }()
	began := time.Now()
	var all sync.WaitGroup
	var left atomic.Int64
	for client := range 8 {
		all.Go(func() {
			for i := client; i < views; i += 8 {
				if visitor := consoles[i%2]; i%5 == 4 {
					visitor.leave(visitor.page(i), time.Duration(rand.IntN(20))*time.Millisecond)
					left.Add(1)
				} else {
					path := visitor.page(i)
					assert.Equal(t, http.StatusOK, visitor.view(path), path)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	close(stop)
	arrived := await.Value(t, stopped, "the last arrival")
	for _, c := range consoles {
		c.ask(http.MethodGet, "/api/v1/queues/"+w.dead, "", nil) // it has read the queue
	}
	w.Has(w.dead, messages+arrived)
	for _, c := range consoles {
		c.Kill()
	}

	most, before := 0, len(consoles)
	for i, d := range drain.N(t, w.Client, w.dead, messages+arrived) {
		require.Equal(t, fmt.Sprintf("uuid-%d", i), rabbit.UUID(d), "in their order")
		n := rabbit.Returns(d)
		require.Equal(t, n > 0, d.Redelivered, "redelivered, uuid-%d", i)
		require.LessOrEqual(t, n, before, "uuid-%d was read more often than the one before", i)
		if i < messages {
			require.Equal(t, len(consoles), n, "reads of uuid-%d", i)
		}
		if w.AtLeast(4, 3) {
			require.NotContains(t, d.Headers, "x-delivery-count", "browsed, and not failed")
		}
		most, before = max(most, n), n
	}
	assert.Empty(t, w.Drain(w.dead))
	w.write(report.Table{Title: "Page views, after which the queue is as it was",
		Head: []string{"RabbitMQ", "consoles", "views", "of these cancelled", "messages", "arrived meanwhile",
			"views a second", "reads of a message"}},
		len(consoles), views, left.Load(), messages, arrived, float64(views)/took.Seconds(), most)
}

// A replay that is stopped half-way and undone: every message is counted.
func TestHalfOfAReplay(t *testing.T) {
	t.Parallel()
	messages := env.Int(t, "MESSAGES", 1500)
	w := newWorld(t, messages)
	r := w.await(w.submit("/plan", url.Values{"kind": {"replay"}, "queue": {w.dead}}))
	require.Equal(t, messages, r.Plan.Matched)
	require.Equal(t, r.ID, w.submit("/confirm", url.Values{"id": {r.ID}}))
	await.Within(t, 5*time.Minute, func() bool {
		w.ask(http.MethodGet, "/api/v1/runs/"+r.ID, "", &r)
		return r.Done >= messages/2
	})
	w.submit("/stop", url.Values{"id": {r.ID}})
	stopped := w.await(r.ID)
	w.Has(w.main, stopped.Done)
	w.Has(w.dead, messages-stopped.Done)
	undone := w.undo(r.ID)
	assert.Equal(t, stopped.Done, undone.Done)

	sent, dead := w.uuids(w.main), w.uuids(w.dead)
	assert.Len(t, sent, stopped.Done)
	assert.Len(t, dead, messages)
	for i := range messages {
		assert.Equal(t, 1, dead[fmt.Sprintf("uuid-%d", i)], "uuid-%d", i)
	}
	w.write(report.Table{Title: "A replay that is stopped and undone", Head: []string{"RabbitMQ", "messages",
		"replayed", "put back", "in the dead-letter queue then"}}, messages, stopped.Done, undone.Done, len(dead))
}

// A long queue is read once, not much slower than any consumer reads it, and all that is seen of it
// after that comes at once.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	const rounds, slowest, searched = 5, 300 * time.Millisecond, 200_000 // messages in that time
	messages := env.Int(t, "LETTERS", 3000)
	w := newWorld(t, messages)
	before := w.raw(messages)
	began := time.Now()
	var queue struct {
		Matched int
		Groups  []struct{ Fingerprint string }
	}
	await.Within(t, 30*time.Minute, func() bool {
		return w.ask(http.MethodGet, "/api/v1/queues/"+w.dead, "", nil) == http.StatusOK
	}, "the console has read the queue")
	read := time.Since(began)
	w.ask(http.MethodGet, "/api/v1/queues/"+w.dead, "", &queue)
	require.Equal(t, messages, queue.Matched)
	require.NotEmpty(t, queue.Groups)
	w.Has(w.dead, messages)
	after := w.raw(messages)

	table := report.Table{Title: "Views of a long queue, after its first read",
		Head: []string{"RabbitMQ", "messages", "view", "median (ms)", "slowest (ms)"}}
	page := "/queue?queue=" + w.dead
	for _, view := range []struct{ name, path string }{
		{"overview", "/"},
		{"queue", page},
		{"a page of the middle", page + "&page=" + strconv.Itoa(messages/100)},
		{"the newest first", page + "&sort=newest"},
		{"a cause", page + "&fingerprint=" + queue.Groups[0].Fingerprint},
		{"a search for an error", page + "&error=card+%d"},
		{"a search for a text", page + "&text=nobody-%d"},
		{"message 5", "/message?uuid=uuid-4&position=5&queue=" + w.dead},
		{"10 before the last", "/message?uuid=uuid-" + strconv.Itoa(messages-10) + "&queue=" + w.dead},
		{"500 of the middle by the API", "/api/v1/queues/" + w.dead + "/dead-letters?limit=500&after=" +
			strconv.Itoa(messages/2)},
		{"plan of a replay of all", "/plan?kind=replay&queue=" + w.dead},
	} {
		var took []time.Duration
		for round := range rounds { // each search is for something else: what was found is remembered
			path := strings.Replace(view.path, "%d", strconv.Itoa(1000+round), 1)
			began := time.Now()
			require.Equal(t, http.StatusOK, w.ask(http.MethodGet, path, "", nil), path)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		most := slowest
		if strings.Contains(view.name, "search") {
			most = max(most, most*time.Duration(messages)/searched)
		}
		if median := took[rounds/2]; !assert.Less(t, median, most, view.name) {
			t.Logf("%s: %v", view.name, took)
		}
		table.Add(w.Version(), messages, view.name, inMilliseconds(took[rounds/2]), inMilliseconds(took[rounds-1]))
	}
	report.Write(t, table.String())

	peak, raw := w.peak(), (before+after)/2
	ratio := read.Seconds() / raw.Seconds()
	if messages >= 100_000 { // a short queue is read in the time that a connection takes
		assert.LessOrEqual(t, ratio, 1.6)
	}
	assert.Less(t, peak, 150+messages/3000, "MiB")
	w.write(report.Table{Title: "The first read of a long queue", Head: []string{"RabbitMQ", "messages",
		"by a consumer before (s)", "by the console (s)", "by a consumer after (s)", "ratio",
		"memory at its peak (MiB)"}},
		messages, before.Seconds(), read.Seconds(), after.Seconds(), ratio, peak)
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// The console is killed again and again while it replays: no message is lost, and each run tells
// what is known of it.
func TestKills(t *testing.T) {
	t.Parallel()
	kills, messages := env.Int(t, "KILLS", 3), env.Int(t, "MESSAGES", 1500)
	random, seed := env.Random(t)
	w := newWorld(t, messages)
	rate := max(500, messages/max(kills, 1))
	unsaid := 0
	for range kills {
		r := w.planned(fmt.Sprintf(`{"kind":"replay","queue":%q,"rate":%d}`, w.dead, rate))
		if r.Plan.Matched == 0 {
			break
		}
		w.confirm(r.ID)
		<-time.After(time.Duration(random.IntN(1000)) * time.Millisecond)
		w.Kill()
		w.Start()
		var after run
		w.ask(http.MethodGet, "/api/v1/runs/"+r.ID, "", &after)
		if assert.Contains(t, []string{"interrupted", "done"}, after.State) && after.State == "interrupted" {
			unsaid++
		}
	}
	r := w.planned(fmt.Sprintf(`{"kind":"replay","queue":%q}`, w.dead))
	if r.Plan.Matched > 0 {
		w.confirm(r.ID)
		assert.Equal(t, "done", w.await(r.ID).State)
	}
	w.Has(w.dead, 0)

	sent, lost, doubled := w.uuids(w.main), 0, 0
	for i := range messages {
		n := sent["uuid-"+fmt.Sprint(i)]
		if n == 0 {
			lost++
		}
		doubled += max(0, n-1)
	}
	assert.Zero(t, lost)
	assert.LessOrEqual(t, doubled, 256*kills)
	assert.NotZero(t, unsaid, "no kill has interrupted a run")
	w.write(report.Table{Title: "A console that is killed", Notes: []string{fmt.Sprintf("Seed %d.", seed)},
		Head: []string{"RabbitMQ", "messages", "kills", "runs interrupted", "lost", "doubled"}},
		messages, kills, unsaid, lost, doubled)
}
