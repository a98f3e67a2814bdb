package dlqweb_test

import (
	"iter"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
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
)

// What a redaction does to its copy, nested values included, happens to no message. One that panics
// shows nothing.
func TestRedactChangesNoMessage(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *dlqweb.Config) {
		c.Redact = func(l *dlq.DeadLetter) {
			if l.UUID == "uuid-1" {
				panic("a redaction that is wrong")
			}
			l.Message.Headers["new"] = "x" // also of a message without headers
			if customer, ok := l.Message.Headers["customer"].(amqp091.Table); ok {
				customer["email"] = "(redacted)"
				customer["names"].([]any)[0] = "(redacted)"
				copy(customer["raw"].([]byte), "XXXXXX")
			}
			copy(l.Message.Body, "XXXXXX")
		}
	})
	letter := deadletter.New(f.main, 0)
	customer := func() amqp091.Table {
		return amqp091.Table{"email": "ann@example.com", "names": []any{"Ann"}, "raw": []byte("secret")}
	}
	letter.Headers["customer"] = customer()
	f.Publish(f.dead, letter, deadletter.New(f.main, 1), amqp091.Publishing{Body: []byte("bare")})
	page := f.get("/message?uuid=uuid-0&queue=" + f.dead).Body
	assert.Contains(t, page, "(redacted)")
	assert.NotContains(t, page, "ann@example.com")
	page = f.get("/message?uuid=uuid-1&queue=" + f.dead).Body
	assert.Contains(t, page, "Config.Redact panicked")
	assert.NotContains(t, page, "declined")

	r := f.plan(`{"kind":"move","to":"` + f.main + `","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	undo, err := os.ReadFile(f.config.Folder + "/" + r.ID + "/undo.jsonl")
	require.NoError(t, err)
	assert.Contains(t, string(undo), "ann@example.com")
	assert.NotContains(t, string(undo), "redacted")
	for _, d := range drain.N(t, f.Client, f.main, 3) {
		assert.NotContains(t, string(d.Body), "XXX")
		assert.NotContains(t, d.Headers, "new")
		if found, ok := d.Headers["customer"]; ok {
			assert.Equal(t, customer(), found)
		}
	}

	edit := `{"kind":"replay","queue":"` + f.dead + `","filter":{"uuid":["x"]},"edit":{"body":"y"}}`
	assert.Equal(t, http.StatusForbidden, f.send(http.MethodPost, "/api/v1/runs", "application/json", edit).Status)
	assert.Equal(t, http.StatusForbidden, f.post("/diff", url.Values{"queue": {f.dead}, "uuid": {"x"}}).Status)
}

// A filter that is mistyped or empty selects nothing, instead of everything.
func TestMistypedFilters(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	for _, filter := range []string{
		`{"error_type":["x"]}`, `{"uuid":[""]}`, `{"error":["a",""]}`, `{"max-calls":["0"]}`, `{"limit":["1"]}`,
		`{"min-calls":["1","2"]}`, `{"older-than":["soon"]}`, `{"fingerprint":["x"]}`, `{"error-matches":["("]}`,
	} {
		a := f.send(http.MethodPost, "/api/v1/runs", "application/json",
			`{"kind":"purge","queue":"`+f.dead+`","filter":`+filter+`}`)
		assert.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", filter, a.Body)
	}
	for _, query := range []string{"error_type=x", "error=", "limit=1"} {
		assert.Equal(t, http.StatusBadRequest, f.get("/api/v1/queues/"+f.dead+"?"+query).Status, query)
	}
	assert.Zero(t, f.plan(`{"kind":"purge","queue":"`+f.dead+`","filter":{"uuid":[" "]}}`).Plan.Matched)
	assert.Equal(t, 3, f.Depth(f.dead))
}

// A key that is mistyped in a page's address or a form is refused, as it is by the API.
func TestMistypedKeysOfPages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	q := "queue=" + f.dead
	for _, path := range []string{"/queue?eror=declined&", "/plan?kind=purge&eror=declined&",
		"/plan?kind=purge&kind=move&", "/queue?limits=1&", "/plan?kind=purge&edit=x&"} {
		a := f.get(path + q)
		assert.Equal(t, http.StatusBadRequest, a.Status, path)
	}
	assert.Contains(t, f.get("/queue?eror=declined&"+q).Body, "eror: is no filter")
	form := func(key string, values ...string) url.Values {
		return url.Values{"kind": {"purge"}, "queue": {f.dead}, key: values}
	}
	for _, wrong := range []url.Values{form("eror", "declined"), form("after", "1"), form("limit", "1", "2")} {
		assert.Equal(t, http.StatusBadRequest, f.post("/plan", wrong).Status, wrong)
	}
	assert.Equal(t, http.StatusBadRequest, f.post("/plan?error=declined", form("uuid", "x")).Status)
	plan := `{"kind":"purge","queue":"` + f.dead + `"}`
	for _, path := range []string{"/runs?error=declined", "/queues/" + f.dead + "/imports?error=declined"} {
		kind := map[bool]string{true: "application/json", false: "application/jsonl"}[strings.HasPrefix(path, "/runs")]
		assert.Equal(t, http.StatusBadRequest, f.send(http.MethodPost, "/api/v1"+path, kind, plan).Status, path)
	}
	for _, names := range [][]string{{"queue", "error", "file"}, {"queue", "file", "error"}} {
		var body strings.Builder
		parts := multipart.NewWriter(&body)
		for _, name := range names {
			require.NoError(t, parts.WriteField(name, map[string]string{"queue": f.dead}[name]))
		}
		require.NoError(t, parts.Close())
		a := f.send(http.MethodPost, "/plan", parts.FormDataContentType(), body.String())
		assert.Equal(t, http.StatusBadRequest, a.Status, names)
		assert.Contains(t, a.Body, "an import takes the whole file", names)
	}
	assert.JSONEq(t, `{"runs":[]}`, f.get("/api/v1/runs").Body)

	empty := form("error", "") // as a browser sends inputs that nobody has filled in
	empty.Set("limit", "")
	assert.Equal(t, http.StatusSeeOther, f.post("/plan", empty).Status)
	assert.Equal(t, http.StatusOK, f.get("/queue?error=&"+q).Status)
}

// A run is about what was counted, whatever has taken its places since.
func TestWhatCameSinceStays(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 10)
	a := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	drain.N(t, f.Client, f.dead, 7) // somebody else has taken some of them
	f.fill(10, 10)
	f.confirm(a.ID)
	assert.Equal(t, 3, f.await(a.ID, "done").Done)
	var found []string
	for _, d := range drain.N(t, f.Client, f.dead, 10) {
		found = append(found, string(d.Body))
	}
	assert.Equal(t, deadletter.Bodies(20)[10:], found)
}

// Messages that tell nothing of themselves are put back as well.
func TestUndoOfBareMessages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for range 10 {
		f.Publish(f.dead, amqp091.Publishing{Body: []byte("bare")})
	}
	r := f.plan(`{"kind":"purge","limit":4,"queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	assert.Equal(t, 4, f.undone(r.ID).Done)
	f.Has(f.dead, 10)
}

// A message that was replayed again since is in the queue, and stays the only one.
func TestUndoOfAnOlderReplay(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 1)
	first := ""
	for i := range 2 {
		r := f.plan(`{"kind":"replay","queue":"` + f.dead + `"}`)
		f.confirm(r.ID)
		f.await(r.ID, "done")
		if i == 0 {
			first = r.ID
		}
		d := drain.N(t, f.Client, f.main, 1)[0]
		state := deadletter.State(f.main, 100*(i+1)) // it fails again
		state.Replays = i + 1
		again := deadletter.Message(state, "uuid-0", string(d.Body))
		again.Headers["amqpretry-replay"] = d.Headers["amqpretry-replay"]
		f.Publish(f.dead, again)
		f.Has(f.dead, 1)
	}
	var undo run
	f.json(f.send(http.MethodPost, "/api/v1/runs/"+first+"/undo", "application/json", ""), &undo)
	assert.Zero(t, f.await(undo.ID, "ready").Plan.Matched)
	assert.Equal(t, http.StatusConflict, f.confirm(undo.ID).Status)
	assert.Equal(t, 1, f.Depth(f.dead))
}

