package dlqweb_test

import (
	"fmt"
	"html"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// live asks for a page as an open tab does that updates itself.
func (f *fixture) live(path string) answer {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.server.URL+path, http.NoBody)
	require.NoError(f.t, err)
	request.Header.Set("X-Requested-With", "live")

	return f.do(request)
}

// counts is what the API tells of a queue.
type counts struct {
	Snapshot      string
	Seen, Matched int
}

// counts of the queue, with more of a query.
func (f *fixture) counts(query string) (c counts) {
	f.t.Helper()
	f.json(f.get("/api/v1/queues/"+f.dead+query), &c)

	return c
}

// reads closes the console, takes out the first n messages, and gives how often each was read.
func (f *fixture) reads(n int) []int {
	f.t.Helper()
	require.NoError(f.t, f.console.Close())
	var all []int
	for i, d := range drain.N(f.t, f.Client, f.dead, n) {
		require.Equal(f.t, deadletter.Body(i), string(d.Body), "in the old order")
		all = append(all, rabbit.Returns(d))
	}

	return all
}

// Whoever comes while a queue is read waits for the same read, and gets the same snapshot.
func TestOneReadForAll(t *testing.T) {
	t.Parallel()
	const n = 2000
	f := start(t, nil)
	f.fill(0, n)
	ids := make([]string, 12)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			f.get([]string{"/queue?queue=" + f.dead, "/message?uuid=uuid-7&queue=" + f.dead,
				"/body?uuid=uuid-7&queue=" + f.dead, "/queue?text=declined&queue=" + f.dead}[i%4])
			ids[i] = f.counts("").Snapshot
		})
	}
	all.Wait()
	assert.NotEmpty(t, ids[0])
	assert.Len(t, slices.Compact(ids), 1)
	assert.Equal(t, slices.Repeat([]int{1}, n), f.reads(n))
}

// A tab that stays open costs the queue nothing.
func TestLivePageReadsNothing(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	for range 3 {
		a := f.live("/queue?queue=" + f.dead)
		assert.Equal(t, http.StatusOK, a.Status)
		assert.NotContains(t, a.Body, "Reading the queue")
		assert.Equal(t, http.StatusOK, f.get("/queue?live=1&queue="+f.dead).Status)
	}
	first := f.counts("")
	f.purge(1)
	assert.Contains(t, f.live("/queue?queue="+f.dead).Body, "has changed this queue since it was read")
	page := f.live("/queue?refresh=" + first.Snapshot + "&queue=" + f.dead).Body
	assert.Contains(t, page, `<dd class="big">5</dd>`, "also where the address says refresh")
}

// purge deletes the first n messages.
func (f *fixture) purge(n int) run {
	f.t.Helper()
	r := f.plan(fmt.Sprintf(`{"kind":"purge","limit":%d,"queue":%q}`, n, f.dead))
	f.confirm(r.ID)

	return f.await(r.ID, "done")
}

// Two who want another snapshot than the same one get one together. Who reloads the page, whose
// address still names it, gets no further one.
func TestRefreshOnce(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 300)
	first := f.counts("").Snapshot
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() { f.looked("/queue?refresh="+first+"&queue="+f.dead, nil) })
	}
	all.Wait()
	second := f.counts("").Snapshot
	assert.NotEqual(t, first, second)
	f.get("/queue?refresh=" + first + "&queue=" + f.dead)
	assert.Equal(t, second, f.counts("?refresh="+first).Snapshot)
	assert.Equal(t, slices.Repeat([]int{2}, 300), f.reads(300))
}

// Messages that come after the read are counted, and are in no list before the next read.
func TestArrivals(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.get("/api/v1/queues") // the console has seen an empty queue
	f.fill(0, 10)
	path := "/queue?queue=" + f.dead
	assert.NotContains(t, f.looked(path, nil).Body, "since</strong>", "the depth may be from before")
	f.fill(10, 5)
	await.Until(t, func() bool {
		return strings.Contains(f.live(path).Body, "<strong>5 more since</strong>")
	}, "arrivals")
	assert.Equal(t, 10, f.counts("").Matched)
	assert.Equal(t, http.StatusNotFound, f.get("/message?uuid=uuid-12&queue="+f.dead).Status)
	assert.NotContains(t, f.get(path).Body, "uuid-12")
	assert.Zero(t, f.plan(`{"kind":"purge","filter":{"uuid":["uuid-12"]},"snapshot":"`+f.counts("").Snapshot+
		`","queue":"`+f.dead+`"}`).Plan.Matched)
	page := f.looked(path+"&refresh="+f.counts("").Snapshot, nil).Body
	assert.Contains(t, page, "uuid-12")
	assert.NotContains(t, page, "since</strong>")
	drain.N(t, f.Client, f.dead, 3)
	await.Until(t, func() bool {
		return strings.Contains(f.live(path).Body, "the queue has changed since")
	}, "a change")
}

