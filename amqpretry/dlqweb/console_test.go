package dlqweb_test

import (
	"bytes"
	"html"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
)

func TestPages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 70)

	for _, path := range []string{"/", "/queue?queue=" + f.dead, "/runs"} {
		a := f.get(path)
		assert.Equal(t, http.StatusOK, a.Status, path)
		assert.Equal(t, "text/html; charset=utf-8", a.Header.Get("Content-Type"))
		assert.Contains(t, a.Header.Get("Content-Security-Policy"), "default-src 'none'")
		assert.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", a.Header.Get("Cache-Control"))
		assert.Less(t, len(a.Body), 50<<10, path)
	}
	page := f.looked("/queue?queue="+f.dead, nil).Body
	assert.Contains(t, page, `<dd class="big">70</dd>`)
	assert.Contains(t, page, "page=2")
	assert.Contains(t, f.looked("/queue?page=2&queue="+f.dead, nil).Body, ">51<")
	assert.Contains(t, f.looked("/queue?uuid=uuid-7&queue="+f.dead, nil).Body, `<dd class="big">1 <small>of 70</small></dd>`)
	assert.Contains(t, f.get("/message?uuid=uuid-7&queue="+f.dead).Body, "uuid-7")
	assert.Equal(t, http.StatusNotFound, f.get("/message?uuid=nobody&queue="+f.dead).Status)
	assert.Equal(t, http.StatusNotFound, f.get("/queue?queue="+f.main).Status, "a main queue is nobody's business")
	assert.Equal(t, http.StatusNotFound, f.get("/queue?queue=other.dlq").Status, "one that it does not show")
	assert.Equal(t, http.StatusNotFound, f.get("/nothing").Status)
	assert.Equal(t, http.StatusNotFound, f.get("/no/thing").Status)
	assert.Contains(t, f.get("/api/v1/nothing").Header.Get("Content-Type"), "problem+json")
	assert.Equal(t, http.StatusBadRequest, f.get("/queue?older-than=x&queue="+f.dead).Status)
	assert.Len(t, drain.N(t, f.Client, f.dead, 70), 70)
}

func TestReplayAndUndo(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 30)

	r := f.plan(`{"kind":"replay","queue":"` + f.dead + `"}`)
	assert.Equal(t, 30, r.Plan.Matched)
	f.fill(30, 5) // what comes later stays
	var confirmed run
	f.json(f.confirm(r.ID), &confirmed)
	f.json(f.confirm(r.ID), &confirmed) // a second tab
	r = f.await(r.ID, "done", "failed", "stopped")
	assert.Equal(t, "done", r.State, r.Error)
	assert.Equal(t, 30, r.Done)
	assert.True(t, r.Undo)
	f.Has(f.main, 30)
	f.Has(f.dead, 5)

	var undo run
	f.json(f.send(http.MethodPost, "/api/v1/runs/"+r.ID+"/undo", "application/json", ""), &undo)
	undo = f.await(undo.ID, "ready")
	f.json(f.confirm(undo.ID), &confirmed)
	undo = f.await(undo.ID, "done", "failed", "stopped")
	assert.Equal(t, "done", undo.State, undo.Error)
	assert.Equal(t, 30, undo.Done)
	f.Has(f.dead, 35)
	f.json(f.get("/api/v1/runs/"+r.ID), &r)

	var actions []any
	for _, record := range f.auditLog.records(t) {
		assert.Equal(t, "ada", record["user"])
		actions = append(actions, record["action"])
	}
	assert.Equal(t, []any{"plan", "confirm", "end", "plan", "confirm", "end"}, actions)
	assert.NotContains(t, f.auditLog.text.String(), "guest", "a password")
}

