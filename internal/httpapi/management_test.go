package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// What RabbitMQ itself answers is tested against a real one, in tests/obsolete_test.go. Here are
// others that may sit at the address, and what is decided without an answer.

// at makes a client of a server that stands for a proxy.
func at(t *testing.T, handler http.HandlerFunc) *httpapi.Client {
	t.Helper()
	client, err := httpapi.New(strings.Replace(serve(t, handler), "//", "//user:secret@", 1), "/", nil)
	require.NoError(t, err)
	return client
}

// serve serves until the test ends, at the address that it gives.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func answer(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestOtherAnswersAreErrors(t *testing.T) {
	const html, page = "text/html", "<html>welcome</html>"
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		text    string
	}{
		"a page":           {answer(200, html, page), "text/html instead of"},
		"a page as JSON":   {answer(200, "application/json", page), "not JSON"},
		"a list":           {answer(200, "application/json", "[]"), "JSON of another kind"},
		"nothing":          {answer(200, "", ""), "check the address"},
		"not there":        {answer(404, html, page), "check the address"},
		"not there, empty": {answer(404, "", ""), "check the address"},
		"bad gateway":      {answer(502, html, page), "502"},
		"another queue":    {answer(200, "application/json", `{"name": "p", "vhost": "/"}`), `"p"`},
		"another vhost":    {answer(200, "application/json", `{"name": "q", "vhost": "v"}`), `"v"`},
		"accepted":         {answer(202, "application/json", `{"name": "q", "vhost": "/"}`), "202"},
		"the API's own":    {answer(500, "application/json", `{"error": "x", "reason": "broken"}`), `500, "broken"`},
		"another's":        {answer(500, "application/json", `{"message": "broken"}`), "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			client := at(t, test.handler)
			_, err := client.Queue(t.Context(), "q")
			var failed *httpapi.Error
			require.ErrorAs(t, err, &failed)
			assert.ErrorContains(t, err, test.text)
			assert.False(t, httpapi.NotFound(err), "nobody may take it for a queue that is gone")
			assert.NotContains(t, err.Error(), "secret")
			assert.Error(t, client.DeleteQueue(t.Context(), "q", false), "nor for a deletion")
		})
	}
}

// A client that follows a redirect turns a DELETE into a GET, which succeeds.
func TestRedirectsAreNotFollowed(t *testing.T) {
	client := at(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/moved") {
			answer(200, "application/json", `{"name": "q", "vhost": "/"}`)(w, r)
			return
		}
		http.Redirect(w, r, "/moved"+r.URL.EscapedPath(), http.StatusMovedPermanently)
	})
	require.ErrorContains(t, client.DeleteQueue(t.Context(), "q", false), "/moved")
	_, err := client.Queue(t.Context(), "q")
	require.ErrorContains(t, err, "/moved")
}

func TestPathsAreEscaped(t *testing.T) {
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.RequestURI
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	client, err := httpapi.New(server.URL+"/prefix/", "/", nil)
	require.NoError(t, err)
	require.NoError(t, client.DeleteQueue(t.Context(), "a/b%2F c?d#é😀", true))
	assert.Equal(t, "/prefix/api/queues/%2F/a%2Fb%252F%20c%3Fd%23%C3%A9%F0%9F%98%80?if-empty=true&if-unused=true", path)

	for _, name := range []string{".", ".."} {
		path = ""
		require.ErrorContains(t, client.DeleteQueue(t.Context(), name, false), "a step in the path")
		assert.Empty(t, path)
	}
}

func TestCredentialsGoInTheHeaderOnly(t *testing.T) {
	client := at(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		answer(401, "application/json", fmt.Sprintf(`{"reason": "%s %d %s"}`, user, len(password), r.URL))(w, r)
	})
	_, err := client.Queues(t.Context())
	require.ErrorContains(t, err, "user 6 /api/queues")
	assert.NotContains(t, err.Error(), "secret")
}