// A read waits for another client that works on the queue, for longer than that waits for the lock,
// and says so.
func TestReadWaitsForAnother(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	other, err := dlq.Open(t.Context(), f.config.Broker)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	next, stop := iter.Pull2(other.Queue(f.main).Browse(t.Context(), dlq.Filter{}))
	_, err, _ = next()
	require.NoError(t, err)
	await.Until(t, func() bool {
		return strings.Contains(f.get("/queue?queue="+f.dead).Body, "Another client reads this queue")
	}, "the page says for whom it waits")
	stop()
	await.Until(t, func() bool {
		return strings.Contains(f.get("/queue?queue="+f.dead).Body, `<dd class="big">5</dd>`)
	}, "the queue is read")
}

// A run waits for the read that goes on. Views come from the snapshot while a run works, and the
// next one after it reads again.
func TestReadsAndRuns(t *testing.T) {
	t.Parallel()
	const n = 200
	f := start(t, nil)
	f.fill(0, n)
	path := "/queue?queue=" + f.dead
	unread := f.plan(`{"kind":"replay","limit":20,"rate":10,"queue":"` + f.dead + `"}`)
	f.confirm(unread.ID)
	await.Until(t, func() bool { return f.Depth(f.main) > 0 }, "the run works")
	assert.Contains(t, f.get(path).Body, "A run is working on this queue")
	assert.Equal(t, http.StatusConflict, f.get("/message?uuid=uuid-150&queue="+f.dead).Status)
	assert.Equal(t, http.StatusConflict, f.get("/api/v1/queues/"+f.dead).Status)
	f.await(unread.ID, "done")

	assert.Equal(t, n-20, f.counts("").Matched)
	first := f.counts("").Snapshot
	again := f.plan(`{"kind":"replay","limit":20,"rate":10,"queue":"` + f.dead + `"}`)
	f.confirm(again.ID)
	await.Until(t, func() bool { return f.Depth(f.main) > 20 }, "the run works")
	assert.Contains(t, f.get(path).Body, "What is shown is from before.")
	assert.Equal(t, counts{first, n - 20, n - 20}, f.counts("?refresh="+first), "it is not read")
	assert.Equal(t, http.StatusOK, f.get("/message?uuid=uuid-150&queue="+f.dead).Status)
	f.await(again.ID, "done")
	assert.Equal(t, n-40, f.counts("").Matched, "the next view reads")
	f.purge(1)
	assert.Contains(t, f.looked(path, nil).Body, "uuid-41")
	await.Until(t, func() bool { return strings.Contains(f.get(path).Body, `<dd class="big">159</dd>`) }, "a read")
}

// While a long queue is read anew, all pages come from the snapshot before. A run waits for the end
// of the read.
func TestViewsWhileReading(t *testing.T) {
	t.Parallel()
	const n, batch = 20_000, 5_000
	f := start(t, nil)
	for first := 0; first < n; first += batch {
		f.fill(first, batch)
	}
	first := f.counts("").Snapshot
	refreshed := make(chan counts, 1)
	go func() { refreshed <- f.counts("?refresh=" + first) }()
	await.Until(t, func() bool { return f.Depth(f.dead) < n }, "it is read again")
	page := f.live("/queue?queue=" + f.dead).Body
	if assert.Contains(t, page, "messages read.") {
		assert.Contains(t, page, `data-state="Reading the queue"`, "for screen readers")
		assert.Contains(t, page, `<dd class="big">20,000</dd>`)
	}
	for _, path := range []string{"/message?uuid=uuid-19000&queue=" + f.dead, "/queue?text=19000&queue=" + f.dead,
		"/body?uuid=uuid-7&queue=" + f.dead, "/plan?kind=purge&queue=" + f.dead, "/api/v1/queues/" + f.dead} {
		assert.Equal(t, http.StatusOK, f.get(path).Status, path)
	}
	assert.Equal(t, first, f.counts("").Snapshot, "nobody has waited for the read")
	r := f.plan(`{"kind":"purge","filter":{"uuid":["uuid-5"]},"queue":"` + f.dead + `"}`)
	second := await.Value(t, refreshed, "the read")
	assert.Equal(t, n, second.Matched)
	assert.Equal(t, 1, r.Plan.Matched)
	assert.Equal(t, second.Snapshot, f.counts("").Snapshot)
}

