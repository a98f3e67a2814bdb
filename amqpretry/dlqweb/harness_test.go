package dlqweb_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// fixture is a console over a main queue with its dead-letter queue, on a broker.
type fixture struct {
	*rabbit.Client
	t        testing.TB
	main     string
	dead     string
	config   dlqweb.Config
	console  *dlqweb.Console
	server   *httptest.Server
	auditLog *auditLog
	role     dlqweb.Role
}

// start makes empty queues and a console, whose visitor may do everything unless change says
// otherwise.
func start(t testing.TB, change func(*dlqweb.Config)) *fixture {
	t.Helper()
	uri := brokertest.URI(t)
	f := &fixture{Client: rabbit.New(t, uri), t: t, main: "web-" + watermill.NewShortUUID(), auditLog: &auditLog{},
		role: dlqweb.RoleDelete}
	f.dead = f.main + ".dlq"
	_, arguments := deadletter.Queue(t, f.main)
	f.Declare(f.main, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	f.Declare(f.dead, arguments)

	f.config = dlqweb.Config{
		Broker: dlq.Config{URI: uri, NoDeliveryLimitPolicy: true}, Queues: []string{f.main},
		Folder: t.TempDir(), Audit: slog.NewJSONHandler(f.auditLog, nil),
		Authorize: func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return "ada", f.role, nil },
	}
	if change != nil {
		change(&f.config)
	}
	f.open()

	return f
}

// open starts the console; again after it was closed.
func (f *fixture) open() {
	f.t.Helper()
	console, err := dlqweb.New(f.config)
	require.NoError(f.t, err)
	server := httptest.NewServer(console)
	f.console, f.server = console, server
	f.t.Cleanup(func() {
		server.Close()
		_ = console.Close()
	})
}

// fill puts n dead letters into the dead-letter queue, beginning with the number first.
func (f *fixture) fill(first, n int) {
	f.t.Helper()
	messages := make([]amqp091.Publishing, n)
	for i := range messages {
		messages[i] = deadletter.New(f.main, first+i)
	}
	f.Publish(f.dead, messages...)
}

// answer is what the console has said.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

func (f *fixture) do(request *http.Request) answer {
	f.t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	require.NoError(f.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)

	return answer{response.StatusCode, response.Header, string(body)}
}

// get gets a page, that of a message once its queue was read: on a busy machine that takes longer
// than the page waits.
func (f *fixture) get(path string) answer {
	f.t.Helper()
	a := f.getOnce(path)
	if strings.Contains(a.Body, `id="live-reading"`) {
		await.Until(f.t, func() bool {
			a = f.getOnce(path)
			return !strings.Contains(a.Body, `id="live-reading"`)
		}, "the queue was read")
	}

	return a
}

func (f *fixture) getOnce(path string) answer {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.server.URL+path, http.NoBody)
	require.NoError(f.t, err)

	return f.do(request)
}

// looked gets the page of a queue until the console has looked at the queue: on a busy machine that
// takes longer than the page waits. The pages before go to waiting, if that is not nil.
func (f *fixture) looked(path string, waiting func(page string)) answer {
	f.t.Helper()
	var a answer
	await.Until(f.t, func() bool {
		a = f.getOnce(path)
		reads := strings.Contains(a.Body, "Reading the queue")
		if reads && waiting != nil {
			waiting(a.Body)
		}
		return !reads
	}, "the console has looked at the queue")

	return a
}

func (f *fixture) post(path string, form url.Values) answer {
	f.t.Helper()
	return f.send(http.MethodPost, path, "application/x-www-form-urlencoded", form.Encode())
}

func (f *fixture) send(method, path, kind, body string) answer {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, strings.NewReader(body))
	require.NoError(f.t, err)
	request.Header.Set("Content-Type", kind)

	return f.do(request)
}

// run is what the API tells of a run.
type run struct {
	ID, State, Error, UndoneBy string
	Total, Matched, Done       int
	Undo                       bool
	Plan                       struct{ Total, Matched int }
}

func (f *fixture) json(a answer, value any) {
	f.t.Helper()
	require.Less(f.t, a.Status, 300, a.Body)
	require.NoError(f.t, json.Unmarshal([]byte(a.Body), value), a.Body)
}

// plan plans a run, and waits until it is counted.
func (f *fixture) plan(body string) run {
	f.t.Helper()
	a := f.send(http.MethodPost, "/api/v1/runs", "application/json", body)
	require.Equal(f.t, http.StatusCreated, a.Status, a.Body)
	var r run
	f.json(a, &r)
	require.Equal(f.t, "runs/"+r.ID, a.Header.Get("Location"))

	return f.await(r.ID, "ready")
}

// await waits for a run to have a state.
func (f *fixture) await(id string, states ...string) run {
	f.t.Helper()
	var r run
	await.Until(f.t, func() bool {
		f.json(f.get("/api/v1/runs/"+id), &r)
		for _, state := range states {
			if r.State == state {
				return true
			}
		}
		return false
	}, "%s: %v", id, states)

	return r
}

func (f *fixture) confirm(id string) answer {
	f.t.Helper()
	return f.send(http.MethodPost, "/api/v1/runs/"+id+"/confirm", "application/json", "")
}

// auditLog keeps what was written, and can refuse.
type auditLog struct {
	mu      sync.Mutex
	text    bytes.Buffer
	refuses bool
}

func (l *auditLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses {
		return 0, errors.New("no space left")
	}

	return l.text.Write(p)
}

func (l *auditLog) refuse(refuses bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses = refuses
}

// records are all that were written, the values without the time.
func (l *auditLog) records(t testing.TB) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []map[string]any
	for line := range bytes.Lines(l.text.Bytes()) {
		var record map[string]any
		require.NoError(t, json.Unmarshal(line, &record))
		delete(record, "time")
		all = append(all, record)
	}

	return all
}

// undone undoes a run, to its end.
func (f *fixture) undone(id string) run {
	f.t.Helper()
	var undo run
	f.json(f.send(http.MethodPost, "/api/v1/runs/"+id+"/undo", "application/json", ""), &undo)
	f.await(undo.ID, "ready")
	require.Equal(f.t, http.StatusOK, f.confirm(undo.ID).Status)

	return f.await(undo.ID, "done")
}

func replaceOnce(t testing.TB, text, before, after string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, before), text)

	return strings.Replace(text, before, after, 1)
}