func TestAddresses(t *testing.T) {
	for address, problem := range map[string]string{
		"http://u:secret@host:15672":         "",
		"https://host/rabbit":                "",
		"amqp://u:secret@host:5672/":         "scheme",
		"host:15672":                         "scheme",
		"http://":                            "no host",
		"http://u:secret@host:15672/#/":      "fragment",
		"http://u:secret@host?a=b":           "query",
		"http://u:sec%ret@host:15672":        "not a URL",
		"http://u:sec/ret-secret@host:15672": "not a URL",
		"http://u:12/secret@host:15672":      "an @ in its path",
		"http://u:12?secret@host:15672":      "query",
		"http://u:12#secret@host:15672":      "fragment",
		"u:secret@host:15672":                "scheme",
		"http:///u:secret@host:15672":        "no host",
	} {
		_, err := httpapi.New(address, "/", nil)
		if problem == "" {
			require.NoError(t, err, address)
			continue
		}
		require.ErrorContains(t, err, problem, address)
		assert.NotContains(t, err.Error(), "secret", address)
		assert.NotContains(t, err.Error(), "sec%ret", address)
	}
}

func TestContextEndsARequest(t *testing.T) {
	begun := make(chan struct{})
	client := at(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	_, err := client.Queue(ctx, "q")
	require.ErrorIs(t, err, context.Canceled)

	ctx, cancel = context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, err = client.Queue(ctx, "q")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "no answer in time")
}

// pages answers like the API for so many queues, of which the first ones may be deleted after the
// first page.
func pages(total, deleted int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var page, size int
		_, _ = fmt.Sscan(r.URL.Query().Get("page"), &page)
		_, _ = fmt.Sscan(r.URL.Query().Get("page_size"), &size)
		left := total
		if page > 1 {
			left -= deleted
		}
		if page > 1 && (page-1)*size >= left {
			answer(400, "application/json", `{"error": "page_out_of_range", "reason": "Page out of range"}`)(w, r)
			return
		}
		items := []httpapi.Queue{}
		for i := (page - 1) * size; i < min(page*size, left); i++ {
			items = append(items, httpapi.Queue{Name: fmt.Sprint(i), VHost: "/"})
		}
		body, _ := json.Marshal(map[string]any{"items": items, "page_count": (left + size - 1) / size})
		answer(200, "application/json", string(body))(w, r)
	}
}

func TestQueuesArePaged(t *testing.T) {
	for _, test := range []struct{ total, deleted, want int }{{0, 0, 0}, {1, 0, 1}, {500, 0, 500}, {501, 0, 501},
		{1234, 0, 1234}, {501, 1, 500}} {
		queues, err := at(t, pages(test.total, test.deleted)).Queues(t.Context())
		require.NoError(t, err)
		assert.Len(t, queues, test.want)
	}
}

func TestMissingNumbersAreNil(t *testing.T) {
	var q httpapi.Queue
	require.NoError(t, json.Unmarshal([]byte(`{"name": "q", "messages": 0, "messages_ready": null, "arguments": []}`),
		&q))
	require.NotNil(t, q.Messages)
	assert.Zero(t, *q.Messages)
	for _, n := range []*int64{q.Ready, q.Unacked, q.Undeliverable, q.Consumers, q.Reductions} {
		assert.Nil(t, n)
	}
	assert.Empty(t, q.Arguments)
}

func TestArgumentsKeepTheirTypes(t *testing.T) {
	var a httpapi.Arguments
	require.NoError(t, json.Unmarshal(
		[]byte(`{"n": 315360000000, "f": 1.5, "s": "5", "b": true, "z": null, "l": [1], "t": {"k": "v"}}`), &a))
	assert.Equal(t, httpapi.Arguments{"n": int64(315360000000), "f": 1.5, "s": "5", "b": true, "z": nil,
		"l": []any{1.0}, "t": map[string]any{"k": "v"}}, a)

	rapid.Check(t, func(t *rapid.T) {
		want := httpapi.Arguments{}
		for key, n := range rapid.MapOf(rapid.String(), rapid.Int64()).Draw(t, "arguments") {
			want[key] = n
		}
		encoded, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got httpapi.Arguments
		if err := json.Unmarshal(encoded, &got); err != nil || !assert.ObjectsAreEqual(want, got) {
			t.Fatalf("%v %v", got, err)
		}
	})
}