// sockets are those to the broker, which a test can cut.
type sockets struct {
	mu  sync.Mutex
	all []net.Conn
}

func (s *sockets) dial(network, address string) (net.Conn, error) {
	socket, err := amqp091.DefaultDial(time.Minute)(network, address)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, socket)

	return socket, err
}

func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, socket := range s.all {
		_ = socket.Close()
	}
	s.all = nil
}

// The connection breaks in the middle of a read: what was seen before stays, with the error, and
// the next refresh reads again.
func TestReadThatBreaksOff(t *testing.T) {
	t.Parallel()
	const n, batch = 20_000, 5_000
	var s sockets
	f := start(t, func(c *dlqweb.Config) { c.Broker.AMQP = &amqp091.Config{Dial: s.dial} })
	for first := 0; first < n; first += batch {
		f.fill(first, batch)
	}
	first := f.counts("").Snapshot
	path := "/queue?queue=" + f.dead
	go func() { f.live("/queue?queue=" + f.dead); f.get(path + "&refresh=" + first) }()
	await.Until(t, func() bool { return f.Depth(f.dead) < n }, "it is read again")
	s.cut()
	var page string
	await.Until(t, func() bool {
		page = f.live(path).Body
		return strings.Contains(page, `role="alert"`)
	}, "the page tells that the read has failed")
	assert.Contains(t, page, `<dd class="big">20,000</dd>`)
	assert.Equal(t, first, f.counts("").Snapshot)
	assert.Equal(t, http.StatusOK, f.get("/message?uuid=uuid-19000&queue="+f.dead).Status)
	f.Has(f.dead, n)
	await.Until(t, func() bool { return f.counts("?refresh="+first).Snapshot != first }, "the next read")
	assert.NotContains(t, f.live(path).Body, `role="alert"`)
	assert.Equal(t, n, f.counts("").Matched)
}

// What a redaction hides is nowhere in a snapshot: in no search, no list, no file. Plans count what
// the queue has, by what is shown.
func TestRedactedSnapshot(t *testing.T) {
	t.Parallel()
	hide := func(text string) string { return strings.ReplaceAll(text, "secret", "(hidden)") }
	f := start(t, func(c *dlqweb.Config) {
		c.Redact = func(l *dlq.DeadLetter) {
			l.Error, l.Message.Body = hide(l.Error), []byte(hide(string(l.Message.Body)))
			l.Message.Headers["customer"] = "(hidden)"
			for i := range l.History {
				l.History[i].Error = hide(l.History[i].Error)
			}
		}
	})
	for i := range 3 {
		state := deadletter.State(f.main, i)
		state.Error = "secret-in-error"
		message := deadletter.Message(state, fmt.Sprint("uuid-", i), `{"n":"secret-in-body"}`)
		message.Headers["customer"] = "secret-in-header"
		f.Publish(f.dead, message)
	}
	snapshot := f.counts("").Snapshot
	for filter, n := range map[string]int{
		"text=secret": 0, "text=hidden": 3, "error=secret": 0, "error=hidden": 3, "error-matches=secr.t": 0,
		"header=customer%3Dsecret-in-header": 0, "json-field=n%3Dsecret-in-body": 0, "reason=exhausted": 3,
	} {
		assert.Equal(t, n, f.counts("?"+filter).Matched, filter)
		key, value, _ := strings.Cut(filter, "=")
		value, err := url.QueryUnescape(value)
		require.NoError(t, err)
		r := f.plan(fmt.Sprintf(`{"kind":"purge","queue":%q,"filter":{%q:[%q]},"snapshot":%q}`, f.dead, key, value,
			snapshot))
		assert.Equal(t, n, r.Plan.Matched, filter)
	}
	for _, path := range []string{"/queue?queue=", "/message?uuid=uuid-1&queue=", "/body?uuid=uuid-1&queue=",
		"/plan?kind=purge&queue="} {
		a := f.get(path + f.dead)
		assert.Equal(t, http.StatusOK, a.Status)
		assert.NotContains(t, a.Body, "secret", path)
	}
	assert.Contains(t, f.get("/plan?kind=purge&queue="+f.dead).Body, "Count them")
	files := 0
	for _, path := range snapshotFiles(t, f.config.Folder) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Contains(t, string(text), "hidden")
		assert.NotContains(t, string(text), "secret")
		files++
	}
	if _, err := os.Stat("/proc/self/fd"); err == nil {
		assert.Equal(t, 1, files)
	}
}