func TestByForms(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	a := f.get("/plan?kind=purge&uuid=uuid-1&queue=" + f.dead)
	require.Equal(t, http.StatusOK, a.Status, a.Body)
	a = f.post("/plan", url.Values{"kind": {"purge"}, "queue": {f.dead}, "uuid": {"uuid-1"}})
	require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
	id := strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
	f.await(id, "ready")
	page := f.get("/run?id=" + id)
	assert.Contains(t, page.Body, "Delete 1 message</button>")
	a = f.post("/confirm", url.Values{"id": {id}})
	require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
	assert.Equal(t, "run?id="+id, a.Header.Get("Location"))
	f.await(id, "done")
	f.Has(f.dead, 2)
}

func TestRoles(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 2)
	f.role = dlqweb.RoleMetadata
	page := f.looked("/queue?queue="+f.dead, nil)
	require.Equal(t, http.StatusOK, page.Status)
	assert.NotContains(t, page.Body, "declined")
	assert.Equal(t, http.StatusForbidden, f.get("/queue?text=a&queue="+f.dead).Status)
	assert.Equal(t, http.StatusForbidden, f.get("/body?uuid=uuid-1&queue="+f.dead).Status)
	assert.Equal(t, http.StatusForbidden, f.get("/runs").Status)
}

func TestAuditThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 2)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.auditLog.refuse(true)
	assert.Equal(t, http.StatusServiceUnavailable, f.confirm(r.ID).Status)
	assert.Equal(t, "ready", f.await(r.ID, "ready").State)
	f.Has(f.dead, 2)
	f.auditLog.refuse(false)
	assert.Equal(t, http.StatusOK, f.confirm(r.ID).Status)
	f.await(r.ID, "done")
}

func TestAnotherSite(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.server.URL+"/plan",
		strings.NewReader("kind=purge"))
	require.NoError(t, err)
	request.Header.Set("Sec-Fetch-Site", "cross-site")
	assert.Equal(t, http.StatusForbidden, f.do(request).Status)
}

// Twenty people confirm one run at once: it is one run.
func TestOneRun(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 20)
	r := f.plan(`{"kind":"move","to":"` + f.main + `","queue":"` + f.dead + `"}`)
	second := f.plan(`{"kind":"move","to":"` + f.main + `","queue":"` + f.dead + `"}`)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { assert.Equal(t, http.StatusOK, f.confirm(r.ID).Status) })
	}
	all.Wait()
	f.await(r.ID, "done")
	confirmed := 0
	for _, record := range f.auditLog.records(t) {
		if record["action"] == "confirm" {
			confirmed++
			assert.InDelta(t, 20, record["messages"], 0)
			assert.Equal(t, filepath.Join(f.config.Folder, r.ID, "undo.jsonl"), record["undo_file"])
		}
	}
	assert.Equal(t, 1, confirmed)
	f.Has(f.main, 20)
	// The other one, planned before, finds nothing left.
	f.confirm(second.ID)
	assert.Zero(t, f.await(second.ID, "done").Done)
	f.Has(f.main, 20)
}

// While a run goes on, another one of the same queue is refused, and one that is stopped leaves the
// rest.
func TestStopAndGoOn(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 200)
	r := f.plan(`{"kind":"replay","rate":50,"queue":"` + f.dead + `"}`)
	second := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	assert.Equal(t, http.StatusOK, f.confirm(r.ID).Status)
	a := f.confirm(second.ID)
	assert.Equal(t, http.StatusConflict, a.Status)
	assert.Contains(t, a.Body, r.ID)
	await.Until(t, func() bool { return f.Depth(f.main) > 10 })
	assert.Equal(t, http.StatusOK, f.send(http.MethodDelete, "/api/v1/runs/"+r.ID, "application/json", "").Status)
	stopped := f.await(r.ID, "stopped")
	assert.Empty(t, stopped.Error)
	assert.Less(t, stopped.Done, 200)
	f.Has(f.main, stopped.Done)
	f.Has(f.dead, 200-stopped.Done)

	undo := f.undone(r.ID)
	assert.Equal(t, stopped.Done, undo.Done)
	f.Has(f.dead, 200)
	again := f.send(http.MethodPost, "/api/v1/runs/"+r.ID+"/undo", "application/json", "")
	assert.Equal(t, http.StatusConflict, again.Status, "it was undone")
}