// A file without a last line feed is imported whole, or says that it is not.
func TestImportWithoutLastLineFeed(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 2)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	lines := f.get("/file?id=" + r.ID).Body
	imports := "/api/v1/queues/" + f.dead + "/imports"

	var whole, broken run
	f.json(f.send(http.MethodPost, imports, "application/jsonl", strings.TrimSuffix(lines, "\n")), &whole)
	assert.Equal(t, 2, f.await(whole.ID, "ready").Plan.Matched)
	f.json(f.send(http.MethodPost, imports, "application/jsonl", lines[:len(lines)-20]), &broken)
	assert.Equal(t, 1, f.await(broken.ID, "ready").Plan.Matched)
	assert.Contains(t, f.get("/run?id="+broken.ID).Body, "is incomplete and was skipped")
}

// Whoever looks at a queue, again and again, keeps no run from it.
func TestLooksMakeRoomForRuns(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	messages := make([]amqp091.Publishing, 1500)
	for i := range messages {
		messages[i] = deadletter.New(f.main, i)
	}
	f.Publish(f.dead, messages...)
	r := f.plan(`{"kind":"purge","limit":100,"queue":"` + f.dead + `"}`)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				f.get("/queue?queue=" + f.dead + "&after=" + strings.Repeat("1", i%8+1))
				f.get("/message?uuid=uuid-1499&queue=" + f.dead)
			}
		}
	}()
	f.confirm(r.ID)
	assert.Equal(t, 100, f.await(r.ID, "done").Done)
	r = f.plan(`{"kind":"purge","limit":100,"queue":"` + f.dead + `"}`)
	close(stop)
	<-ended
	f.Has(f.dead, 1400)
}