// snapshotFiles are the files that this process has open for the snapshots of a console, which have
// no name any more.
func snapshotFiles(t *testing.T, folder string) (all []string) {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, path := range open {
		if name, err := os.Readlink(path); err == nil && strings.HasPrefix(name, folder) &&
			strings.Contains(name, ".snapshot") {
			all = append(all, path)
		}
	}

	return all
}

// A console without a folder for whole messages shows what it has in memory, and reads a message
// from the queue when somebody opens it: the right one, also where messages have no UUID.
func TestNoRoomForMessages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	for i := range 3 {
		f.Publish(f.dead, amqp091.Publishing{Body: fmt.Appendf(nil, "bare %d", i)})
	}
	require.NoError(t, os.RemoveAll(f.config.Folder))
	assert.Equal(t, 6, f.counts("").Matched)
	assert.Equal(t, 1, f.counts("?error=card+1+declined").Matched)
	assert.Contains(t, f.get("/queue?text=card&queue="+f.dead).Body, "Cannot search in messages")
	page := f.get("/message?uuid=uuid-2&queue=" + f.dead)
	assert.Contains(t, page.Body, "card 2 declined")
	id := f.counts("").Snapshot
	assert.Equal(t, "bare 1", f.get("/body?position=5&snapshot="+id+"&queue="+f.dead).Body)
	assert.Equal(t, "bare 2", f.get("/body?position=6&snapshot="+id+"&queue="+f.dead).Body)
	drain.N(t, f.Client, f.dead, 1)
	assert.Equal(t, http.StatusNotFound, f.get("/body?position=6&snapshot="+id+"&queue="+f.dead).Status)
	assert.Equal(t, http.StatusOK, f.get("/message?uuid=uuid-2&queue="+f.dead).Status)
}

var (
	hiddenInput = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
	planForm    = regexp.MustCompile(`(?s)<form method="post" action="plan" class="plan">.*?</form>`)
)

// form is what the form of a plan sends as it is.
func (f *fixture) form(query string) url.Values {
	f.t.Helper()
	a := f.get("/plan?queue=" + f.dead + "&" + query)
	require.Equal(f.t, http.StatusOK, a.Status, a.Body)
	form := url.Values{}
	for _, input := range hiddenInput.FindAllStringSubmatch(planForm.FindString(a.Body), -1) {
		form.Add(input[1], input[2])
	}
	given, err := url.ParseQuery(query)
	require.NoError(f.t, err)
	for key, values := range given {
		if !form.Has(key) {
			form[key] = values
		}
	}

	return form
}

// submit sends the form of a plan, and gives the run when it is not busy any more.
func (f *fixture) submit(form url.Values) run {
	f.t.Helper()
	a := f.post("/plan", form)
	require.Equal(f.t, http.StatusSeeOther, a.Status, a.Body)

	return f.await(strings.TrimPrefix(a.Header.Get("Location"), "run?id="), "ready", "done", "failed", "stopped")
}

// The careful replay of a cause is about its messages in the view, not about all of the cause.
func TestCarefulReplayOfAView(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 6)
	f.counts("")
	page := f.get("/queue?header=tenant%3D1&uuid=uuid-1&uuid=uuid-4&uuid=uuid-5&queue=" + f.dead).Body
	link := regexp.MustCompile(`href="(plan[^"]*fingerprint=[^"]*rate=[^"]*)"`).FindStringSubmatch(page)
	require.Len(t, link, 2, page)
	plan := f.get("/" + html.UnescapeString(link[1])).Body
	assert.Contains(t, plan, "Replay 2 messages to "+f.main)
}

// What somebody has seen of a plan is done at once, if nothing else would be done. Else it is
// counted, and asked once more.
func TestPlanAtOnce(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 160)
	assert.False(t, f.form("kind=purge").Has("expect"), "nothing was read")
	f.counts("")

	form := f.form("kind=purge&uuid=uuid-3")
	require.True(t, form.Has("expect"))
	r := f.submit(form)
	assert.Equal(t, [2]any{"done", 1}, [2]any{r.State, r.Done})
	again := f.submit(form)
	assert.Zero(t, again.Done, "the same form once more finds nothing to do")
	f.Has(f.dead, 159)
}

