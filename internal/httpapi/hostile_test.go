package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// What is no broker, or a hostile one, costs no more than the bounds of the client.

const kind = "application/json"

// page is a page of a list without an end.
func page(items string) string {
	return `{"page_count": 1000000000, "items": [` + strings.TrimSuffix(items, ",") + `]}`
}

// peak is how much memory do takes, garbage included.
func peak(do func()) uint64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() uint64 { metrics.Read(sample); return sample[0].Value.Uint64() }
	before, most := heap(), uint64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		for {
			most = max(most, heap())
			select {
			case <-ticks.C:
			case <-done:
				return
			}
		}
	}()
	do()
	close(done)
	<-ended

	return most - min(most, before)
}

// Not parallel: other tests would count.
func TestListsAreBounded(t *testing.T) {
	items := func(n int, item func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(item(i) + ",")
		}
		return b.String()
	}
	values := strings.TrimSuffix(items(100_000, func(i int) string { return fmt.Sprintf(`"%d":1`, i) }), ",")
	for name, test := range map[string]struct{ body, limit string }{
		"pages without an end": {page(items(500, func(i int) string {
			return fmt.Sprintf(`{"name":"queue-%d","vhost":"/","messages":1,"messages_ready":1,"arguments":{"a":1}}`, i)
		})), "limit of 200000 objects"},
		"100 KB of arguments": {page(items(500, func(int) string {
			return `{"name":"q","vhost":"/","arguments":{"a":"` + strings.Repeat("x", 100_000) + `"}}`
		})), "limit of 64 MiB"},
		"many arguments": {page(items(2, func(int) string {
			return `{"name":"q","vhost":"/","arguments":{` + values + `}}`
		})), "limit of 2400000 values"},
		"small queues":   {page(strings.Repeat(`{"vhost":"/"},`, 500)), "limit of 200000 objects"},
		"a huge queue":   {page(`{"vhost":"/","name":"` + strings.Repeat("x", 2<<20) + `"}`), "limit of 1 MiB for one"},
		"a page too big": {page(strings.Repeat(`{"vhost":"/"},`, 501)), "a page of 501 queues"},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			client := at(t, answer(http.StatusOK, kind, test.body)).WithTimeout(await.Bound)
			most := peak(func() { _, err = client.Counts(t.Context()) })
			require.ErrorContains(t, err, test.limit)
			assert.ErrorContains(t, err, "check the address")
			t.Logf("at most %d MiB", most>>20)
			assert.Less(t, most, uint64(400<<20))
		})
	}
}

func packed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, errors.Join(err, w.Close()))

	return b.Bytes()
}

// As gzip, which the client unpacks, gigabytes come in a few kilobytes.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	endless := func(begin, chunk string) *httpapi.Client {
		return at(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Encoding", "gzip")
			_, err := w.Write(packed(t, begin))
			for more := packed(t, strings.Repeat(chunk, 1<<16)); err == nil; { // packed once: that takes longest
				_, err = w.Write(more)
			}
		}).WithTimeout(await.Bound)
	}
	for _, test := range []struct{ begin, chunk, limit string }{
		{"", " ", "1 MiB"}, {"", "[", "not JSON"}, {"[", `{"name":"x"},`, "200000 objects"}, {"[", `[1,1,1,1],`, "array"},
		{`[{"name":"`, "x", "1 MiB"}, {"[] ", " ", "1 MiB"}, {"[]", "[]", "more than one answer"},
	} {
		_, err := endless(test.begin, test.chunk).Nodes(t.Context())
		assert.ErrorContains(t, err, test.limit, "%s%s…", test.begin, test.chunk)
	}
	_, err := endless(`{"name":"`, "x").Queue(t.Context(), "q")
	require.ErrorContains(t, err, "limit of 64 MiB")

	long := strings.Repeat("ü", 1<<20)
	for _, handler := range []http.HandlerFunc{
		answer(http.StatusInternalServerError, kind, long), answer(http.StatusUnauthorized, "text/html", long),
		answer(http.StatusInternalServerError, kind, `{"reason": "`+long+`"}`), answer(http.StatusOK, long[:1<<16], ""),
	} {
		_, err := at(t, handler).Queues(t.Context())
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 5<<10)
		assert.True(t, utf8.ValidString(err.Error()))
	}
}

// transport answers without a network, for a clock of the test's own.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// drip is a body that gives two bytes a second.
type drip struct {
	ctx  context.Context
	text string
}

func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	if d.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(2, len(p))], d.text)
	d.text = d.text[n:]

	return n, nil
}

func (*drip) Close() error { return nil }