// A run waits for somebody else who looks at the queue, such as the command line.
func TestRunsWaitForOthers(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	other, err := dlq.Open(t.Context(), f.config.Broker)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	next, stop := iter.Pull2(other.Queue(f.main).Browse(t.Context(), dlq.Filter{}))
	_, err, _ = next()
	require.NoError(t, err)
	const longer = 6 * time.Second // than a browse waits for another
	time.AfterFunc(longer, stop)
	assert.Equal(t, 5, f.plan(`{"kind":"purge","queue":"`+f.dead+`"}`).Plan.Matched)
}

// An upload that breaks off leaves nothing behind.
func TestUploadThatBreaksOff(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		f.server.URL+"/api/v1/queues/"+f.dead+"/imports", strings.NewReader("{}\n"))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/jsonl")
	request.ContentLength = 1000
	client := http.Client{}
	if response, err := client.Do(request); err == nil {
		require.NoError(t, response.Body.Close())
	}
	await.Until(t, func() bool {
		entries, err := os.ReadDir(f.config.Folder)
		return err == nil && len(entries) == 1 // the lock
	})
	assert.JSONEq(t, `{"runs":[]}`, f.get("/api/v1/runs").Body)
}

// Somebody who may not do something is recorded as refused, and not as having done it.
func TestAuditOfWhoMayNot(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 1)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	before := len(f.auditLog.records(t))
	f.role = dlqweb.RoleMetadata
	assert.Equal(t, http.StatusForbidden, f.post("/undo", url.Values{"id": {r.ID}}).Status)
	assert.Equal(t, http.StatusForbidden, f.post("/stop", url.Values{"id": {r.ID}}).Status)
	assert.Equal(t, http.StatusForbidden, f.post("/plan", url.Values{"kind": {"purge"}, "queue": {f.dead}}).Status)
	assert.Equal(t, http.StatusForbidden, f.get("/file?id="+r.ID).Status)
	assert.Equal(t, http.StatusForbidden, f.send(http.MethodDelete, "/api/v1/runs/"+r.ID, "", "").Status)
	records := f.auditLog.records(t)[before:]
	for i, want := range []map[string]any{
		{"action": "plan", "path": "/undo", "needs": "replay", "kind": "import", "queue": f.dead},
		{"action": "stop", "path": "/stop", "needs": "delete", "kind": "purge", "queue": f.dead, "run": r.ID},
		{"action": "plan", "path": "/plan", "needs": "delete", "kind": "purge", "queue": f.dead},
		{"action": "download", "path": "/file", "needs": "replay"},
		{"action": "stop", "path": "/api/v1/runs/" + r.ID, "needs": "delete", "kind": "purge", "queue": f.dead,
			"run": r.ID},
	} {
		maps.Copy(want, map[string]any{"outcome": "refused", "user": "ada", "role": "metadata", "address": "127.0.0.1",
			"level": "INFO", "msg": "dead letters: " + want["action"].(string)})
		require.Greater(t, len(records), i)
		assert.Equal(t, want, records[i])
	}
	assert.Len(t, records, 5)

	for range 100 {
		f.get("/runs")
	}
	assert.Less(t, len(f.auditLog.records(t)), before+60, "the audit log cannot be filled with refusals")
}

