package console

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
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

// Page views leave a queue as it was: the same messages in the same order, and none of them counted
// against a limit.
func TestViews(t *testing.T) {
	t.Parallel()
	views := env.Int(t, "VIEWS", 80)
	const messages = 200
	w := newWorld(t, messages)
	pages := []string{
		"/", "/queue?queue=" + w.dead, "/queue?queue=" + w.dead + "&text=card", "/queue?after=100&queue=" + w.dead,
		"/message?uuid=uuid-%d&queue=" + w.dead, "/body?uuid=uuid-%d&queue=" + w.dead,
		"/queue?uuid=uuid-%d&queue=" + w.dead, "/api/v1/queues/" + w.dead, "/runs", "/plan?kind=purge&queue=" + w.dead,
	}

	began := time.Now()
	var all sync.WaitGroup
	for client := range 8 {
		all.Go(func() {
			for i := client; i < views; i += 8 {
				path := strings.Replace(pages[i%len(pages)], "%d", strconv.Itoa(rand.IntN(messages)), 1)
				assert.Equal(t, http.StatusOK, w.view(path), path)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	w.kill()

	for i, d := range drain.N(t, w.Client, w.dead, messages) {
		require.Equal(t, fmt.Sprintf("uuid-%d", i), rabbit.UUID(d), "in their order")
		if w.AtLeast(4, 3) {
			assert.NotContains(t, d.Headers, "x-delivery-count", "browsed, and not failed")
		}
	}
	assert.Empty(t, w.Drain(w.dead))
	w.write(report.Table{Title: "Page views, after which the queue is as it was",
		Head: []string{"RabbitMQ", "views", "messages", "views a second"}},
		views, messages, float64(views)/took.Seconds())
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

// A long queue takes no more memory than a short one.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	messages := env.Int(t, "LETTERS", 3000)
	w := newWorld(t, messages)
	look := func(path string) time.Duration {
		began := time.Now()
		await.Within(t, 15*time.Minute, func() bool {
			return w.ask(http.MethodGet, path, "", nil) == http.StatusOK
		}, path)
		return time.Since(began)
	}
	queue := "/api/v1/queues/" + w.dead
	whole := look(queue)
	found := look(queue + "?text=nobody")
	one := look(queue + "/dead-letters?uuid=uuid-" + strconv.Itoa(messages-1))
	r := w.planned(fmt.Sprintf(`{"kind":"purge","queue":%q}`, w.dead))
	assert.Equal(t, messages, r.Plan.Matched)
	peak := w.peak()
	assert.Less(t, peak, 300, "MiB")

	w.write(report.Table{Title: "A long queue", Head: []string{"RabbitMQ", "messages", "a whole look (s)",
		"a search (s)", "one message (s)", "memory at its peak (MiB)"}},
		messages, whole.Seconds(), found.Seconds(), one.Seconds(), peak)
}

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
		w.kill()
		w.start()
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