// An undo leaves out what is in the queue again.
func TestUndoOfWhatHasComeBack(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 10)
	r := f.plan(`{"kind":"replay","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	for _, d := range drain.N(t, f.Client, f.main, 4) { // four of them fail again
		again := deadletter.New(f.main, 0)
		again.Headers["amqpretry-replay"], again.Headers["_watermill_message_uuid"] = d.Headers["amqpretry-replay"],
			d.Headers["_watermill_message_uuid"]
		again.Headers["amqpretry-replays"], again.Headers["amqpretry-id"] = "1", d.Headers["amqpretry-id"]
		f.Publish(f.dead, again)
	}
	f.Has(f.dead, 4)
	assert.Equal(t, 6, f.undone(r.ID).Done)
	uuids := map[any]bool{}
	for _, d := range drain.N(t, f.Client, f.dead, 10) {
		uuids[d.Headers["_watermill_message_uuid"]] = true
	}
	assert.Len(t, uuids, 10)
}

// A console that is closed while it runs tells so when it is opened again.
func TestClosedWhileItRuns(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 200)
	r := f.plan(`{"kind":"replay","rate":50,"queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	await.Until(t, func() bool { return f.Depth(f.main) > 10 })
	_, err := dlqweb.New(f.config)
	require.ErrorContains(t, err, "another console uses it")
	require.NoError(t, f.console.Close())
	assert.Equal(t, http.StatusServiceUnavailable, f.get("/").Status)
	f.server.Close()

	f.open()
	var after run
	f.json(f.get("/api/v1/runs/"+r.ID), &after)
	assert.Equal(t, "stopped", after.State)
	f.Has(f.main, after.Done)
	f.Has(f.dead, 200-after.Done)
	assert.Equal(t, after.Done, f.undone(r.ID).Done)
	f.Has(f.dead, 200)
}

// One that was killed tells what is known. What is going on in the folder is what a killed process
// leaves.
func TestKilledWhileItRan(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	f.server.Close()
	require.NoError(t, f.console.Close())
	path := filepath.Join(f.config.Folder, r.ID, "run.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	killed := strings.Replace(string(text), `"state": "done"`, `"state": "running"`, 1)
	require.NotEqual(t, string(text), killed)
	require.NoError(t, os.WriteFile(path, []byte(killed), 0o600))
	undo := filepath.Join(f.config.Folder, r.ID, "undo.jsonl")
	lines, err := os.ReadFile(undo)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(undo, append(lines, lines[:50]...), 0o600)) // the beginning of a line

	f.open()
	var after run
	f.json(f.get("/api/v1/runs/"+r.ID), &after)
	assert.Equal(t, "interrupted", after.State)
	assert.Contains(t, f.get("/run?id="+r.ID).Body, "The console stopped during this run")
	assert.Equal(t, 5, f.undone(r.ID).Done)
	f.Has(f.dead, 5)
}

// Mounted wherever it may be: all links of a page lead below the place where it is mounted.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *dlqweb.Config) { c.Prefix = "/ops/dead-letters" })
	mux := http.NewServeMux()
	mux.Handle("/ops/dead-letters/", f.console)
	mux.Handle("/ops/dead-letters", f.console)
	f.server.Config.Handler = mux
	a := f.get("/ops/dead-letters")
	require.Equal(t, http.StatusSeeOther, a.Status)
	assert.Equal(t, "./dead-letters/", a.Header.Get("Location"))
	f.followsLinks("/ops/dead-letters/")
	assert.Equal(t, http.StatusNotFound, f.get("/ops/dead-lettersx").Status)

	stripped := start(t, nil)
	stripped.server.Config.Handler = http.StripPrefix("/a/b", stripped.console)
	assert.Equal(t, "./b/", stripped.get("/a/b").Header.Get("Location"))
	stripped.followsLinks("/a/b/")

	plain := start(t, nil)
	plain.followsLinks("/")
}