// Forms that nobody can read, and paths that no link has.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	form := "application/x-www-form-urlencoded"
	assert.Equal(t, http.StatusBadRequest, f.send(http.MethodPost, "/plan", form, "kind=%zz").Status)
	assert.Equal(t, http.StatusBadRequest, f.send(http.MethodPost, "/plan", "multipart/form-data", "x").Status)
	assert.Equal(t, http.StatusBadRequest, f.post("/plan", url.Values{"kind": {"import"}, "queue": {f.dead}}).Status)
	for _, path := range []string{"//queue", "/./queue", "/a/../queue", "//evil.example/"} {
		a := f.get(path)
		assert.Equal(t, http.StatusNotFound, a.Status, path)
		assert.Empty(t, a.Header.Get("Location"), path)
	}
	f.fill(0, 1)
	page := f.looked("/queue?queue="+f.dead+"&error-matches=card&reason=exhausted&reason=panic&min-calls=1", nil).Body
	for _, hidden := range []string{`name="error-matches" value="card"`, `name="reason" value="exhausted"`,
		`name="reason" value="panic"`, `name="min-calls" value="1"`} {
		assert.Contains(t, page, `<input type="hidden" `+hidden)
	}
}

// Messages of a megabyte in a classic dead-letter queue: shown in part, downloaded whole, replayed
// and put back.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.Remove("", f.dead)
	f.Declare(f.dead, amqp091.Table{amqp091.QueueTypeArg: "classic"})
	const messages, size = 20, 1 << 20
	for i := range messages {
		letter := deadletter.New(f.main, i)
		letter.Body = []byte(strings.Repeat(strconv.Itoa(i%10), size))
		f.Publish(f.dead, letter)
	}
	page := f.get("/message?uuid=uuid-7&queue=" + f.dead).Body
	assert.Contains(t, page, "Only the beginning is shown")
	assert.Less(t, len(page), 100<<10)
	assert.Equal(t, strings.Repeat("7", size), f.get("/body?uuid=uuid-7&queue="+f.dead).Body)

	r := f.plan(`{"kind":"replay","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	assert.Equal(t, messages, f.await(r.ID, "done").Done)
	assert.Equal(t, messages, f.undone(r.ID).Done)
	for i, d := range drain.N(t, f.Client, f.dead, messages) {
		assert.Equal(t, strings.Repeat(strconv.Itoa(i%10), size), string(d.Body))
	}
}

// Somebody who may only see plans as many runs as he can: others replay and undo all the same.
func TestTooManyPlans(t *testing.T) {
	t.Parallel()
	user := dlqweb.User("ada")
	var f *fixture
	f = start(t, func(c *dlqweb.Config) {
		c.Authorize = func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return user, f.role, nil }
	})
	f.role = dlqweb.RoleDelete
	f.fill(0, 1)
	done := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.confirm(done.ID)
	f.await(done.ID, "done")

	user, f.role = "eve", dlqweb.RoleView
	plan := func(kind string) answer {
		return f.send(http.MethodPost, "/api/v1/runs", "application/json", `{"kind":"`+kind+`","queue":"`+f.dead+`"}`)
	}
	var first run
	f.json(plan("export"), &first)
	for range 9 {
		assert.Equal(t, http.StatusCreated, plan("export").Status)
	}
	refused := plan("export")
	assert.Equal(t, http.StatusTooManyRequests, refused.Status)
	assert.Equal(t, "60", refused.Header.Get("Retry-After"))
	f.send(http.MethodDelete, "/api/v1/runs/"+first.ID, "application/json", "")
	f.await(first.ID, "discarded")
	assert.Equal(t, http.StatusCreated, plan("export").Status)

	user, f.role = "ada", dlqweb.RoleDelete
	for range 10 {
		assert.Equal(t, http.StatusCreated, plan("replay").Status)
	}
	assert.Equal(t, http.StatusTooManyRequests, plan("replay").Status)
	assert.Equal(t, 1, f.undone(done.ID).Done)
}
