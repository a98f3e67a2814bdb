package health_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/health"
	judge "github.com/amqpretry/watermill-retry/internal/health"
	"github.com/amqpretry/watermill-retry/retry"
)

type source retry.Health

func (s source) Health() retry.Health { return retry.Health(s) }

func ask(h http.Handler, method, path string) (int, string, http.Header) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(method, path, nil))

	return answer.Code, answer.Body.String(), answer.Header()
}

var (
	well    = source{Ready: true}
	warned  = source{Ready: true, Problems: []retry.Problem{{Kind: retry.ProblemAlarm, Text: "blocked"}}}
	unready = source{Problems: []retry.Problem{
		{
			Kind: retry.ProblemConsumer, NotReady: true, Since: time.Now().Add(-time.Minute),
			Text: "no consumer:\ndial amqps://user:s3cret/@host:5671/: refused", Err: errors.New("refused"),
		},
		{Kind: retry.ProblemAlarm, Text: "blocked"},
	}}
	stuck = source{Problems: []retry.Problem{{Kind: retry.ProblemProgress, NotReady: true, Text: "stuck"}}}
)

func TestHandler(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source source
		path   string
		status int
		first  string // line of the answer
	}{
		"ready":               {well, "/readyz", 200, "ok"},
		"ready, verbose":      {well, "/readyz?verbose", 200, "[+]progress ok"},
		"warned":              {warned, "/readyz", 200, "ok"},
		"not ready":           {unready, "/readyz", 503, "[+]progress ok"},
		"alive":               {well, "/livez", 200, "ok"},
		"alive, verbose":      {well, "/livez?verbose", 200, "[+]progress ok"},
		"alive and not ready": {unready, "/livez", 200, "ok"},
		"stuck":               {stuck, "/livez", 503, "[-]progress failed: stuck"},
		"stuck is not ready":  {stuck, "/readyz", 503, "[-]progress failed: stuck"},
		"under a prefix":      {well, "/internal/probes/readyz", 200, "ok"},
		"elsewhere":           {well, "/", 404, "404 page not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := health.Handler(test.source)
			status, body, header := ask(h, http.MethodGet, test.path)
			assert.Equal(t, test.status, status)
			first, _, _ := strings.Cut(body, "\n")
			assert.Equal(t, test.first, first)
			if status != http.StatusNotFound {
				assert.Equal(t, "no-store", header.Get("Cache-Control"))
			}
			head, _, _ := ask(h, http.MethodHead, test.path)
			assert.Equal(t, status, head)
		})
	}

	status, _, header := ask(health.Handler(well), http.MethodPost, "/readyz")
	assert.Equal(t, http.StatusMethodNotAllowed, status)
	assert.Equal(t, "GET, HEAD", header.Get("Allow"))
	server := httptest.NewServer(http.StripPrefix("/probes", health.Handler(well)))
	defer server.Close()
	response, err := http.Head(server.URL + "/probes/livez")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusOK, response.StatusCode)
}

// Each check has a line, each problem one of its own, and none has a password.
func TestHandler_Lines(t *testing.T) {
	t.Parallel()
	_, body, _ := ask(health.Handler(unready), http.MethodGet, "/readyz")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	require.Len(t, lines, 11)
	assert.Regexp(t, `^\[-\]consumer failed: no consumer: dial amqps://host:5671/: refused \(since `+
		`2\S+Z, for 1m0s\)$`, lines[2])
	assert.Equal(t, []string{"[+]connection ok", "[+]credentials ok", "[!]alarm warning: blocked"}, lines[3:6])
	assert.Equal(t, "readyz check failed", lines[10])

	many := source{Ready: true}
	for i := range 1000 {
		many.Problems = append(many.Problems, retry.Problem{Kind: retry.ProblemCopies, Text: fmt.Sprint("queue ", i)})
	}
	_, body, _ = ask(health.Handler(many), http.MethodGet, "/readyz?verbose")
	assert.Equal(t, 50, strings.Count(body, "[!]copies warning: "))
	assert.Contains(t, body, "[!]copies has further problems: see the log\n")
}

// A router is ready when all of its handlers are subscribed.
func TestHandler_Router(t *testing.T) {
	t.Parallel()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	h := health.Handler(well, router)
	status, body, _ := ask(h, http.MethodGet, "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, "[-]router failed: ")
	status, _, _ = ask(h, http.MethodGet, "/livez")
	assert.Equal(t, http.StatusOK, status)

	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	status, body, _ = ask(h, http.MethodGet, "/readyz?verbose")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, "[+]router ok\n")
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
}

// The page shows what the handler writes, and says of each line what to do.
func TestPage(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../docs/how-to/probes.md")
	require.NoError(t, err)
	_, sample, _ := strings.Cut(string(file), "```text\n")
	sample, _, _ = strings.Cut(sample, "```")

	since := time.Now().Add(-25 * time.Second)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	go func() { _ = router.Run(t.Context()) }()
	<-router.Running()
	defer func() { require.NoError(t, router.Close()) }()
	lost := source{Problems: []retry.Problem{
		judge.Judge(time.Now(), []judge.Subscription{{Queue: "orders", Stopped: since}}, nil).Problems[0],
		{Kind: retry.ProblemConnection, Since: since, Text: `connection "subscriber" is lost: cannot connect to ` +
			`RabbitMQ: dial tcp 10.0.0.7:5672: connect: connection refused; it comes back by itself when the ` +
			`broker answers`},
	}}
	_, body, _ := ask(health.Handler(lost, router), http.MethodGet, "/readyz?verbose")
	assert.Equal(t, sample, strings.ReplaceAll(body, since.UTC().Format(time.RFC3339), "2026-03-02T09:15:04Z"))
	for line := range strings.Lines(body) {
		if name, _, isCheck := strings.Cut(line[strings.Index(line, "]")+1:], " "); isCheck && name != "readyz" {
			assert.Contains(t, string(file), "\n| `"+name+"` | ")
		}
	}
}