var links = regexp.MustCompile(`(?:href|src)="([^"]*)"`)

// followsLinks gets a page of the console, and all that it links to.
func (f *fixture) followsLinks(root string) {
	f.t.Helper()
	f.fill(0, 1)
	base, err := url.Parse(f.server.URL + root)
	require.NoError(f.t, err)
	seen := 0
	for _, page := range []string{"", "queue?queue=" + f.dead, "message?uuid=uuid-0&queue=" + f.dead, "runs",
		"plan?kind=replay&queue=" + f.dead} {
		at, err := base.Parse(page)
		require.NoError(f.t, err)
		body := f.get(at.RequestURI())
		require.Equal(f.t, http.StatusOK, body.Status, page)
		for _, link := range links.FindAllStringSubmatch(body.Body, -1) {
			to, err := at.Parse(html.UnescapeString(link[1]))
			require.NoError(f.t, err)
			assert.True(f.t, strings.HasPrefix(to.Path, root), "%s: %s", page, link[1])
			assert.Equal(f.t, http.StatusOK, f.get(to.RequestURI()).Status, "%s: %s", page, link[1])
			seen++
		}
	}
	assert.Greater(f.t, seen, 20)
}

// Nothing that somebody may not see is in any answer, nor what was redacted, nor can it be searched
// for.
func TestWhatIsHidden(t *testing.T) {
	t.Parallel()
	paths := func(f *fixture) []string {
		return []string{
			"/", "/queue?queue=" + f.dead, "/message?uuid=uuid-1&queue=" + f.dead, "/body?uuid=uuid-1&queue=" + f.dead,
			"/api/v1/queues", "/api/v1/queues/" + f.dead, "/api/v1/queues/" + f.dead + "/dead-letters",
			"/api/v1/queues/" + f.dead + "/dead-letters/uuid-1", "/runs", "/api/v1/runs",
		}
	}
	secrets := []string{"declined", `{"n":1}`, `&#34;n&#34;`, "tenant"}
	const routingKey = "order.created"

	t.Run("by the role metadata", func(t *testing.T) {
		t.Parallel()
		f := start(t, func(c *dlqweb.Config) { c.Authorize, c.Folder, c.Audit = nil, "", nil })
		f.fill(0, 3)
		for _, path := range paths(f) {
			for _, secret := range append(secrets, routingKey) {
				assert.NotContains(t, strings.ReplaceAll(f.get(path).Body, "tenant=acme", ""), secret, path)
			}
		}
		for _, filter := range []string{"error=c", "error-matches=c", "text=c", "header=tenant%3D1",
			"json-field=n%3D1"} {
			for _, path := range []string{"/queue?queue=" + f.dead + "&", "/api/v1/queues/" + f.dead + "?"} {
				assert.Equal(t, http.StatusForbidden, f.get(path+filter).Status, path+filter)
			}
		}
	})
	t.Run("by redaction", func(t *testing.T) {
		t.Parallel()
		f := start(t, func(c *dlqweb.Config) {
			c.Redact = func(l *dlq.DeadLetter) {
				l.Error = "(redacted)"
				l.Message.Body = []byte("(redacted)")
				delete(l.Message.Headers, "tenant")
			}
		})
		f.fill(0, 3)
		for _, path := range paths(f) {
			for _, secret := range secrets {
				assert.NotContains(t, strings.ReplaceAll(f.get(path).Body, "tenant=acme", ""), secret, path)
			}
		}
		for _, filter := range []string{"error=declined", "text=card+1+declined", "header=tenant%3D1",
			"json-field=n%3D1"} {
			var found struct{ Matched int }
			f.json(f.get("/api/v1/queues/"+f.dead+"?"+filter), &found)
			assert.Zero(t, found.Matched, filter)
		}
		r := f.plan(`{"kind":"export","queue":"` + f.dead + `"}`)
		f.confirm(r.ID)
		f.await(r.ID, "done")
		file := f.get("/file?id=" + r.ID)
		assert.Equal(t, 3, strings.Count(file.Body, "\n"))
		for _, secret := range secrets {
			assert.NotContains(t, file.Body, secret)
		}
		r = f.plan(`{"kind":"replay","queue":"` + f.dead + `"}`)
		f.confirm(r.ID)
		f.await(r.ID, "done")
		for i, d := range drain.N(t, f.Client, f.main, 3) {
			assert.Equal(t, deadletter.Body(i), string(d.Body), "what is sent is the message")
		}
	})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *dlqweb.Config) { c.ReadOnly = true })
	f.fill(0, 1)
	assert.Equal(t, http.StatusOK, f.get("/message?uuid=uuid-0&queue="+f.dead).Status)
	for _, path := range []string{"/plan", "/diff", "/confirm", "/stop", "/undo", "/api/v1/runs"} {
		a := f.send(http.MethodPost, path, "application/json", "{}")
		assert.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, a.Status, path)
	}
	assert.NotContains(t, f.looked("/queue?queue="+f.dead, nil).Body, "plan?")
}