func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	slow := func(body string) *httpapi.Client {
		client, err := httpapi.New("http://user:secret@host", "/", &http.Client{Transport: transport(
			func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {kind}},
					Body: &drip{r.Context(), body}}, nil
			})})
		require.NoError(t, err)
		return client
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := slow(strings.Repeat(" ", 100)).Queues(t.Context())
		assert.ErrorContains(t, err, "200, but the answer did not end in time")
		assert.Equal(t, 30*time.Second, time.Since(began))
	})
	synctest.Test(t, func(t *testing.T) { // of many pages, each in 22 s
		began := time.Now()
		_, err := slow(`{"page_count":9,"items":[{"vhost":"/"}]}`).Queues(t.Context())
		assert.ErrorContains(t, err, "limit of 2m0s")
		assert.Equal(t, 2*time.Minute, time.Since(began))
	})
}

// An answer that the API does not give is an error, and never a list without queues.
func TestOddListsAreErrors(t *testing.T) {
	t.Parallel()
	for body, text := range map[string]string{
		"null":                     "null instead of a page",
		"[]":                       "a list instead of a page",
		`"[]"`:                     "string instead of a page",
		"{}":                       "no items",
		`{"page_count": 1}`:        "no items",
		`{"items": []}`:            "does not tell how many",
		`{"items": null}`:          "null instead of a list",
		`{"items": {}}`:            "an object instead of a list",
		`{"items": [null]}`:        "null in it",
		`{"items": [[]]}`:          "array",
		`{"items": [{"name": 5}]}`: `number for "name"`,
		`{"page_count": 1, "items": [{"name": "q", "vhost": "/", "messages": "5"}]}`: `string for "messages"`,
		`{"page_count": 1, "items": [{"name": "q", "vhost": "/", "messages": 0.5}]}`: `number 0.5 for "messages"`,
		`{"page_count": 1, "items": [{"name": "q", "vho`:                             "breaks off",
		`{"page_count": 1, "items": [`:                                               "breaks off",
		`{"page_count": 1, "items": []`:                                              "breaks off",
		"":                                                                           "breaks off",
		`{"page_count": 1, "items": []} <html>`:                                      "not JSON",
		`{"page_count": 1, "items": []} []`:                                          "more than one answer",
		`{"page_count": 9, "items": []}`:                                             "an empty page 1 of 9",
		`{"page_count": 9, "page": 7, "items": []}`:                                  "page 7 instead of page 1",
		"<html>": "not JSON",
	} {
		queues, err := at(t, answer(http.StatusOK, kind, body)).Queues(t.Context())
		assert.ErrorContains(t, err, text, body)
		assert.ErrorContains(t, err, "check the address", body)
		assert.Empty(t, queues, body)
	}

	for body, text := range map[string]string{
		"null": "null instead of a list", "{}": "an object instead of a list", "[null]": "null in it",
		"5": "float64 instead of a list", "[{}": "breaks off", "[": "breaks off",
	} {
		client := at(t, answer(http.StatusOK, kind, body))
		for name, ask := range map[string]func() error{
			"exchanges": func() error { _, err := client.Exchanges(t.Context()); return err },
			"routes":    func() error { _, err := client.RoutesFrom(t.Context(), "x"); return err },
			"routes to": func() error { _, err := client.RoutesTo(t.Context(), "x"); return err },
			"bindings":  func() error { _, err := client.Bindings(t.Context(), "q"); return err },
			"policies":  func() error { _, err := client.Policies(t.Context()); return err },
			"limits":    func() error { _, err := client.Limits(t.Context()); return err },
			"nodes":     func() error { _, err := client.Nodes(t.Context()); return err },
			"flags":     func() error { _, err := client.FeatureFlags(t.Context()); return err },
		} {
			assert.ErrorContains(t, ask(), text, "%s: %s", name, body)
		}
	}
	_, err := at(t, answer(http.StatusOK, kind, "null")).StatisticsDisabled(t.Context())
	require.ErrorContains(t, err, "null instead of an object")
	_, err = at(t, answer(http.StatusOK, kind, "[]")).Permissions(t.Context(), "user")
	require.ErrorContains(t, err, "array")
}

// A body that is shorter than it said.
func TestACutConnection(t *testing.T) {
	t.Parallel()
	_, err := at(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `[{}`)
	}).Nodes(t.Context())
	require.ErrorContains(t, err, "breaks off")
}

// RabbitMQ answers a request without a user by 401 and an empty body.
func TestWithoutCredentials(t *testing.T) {
	t.Parallel()
	for _, handler := range []http.HandlerFunc{
		answer(http.StatusUnauthorized, "", ""), answer(http.StatusUnauthorized, "text/html", "<html>"),
		answer(http.StatusUnauthorized, kind, `{"error":"not_authorised","reason":"Login failed"}`),
	} {
		_, err := at(t, handler).Queues(t.Context())
		require.ErrorContains(t, err, `user "user" needs the right password`)
		assert.NotContains(t, err.Error(), "proxy")
		client, err := httpapi.New(serve(t, handler), "/", nil)
		require.NoError(t, err)
		_, err = client.Queues(t.Context())
		require.ErrorContains(t, err, "401: the address has no user; write it as http://user:password@host:15672")
		assert.NotContains(t, err.Error(), "proxy")
		var failed *httpapi.Error
		assert.True(t, errors.As(err, &failed) && failed.Status == http.StatusUnauthorized)
	}
}