// Every way in which what somebody has seen does not hold any more.
func TestPlanThatIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 160)
	f.counts("")
	form := f.form("kind=purge&limit=5")
	for name, change := range map[string]func(url.Values){
		"another limit":       func(v url.Values) { v.Set("limit", "6") },
		"no limit":            func(v url.Values) { v.Del("limit") },
		"another kind":        func(v url.Values) { v.Set("kind", "replay") },
		"another target":      func(v url.Values) { v.Set("kind", "move"); v.Set("to", f.main) },
		"fewer match":         func(v url.Values) { v.Set("uuid", "uuid-1") },
		"nobody has seen it":  func(v url.Values) { v.Del("expect") },
		"somebody made it up": func(v url.Values) { v.Set("expect", "0123456789abcdef") },
	} {
		changed := url.Values{}
		for key, values := range form {
			changed[key] = slices.Clone(values)
		}
		change(changed)
		assert.Equal(t, "ready", f.submit(changed).State, name)
	}
	f.Has(f.dead, 160)

	all := f.form("kind=purge")
	r := f.submit(all)
	assert.Equal(t, "ready", r.State, "more than 100, and no number typed")
	for _, typed := range []string{"", "159", "16"} {
		a := f.post("/confirm", url.Values{"id": {r.ID}, "typed": {typed}})
		assert.Equal(t, http.StatusBadRequest, a.Status, typed)
	}
	all.Set("typed", "1600")
	assert.Equal(t, "ready", f.submit(all).State)
	all.Set("typed", "160")
	r = f.submit(all)
	assert.Equal(t, [2]any{"done", 160}, [2]any{r.State, r.Done})
	f.Has(f.dead, 0)
	assert.Equal(t, http.StatusSeeOther, f.post("/stop", url.Values{"id": {r.ID}}).Status)
}

// A plan of a snapshot that is not there any more is none, where somebody asks for just that one.
func TestPlanOfAnOldSnapshot(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	f.counts("")
	form := f.form("kind=purge")
	f.looked("/queue?refresh="+form.Get("snapshot")+"&queue="+f.dead, nil)
	require.NotEqual(t, form.Get("snapshot"), f.counts("").Snapshot)
	var r run
	f.json(f.send(http.MethodPost, "/api/v1/runs", "application/json",
		`{"kind":"purge","queue":"`+f.dead+`","snapshot":"`+form.Get("snapshot")+`"}`), &r)
	r = f.await(r.ID, "failed", "ready")
	assert.Equal(t, "failed", r.State)
	assert.Contains(t, r.Error, "read again")
	f.Has(f.dead, 5)
}

// The rest of a run is what it has counted and not done: nothing that came later, and no message
// that it has done.
func TestRestOfARun(t *testing.T) {
	t.Parallel()
	const n = 60
	f := start(t, nil)
	f.fill(0, n)
	r := f.plan(`{"kind":"replay","rate":20,"filter":{"error":["declined"]},"queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	await.Until(t, func() bool { return f.Depth(f.main) >= 5 }, "the run works")
	f.fill(n, 10)
	assert.Equal(t, http.StatusConflict, f.send(http.MethodPost, "/api/v1/runs", "application/json",
		`{"kind":"replay","rest_of":"`+r.ID+`","queue":"`+f.dead+`"}`).Status, "it is still at work")
	f.post("/stop", url.Values{"id": {r.ID}})
	r = f.await(r.ID, "stopped")
	require.Less(t, r.Done, n)

	id := f.counts("?text=nobody").Snapshot // nobody has seen all of it
	withSnapshot := f.plan(fmt.Sprintf(`{"kind":"replay","snapshot":%q,"rest_of":%q,"queue":%q}`, id, r.ID, f.dead))
	assert.Equal(t, n-r.Done, withSnapshot.Plan.Matched)
	assert.Equal(t, n+10-r.Done, f.counts("").Matched, "and the snapshot still has all")

	rest := f.submit(f.form("kind=replay&rest-of=" + r.ID))
	assert.Equal(t, [2]any{"ready", n - r.Done}, [2]any{rest.State, rest.Plan.Matched})
	f.confirm(rest.ID)
	assert.Equal(t, n-r.Done, f.await(rest.ID, "done").Done)
	var found []string
	for _, d := range drain.N(t, f.Client, f.main, n) {
		found = append(found, string(d.Body))
	}
	slices.Sort(found)
	wanted := deadletter.Bodies(n)
	slices.Sort(wanted)
	assert.Equal(t, wanted, found)
	f.Has(f.dead, 10)
	assert.Equal(t, http.StatusConflict, f.send(http.MethodPost, "/api/v1/runs", "application/json",
		`{"kind":"replay","rest_of":"`+rest.ID+`","queue":"`+f.dead+`"}`).Status, "nothing of it is left")
}