func TestEdit(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	form := url.Values{"queue": {f.dead}, "uuid": {"uuid-1"}, "body": {"{\"n\":1,\r\n\"fixed\":true}"},
		"header-name": {"", "new"}, "header-type": {"int64", "string"}, "header-value": {"1", "<b>"}}
	a := f.post("/diff", form)
	require.Equal(t, http.StatusOK, a.Status, a.Body)
	assert.Contains(t, a.Body, `- tenant (int64): 1`)
	assert.Contains(t, a.Body, `&#43; new (string): &lt;b&gt;`)
	edit := html.UnescapeString(regexp.MustCompile(`name="edit" value="([^"]*)"`).FindStringSubmatch(a.Body)[1])
	a = f.post("/plan", url.Values{"kind": {"replay"}, "queue": {f.dead}, "uuid": {"uuid-1"}, "edit": {edit}})
	require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
	id := strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
	f.await(id, "ready")
	f.confirm(id)
	f.await(id, "done")
	d := drain.N(t, f.Client, f.main, 1)[0]
	assert.Equal(t, "{\"n\":1,\n\"fixed\":true}", string(d.Body))
	assert.Equal(t, "<b>", d.Headers["new"])
	assert.NotContains(t, d.Headers, "tenant")
	f.Has(f.dead, 2)
}

