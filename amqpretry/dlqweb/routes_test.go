package dlqweb

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// unreachable is a console whose broker does not answer.
func unreachable(t *testing.T, change func(*Config)) *Console {
	t.Helper()
	config := Config{Broker: dlq.Config{URI: "amqp://127.0.0.1:1"}, Queues: []string{"orders"}, Folder: t.TempDir(),
		Audit:     slog.DiscardHandler,
		Authorize: func(*http.Request) (User, Role, error) { return "ada", RoleDelete, nil }}
	if change != nil {
		change(&config)
	}
	console, err := New(config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = console.Close() })

	return console
}

func (c *Console) ask(t *testing.T, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	c.ServeHTTP(w, r)

	return w
}

// No answer leads to an absolute path: a reverse proxy may have cut off what is before it.
func TestNoAbsoluteRedirect(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "/ops/dead-letters"} {
		c := unreachable(t, func(c *Config) { c.Prefix = prefix })
		for _, path := range []string{
			"/static", "/static/", "/static/index.html", "/static/.", "/static/..", "/static/console.css/",
			"/static/console.css/index.html", "/static/%2e%2e/console.css", "/static/..%2fstatic",
			"/static//console.css", "/queue/", "/queue/index.html", "/queue/..", "/queue/%2e%2e/", "/a/./b",
			"//a", "/a//b", "/a%2f%2fb", "/%2e/queue", "/index.html", "/api", "/api/", "/api/v1", "/api/v1/",
			"/api/v1/queues/", "/api/v1/runs/", "/api/v1/queues//x", "/api/v1/queues/%2e%2e/runs",
			"/api/v1/queues/..", "", "/%", "/\\evil.example", "/%5cevil.example",
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut} {
				r := httptest.NewRequestWithContext(t.Context(), method, "/", http.NoBody)
				var err error
				if r.URL, err = url.ParseRequestURI("http://x" + prefix + path); err != nil {
					continue // no server hands it on
				}
				w := httptest.NewRecorder()
				c.ServeHTTP(w, r)
				location := w.Header().Get("Location")
				assert.False(t, strings.HasPrefix(location, "/") || strings.Contains(location, ":") ||
					strings.HasPrefix(location, `\`), "%s %s: %d %s", method, path, w.Code, location)
				if path != "" {
					assert.GreaterOrEqual(t, w.Code, 400, "%s %s: %s", method, path, location)
				}
			}
		}
	}
}

func TestStatic(t *testing.T) {
	t.Parallel()
	c := unreachable(t, nil)
	for file, kind := range map[string]string{"console.css": "text/css", "console.js": "text/javascript",
		"icon.svg": "image/svg+xml"} {
		w := c.ask(t, http.MethodGet, "/static/"+file, "")
		assert.Equal(t, http.StatusOK, w.Code, file)
		assert.Contains(t, w.Header().Get("Content-Type"), kind)
		assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		w = c.ask(t, http.MethodGet, "/static/"+file+"?v="+version, "")
		assert.Contains(t, w.Header().Get("Cache-Control"), "immutable")
	}
}

// A method that a path does not take is 405, and says which it takes.
func TestMethods(t *testing.T) {
	t.Parallel()
	c := unreachable(t, nil)
	for request, allow := range map[string]string{
		"PUT /api/v1/runs": "GET, HEAD, POST", "PATCH /api/v1/runs/1": "GET, HEAD, DELETE",
		"GET /api/v1/runs/1/confirm": "POST", "DELETE /api/v1/queues/a": "GET, HEAD", "POST /": "GET, HEAD",
		"GET /confirm": "POST", "PUT /plan": "GET, HEAD, POST", "OPTIONS /api/v1/queues/a/imports": "POST",
		"DELETE /static/console.css": "GET, HEAD",
	} {
		method, path, _ := strings.Cut(request, " ")
		w := c.ask(t, method, path, "")
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, request)
		assert.Equal(t, allow, w.Header().Get("Allow"), request)
		if strings.HasPrefix(path, "/api/") {
			assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), request)
		}
	}
	assert.Equal(t, http.StatusNotFound, c.ask(t, http.MethodPut, "/api/v1/nothing", "").Code)
	shows := unreachable(t, func(c *Config) { c.ReadOnly = true })
	assert.Equal(t, http.StatusNotFound, shows.ask(t, http.MethodPost, "/api/v1/runs", "").Code)
}

// A queue from which messages come back is refused when a run is planned.
func TestTargetThatReturns(t *testing.T) {
	t.Parallel()
	c := unreachable(t, nil)
	for to, want := range map[string]int{"orders.retry.30s": 400, "retry.1h": 400, "orders.landing": 400, "orders": 201,
		"parked": 201} {
		w := c.ask(t, http.MethodPost, "/api/v1/runs", `{"kind":"move","queue":"orders.dlq","to":"`+to+`"}`)
		assert.Equal(t, want, w.Code, to)
		if want == http.StatusBadRequest {
			assert.Contains(t, w.Body.String(), "another queue than a retry queue")
		}
	}
}

// Runs come page by page.
func TestPagesOfRuns(t *testing.T) {
	t.Parallel()
	c := unreachable(t, nil)
	const runs = mostPendingOfUser / 2
	for range runs {
		require.Equal(t, http.StatusCreated, c.ask(t, http.MethodPost, "/api/v1/runs",
			`{"kind":"purge","queue":"orders.dlq"}`).Code)
	}
	all := c.runs.list()
	require.Len(t, all, runs)
	var found []string
	for after, pages := "", 1; ; pages++ {
		var page struct {
			Runs []struct{ ID string }
			Next string
		}
		w := c.ask(t, http.MethodGet, "/api/v1/runs?limit=2&after="+after, "")
		if after == "" {
			w = c.ask(t, http.MethodGet, "/api/v1/runs?limit=2", "")
		}
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
		for _, run := range page.Runs {
			found = append(found, run.ID)
		}
		if after = page.Next; after == "" {
			assert.Equal(t, 3, pages)
			break
		}
	}
	for i, run := range all {
		assert.Equal(t, run.ID, found[i])
	}
	assert.Len(t, found, runs)
	assert.NotContains(t, c.ask(t, http.MethodGet, "/api/v1/runs", "").Body.String(), `"next"`)
	for _, query := range []string{"limit=0", "limit=501", "limit=x", "after=none", "page=2"} {
		assert.Equal(t, http.StatusBadRequest, c.ask(t, http.MethodGet, "/api/v1/runs?"+query, "").Code, query)
	}
}

// Numbers of before an outage are no answer of the API.
func TestQueuesInAnOutage(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"items":[],"page":1,"page_count":1,"total_count":0,"filtered_count":0,"item_count":0}`))
	}))
	defer api.Close()
	c := unreachable(t, func(c *Config) { c.Broker.Management.URL = api.URL })
	c.sampler.sample(t.Context())
	assert.Equal(t, http.StatusOK, c.ask(t, http.MethodGet, "/api/v1/queues", "").Code)
	down.Store(true)
	c.sampler.sample(t.Context())
	w := c.ask(t, http.MethodGet, "/api/v1/queues", "")
	assert.Equal(t, http.StatusBadGateway, w.Code)
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	assert.NotContains(t, w.Body.String(), "127.0.0.1")
	down.Store(false)
	c.sampler.sample(t.Context())
	assert.Equal(t, http.StatusOK, c.ask(t, http.MethodGet, "/api/v1/queues", "").Code)
}

// What is refused for a while says for how long.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	c := unreachable(t, func(c *Config) {
		c.Authorize = func(*http.Request) (User, Role, error) { return "", 0, fmt.Errorf("x: %w", later(90)) }
	})
	for _, path := range []string{"/", "/api/v1/queues"} {
		w := c.ask(t, http.MethodGet, path, "")
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.Equal(t, "90", w.Header().Get("Retry-After"), path)
	}
	require.NoError(t, c.Close())
	w := c.ask(t, http.MethodGet, "/api/v1/queues", "")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "5", w.Header().Get("Retry-After"))
}

// later is an error of a service that bounds how often somebody may try to sign in.
type later int

func (l later) Error() string             { return "too many failures" }
func (l later) RetryAfter() time.Duration { return time.Duration(l)*time.Second - time.Millisecond }
