package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

func TestMain(m *testing.M) { commandtest.Main(m) }

// world is a main queue with dead letters, and a console that is a process.
type world struct {
	*rabbit.Client
	*commandtest.Console
	t          *testing.T
	main, dead string
}

func newWorld(t *testing.T, messages int) *world {
	t.Helper()
	w := &world{Client: rabbit.New(t, brokertest.URI(t)), t: t, main: "console-" + watermill.NewShortUUID()}
	w.dead = deadletter.Fill(t, w.Client, w.main, messages, 0)
	w.Console = commandtest.NewConsole(t, w.URI, w.main)

	return w
}

// another is one more console of the same queue.
func (w *world) another() *world {
	w.t.Helper()
	other := *w
	other.Console = commandtest.NewConsole(w.t, w.URI, w.main)

	return &other
}

// page is the path of some view of the queue.
func (w *world) page(i int) string {
	pages := []string{
		"/", "/queue?queue=" + w.dead, "/queue?queue=" + w.dead + "&text=card", "/queue?page=3&queue=" + w.dead,
		"/message?uuid=uuid-%d&queue=" + w.dead, "/body?uuid=uuid-%d&queue=" + w.dead,
		"/queue?uuid=uuid-%d&queue=" + w.dead, "/api/v1/queues/" + w.dead, "/runs", "/plan?kind=purge&queue=" + w.dead,
	}

	return strings.Replace(pages[rand.IntN(len(pages))], "%d", strconv.Itoa(i%200), 1)
}

// leave asks for a page, and goes before it has come.
func (w *world) leave(path string, after time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), after)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL(path), http.NoBody)
	if !assert.NoError(w.t, err) {
		return
	}
	if response, err := http.DefaultClient.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// arrive puts one more dead letter after the other into the queue until it is stopped, and gives
// how many.
func (w *world) arrive(first int, stop <-chan struct{}) (n int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; n++ {
		select {
		case <-tick.C:
			w.Publish(w.dead, deadletter.New(w.main, first+n))
		case <-stop:
			return n
		}
	}
}

// raw is how long a consumer takes for so many messages, which are back in the queue then.
func (w *world) raw(messages int) time.Duration {
	w.t.Helper()
	const block = 1000
	connection := w.Dial()
	defer func() { _ = connection.Close() }()
	var last []*amqp091.Channel
	var tags []uint64
	began := time.Now()
	for taken := 0; taken < messages; {
		channel, err := connection.Channel()
		require.NoError(w.t, err)
		wanted := min(block, messages-taken)
		require.NoError(w.t, channel.Qos(wanted, 0, false))
		deliveries, err := channel.Consume(w.dead, "raw", false, false, false, false, nil)
		require.NoError(w.t, err)
		var d amqp091.Delivery
		for range wanted {
			d = await.Value(w.t, deliveries, "a message")
			require.NotNil(w.t, d.Acknowledger)
			taken++
		}
		last, tags = append(last, channel), append(tags, d.DeliveryTag)
		require.NoError(w.t, channel.Cancel("raw", false))
	}
	took := time.Since(began)
	for i, channel := range last {
		require.NoError(w.t, channel.Nack(tags[i], true, true))
	}
	w.Has(w.dead, messages)

	return took
}

// write writes a table of one row.
func (w *world) write(table report.Table, cells ...any) {
	w.t.Helper()
	table.Add(append([]any{w.Version()}, cells...)...)
	report.Write(w.t, table.String())
}

// run is what the API tells of a run.
type run struct {
	ID, State, Error string
	Done             int
	Plan             struct{ Matched int }
}

// ask sends a request, and reads the answer into value if that is not nil.
func (w *world) ask(method, path, body string, value any) int {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), await.Bound)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, w.URL(path), strings.NewReader(body))
	require.NoError(w.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	if value != nil {
		require.Less(w.t, response.StatusCode, 300, string(text))
		require.NoError(w.t, json.Unmarshal(text, value), string(text))
	}

	return response.StatusCode
}

// view asks for a page. On a busy machine one that needs the queue is refused, as others look at
// the queue for longer than it waits: then it is asked for again.
func (w *world) view(path string) (status int) {
	w.t.Helper()
	for end := time.Now().Add(await.Bound); ; {
		status = w.ask(http.MethodGet, path, "", nil)
		refused := status == http.StatusConflict || status == http.StatusServiceUnavailable
		if !refused || time.Now().After(end) {
			return status
		}
	}
}

// await waits until a run is not busy any more.
func (w *world) await(id string) run {
	w.t.Helper()
	var r run
	await.Within(w.t, 5*time.Minute, func() bool {
		w.ask(http.MethodGet, "/api/v1/runs/"+id, "", &r)
		return r.State != "counting" && r.State != "running" && r.State != "stopping"
	})

	return r
}

// planned plans a run, and waits until it is counted.
func (w *world) planned(body string) run {
	w.t.Helper()
	var r run
	w.ask(http.MethodPost, "/api/v1/runs", body, &r)

	return w.await(r.ID)
}

// submit sends a form as a browser does, and gives the run to whose page that leads.
func (w *world) submit(path string, form url.Values) string {
	w.t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.PostForm(w.URL(path), form)
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(w.t, http.StatusSeeOther, response.StatusCode)

	return strings.TrimPrefix(response.Header.Get("Location"), "run?id=")
}

// peak is how many MiB of memory the console has had at most.
func (w *world) peak() int {
	w.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Pid()))
	require.NoError(w.t, err)
	_, peak, ok := strings.Cut(string(status), "VmHWM:")
	require.True(w.t, ok)
	var kilobytes int
	_, err = fmt.Sscan(peak, &kilobytes)
	require.NoError(w.t, err)

	return kilobytes >> 10
}

func (w *world) confirm(id string) {
	w.t.Helper()
	var r run
	w.ask(http.MethodPost, "/api/v1/runs/"+id+"/confirm", "", &r)
}

// undo undoes a run, to its end.
func (w *world) undo(id string) run {
	w.t.Helper()
	var r run
	w.ask(http.MethodPost, "/api/v1/runs/"+id+"/undo", "", &r)
	w.await(r.ID)
	w.confirm(r.ID)
	r = w.await(r.ID)
	assert.Equal(w.t, "done", r.State, r.Error)

	return r
}

// uuids are how often each message is in a queue, which is empty then.
func (w *world) uuids(queue string) map[string]int {
	w.t.Helper()
	found := map[string]int{}
	for _, d := range drain.All(w.t, w.Client, queue) {
		found[rabbit.UUID(d)]++
	}

	return found
}