func TestImportOfAFile(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 4)
	r := f.plan(`{"kind":"export","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	export := f.get("/file?id=" + r.ID)
	assert.Equal(t, "application/octet-stream", export.Header.Get("Content-Type"))
	assert.Contains(t, export.Header.Get("Content-Disposition"), "attachment")
	drain.N(t, f.Client, f.dead, 3)

	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	require.NoError(t, parts.WriteField("queue", f.dead))
	file, err := parts.CreateFormFile("file", "export.jsonl")
	require.NoError(t, err)
	_, err = file.Write([]byte(export.Body))
	require.NoError(t, err)
	require.NoError(t, parts.Close())
	a := f.send(http.MethodPost, "/plan", parts.FormDataContentType(), form.String())
	require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
	id := strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
	assert.Equal(t, 3, f.await(id, "ready").Plan.Matched, "one is there already")
	f.confirm(id)
	assert.Equal(t, 3, f.await(id, "done").Done)
	f.Has(f.dead, 4)
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	_, err := dlqweb.New(dlqweb.Config{
		Broker: dlq.Config{URI: "http://user:SECRET@host"}, Prefix: "dead", Queues: []string{""},
		Authorize: func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return "", 0, nil },
	})
	for _, text := range []string{"Config.URI", "Config.Prefix", "Config.Queues[0]", "Config.Folder", "Config.Audit"} {
		assert.ErrorContains(t, err, text)
	}
	assert.NotContains(t, err.Error(), "SECRET")
	_, err = dlqweb.New(dlqweb.Config{Broker: dlq.Config{URI: "amqp://localhost"}})
	assert.ErrorContains(t, err, "Config.Queues")
}

// Without a broker the console is there, and says so.
func TestWithoutBroker(t *testing.T) {
	t.Parallel()
	console, err := dlqweb.New(dlqweb.Config{Broker: dlq.Config{URI: "amqp://127.0.0.1:1"}, Queues: []string{"orders"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, console.Close()) }()
	for path, status := range map[string]int{"/": 200, "/queue?queue=orders.dlq": 200,
		"/message?queue=orders.dlq&uuid=1": 502, "/api/v1/queues": 502} {
		answer := httptest.NewRecorder()
		console.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		assert.Equal(t, status, answer.Code, path)
		assert.Contains(t, answer.Body.String(), "The broker cannot be reached", path)
	}
}

// Each route asks for its role.
func TestRoles_OfRoutes(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `","filter":{"uuid":["uuid-0"]}}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	export := f.plan(`{"kind":"export","queue":"` + f.dead + `"}`)
	f.confirm(export.ID)
	f.await(export.ID, "done")
	waiting := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	q := "queue=" + f.dead
	api := "/api/v1/queues/" + f.dead

	type request struct {
		method, path, kind, body string
		needs                    dlqweb.Role
	}
	form := func(path, body string, needs dlqweb.Role) request {
		return request{http.MethodPost, path, "application/x-www-form-urlencoded", body, needs}
	}
	get := func(path string, needs dlqweb.Role) request { return request{http.MethodGet, path, "", "", needs} }
	plan := func(kind string, needs dlqweb.Role) request {
		return request{http.MethodPost, "/api/v1/runs", "application/json",
			`{"kind":"` + kind + `","to":"` + map[string]string{"move": "x"}[kind] + `","queue":"` + f.dead + `"}`, needs}
	}
	for _, one := range []request{
		get("/", dlqweb.RoleMetadata), get("/queue?"+q, dlqweb.RoleMetadata),
		get("/message?uuid=uuid-1&"+q, dlqweb.RoleMetadata), get("/body?uuid=uuid-1&"+q, dlqweb.RoleView),
		get("/runs", dlqweb.RoleView), get("/run?id="+r.ID, dlqweb.RoleView),
		get("/file?id="+r.ID, dlqweb.RoleReplay), get("/file?id="+export.ID, dlqweb.RoleView),
		get("/api/v1/runs/"+r.ID+"/file", dlqweb.RoleReplay), get("/api/v1/runs/"+export.ID+"/file", dlqweb.RoleView),
		get("/plan?kind=replay&"+q, dlqweb.RoleReplay), get("/plan?kind=purge&"+q, dlqweb.RoleDelete),
		get("/plan?kind=export&"+q, dlqweb.RoleView), get("/plan?kind=move&"+q, dlqweb.RoleReplay),
		get("/api/v1/queues", dlqweb.RoleMetadata), get(api, dlqweb.RoleMetadata),
		get(api+"/dead-letters", dlqweb.RoleMetadata), get(api+"/dead-letters/uuid-1", dlqweb.RoleView),
		get("/api/v1/runs", dlqweb.RoleView), get("/api/v1/runs/"+r.ID, dlqweb.RoleView),
		get("/api/v1/openapi.json", dlqweb.RoleMetadata),
		form("/diff", "uuid=uuid-1&body=x&"+q, dlqweb.RoleReplay),
		form("/plan", "kind=replay&"+q, dlqweb.RoleReplay), form("/plan", "kind=purge&"+q, dlqweb.RoleDelete),
		form("/plan", "kind=export&"+q, dlqweb.RoleView), form("/plan", "kind=move&to=x&"+q, dlqweb.RoleReplay),
		form("/undo", "id="+r.ID, dlqweb.RoleReplay),
		plan("replay", dlqweb.RoleReplay), plan("move", dlqweb.RoleReplay), plan("purge", dlqweb.RoleDelete),
		plan("export", dlqweb.RoleView),
		{http.MethodPost, api + "/imports", "application/jsonl", "", dlqweb.RoleReplay},
		{http.MethodPost, "/api/v1/runs/" + r.ID + "/undo", "application/json", "", dlqweb.RoleReplay},
		form("/confirm", "id="+waiting.ID, dlqweb.RoleDelete), form("/stop", "id="+waiting.ID, dlqweb.RoleDelete),
		{http.MethodPost, "/api/v1/runs/" + waiting.ID + "/confirm", "application/json", "", dlqweb.RoleDelete},
		{http.MethodDelete, "/api/v1/runs/" + waiting.ID, "application/json", "", dlqweb.RoleDelete},
	} {
		for role := dlqweb.RoleMetadata; role < one.needs; role++ {
			f.role = role
			a := f.send(one.method, one.path, one.kind, one.body)
			assert.Equal(t, http.StatusForbidden, a.Status, "%s %s %s as %v", one.method, one.path, one.body, role)
		}
		f.role = one.needs
		a := f.send(one.method, one.path, one.kind, one.body)
		assert.Less(t, a.Status, 400, "%s %s %s as %v: %s", one.method, one.path, one.body, one.needs, a.Body)
	}
}

// The first page with all that it needs.
func TestFirstPageIsSmall(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 10)
	page := f.get("/").Body
	size := len(page)
	for _, link := range regexp.MustCompile(`(?:href|src)="(static/[^"]*)"`).FindAllStringSubmatch(page, -1) {
		file := f.get("/" + html.UnescapeString(link[1]))
		require.Equal(t, http.StatusOK, file.Status, link[1])
		assert.Contains(t, file.Header.Get("Cache-Control"), "immutable")
		size += len(file.Body)
	}
	assert.Less(t, size, 50<<10)
	assert.Greater(t, size, 10<<10)
}

// Without JavaScript a page that waits comes again by itself, and one with a form that somebody
// fills in does not.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	const again = `http-equiv="refresh"`
	assert.Contains(t, f.get("/").Body, again)
	queue := f.looked("/queue?queue="+f.dead, func(waiting string) { assert.Contains(t, waiting, again) })
	assert.NotContains(t, queue.Body, again)
	r := f.plan(`{"kind":"replay","rate":1,"queue":"` + f.dead + `"}`)
	assert.NotContains(t, f.get("/run?id="+r.ID).Body, again)
	f.confirm(r.ID)
	assert.Contains(t, f.get("/run?id="+r.ID).Body, again)
}

// The plan says what the target would do, and fails if it would lose messages, unless that is
// wanted.
func TestTargetThatDrops(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 20)
	full := f.main + ".full"
	f.Declare(full, amqp091.Table{"x-queue-type": "classic", "x-max-length": 5})
	const drops = "would drop 15 of 20 messages (max-length 5, overflow drop-head)"
	wanted := url.Values{"kind": {"replay"}, "queue": {f.dead}, "to": {full}}
	plan := func(state string) (id, page string) {
		a := f.post("/plan", wanted)
		require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
		id = strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
		f.await(id, state)
		return id, f.get("/run?id=" + id).Body
	}
	_, page := plan("failed")
	assert.Contains(t, page, drops)
	assert.NotContains(t, page, "20 messages to "+full+"</button>")

	wanted.Set("limit", "5")
	_, page = plan("ready")
	assert.Contains(t, page, full+" has no consumer")
	assert.NotContains(t, page, "would drop")

	wanted.Del("limit")
	wanted.Set("allow-drop", "yes")
	id, page := plan("ready")
	assert.Contains(t, page, drops)
	f.post("/confirm", url.Values{"id": {id}})
	f.await(id, "done")
	assert.Contains(t, f.get("/run?id="+id).Body, "15 messages are not in the target")
	f.Has(full, 5)
}
