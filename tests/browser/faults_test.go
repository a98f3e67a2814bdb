package browser

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/slowlink"
)

// The broker is stopped and started while pages show a queue and a run: each page says what is
// wrong, keeps its numbers, and recovers by itself. No dead letter is lost. The run that the broker
// cuts off may leave them in another order.
func TestBrokerRestarts_OwnBroker(t *testing.T) {
	t.Parallel()
	const messages = 200
	broker := brokertest.Start(t)
	w := newQueue(t, broker.URI, messages, 0)
	w.server = w.console("/dead-letters")
	dead := w.queue + ".dlq"
	queue, run, overview := newTab(t), newTab(t), newTab(t)
	queue.open(w.at("queue?queue=" + dead))
	overview.open(w.at(""))
	overview.sees("200 dead letters in 1 of 1 queue")
	queue.sees("By age")
	run.open(w.at("plan?kind=replay&rate=5/s&queue=" + dead))
	mouse{run}.press("Replay 200 messages to " + w.queue)
	run.sees("goes on without this page")
	done := func() (n int) {
		_, _ = fmt.Sscan(run.text("#live-run strong"), &n)
		return n
	}
	await.Until(t, func() bool { return done() >= 5 }, "the run goes on")

	broker.Stop()
	queue.sees("The broker cannot be reached")
	overview.sees("The broker cannot be reached")
	assert.Equal(t, "200", queue.fact("Messages"), "the numbers stay")
	assert.Contains(t, queue.text("p.read"), "Read ")
	overview.sees(" dead letters in 1 of 1 queue")
	run.sees("It has failed")
	replayed := done()
	assert.GreaterOrEqual(t, replayed, 5)

	broker.Start()
	for _, b := range []*tab{queue, overview} {
		await.Until(t, func() bool { return !strings.Contains(b.text("main"), "The broker cannot be reached") },
			"the page recovers")
	}
	run.sees("Plan the rest")
	queue.sees("Read it again")
	for _, b := range []*tab{queue, run, overview} {
		b.clean()
	}
	w.server.Close()

	sent := map[string]bool{}
	for _, d := range drain.All(t, w.Client, w.queue) {
		sent[rabbit.UUID(d)] = true
	}
	for _, d := range drain.All(t, w.Client, dead) {
		sent[rabbit.UUID(d)] = true
	}
	assert.Len(t, sent, messages, "none is lost")
}

// Over a slow link from the broker and to the browser, pages come, tell how far the queue is read,
// and then become what they are about. Nothing looks broken meanwhile.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	const messages, bodySize, bytesPerSecond = 20_000, 256, 1 << 20 // with their headers, messages have 1 kB
	direct := newQueue(t, brokertest.URI(t), messages, bodySize)
	uri, err := url.Parse(direct.URI)
	require.NoError(t, err)
	uri.Host = slowlink.To(t, uri.Host, bytesPerSecond)
	w := &world{Client: rabbit.New(t, uri.String()), t: t, queue: direct.queue}
	console := w.console("/dead-letters")
	w.server = &httptest.Server{URL: "http://" + slowlink.To(t, console.Listener.Addr().String(), bytesPerSecond)}

	dead := w.queue + ".dlq"
	queue, message, overview := newTab(t), newTab(t), newTab(t)
	tabs := []*tab{queue, message, overview}
	for _, b := range tabs {
		b.watch()
	}
	overview.open(w.at(""))
	overview.sees("20,000 dead letters in 1 of 1 queue")
	queue.open(w.at("queue?queue=" + dead))
	queue.sees("messages read")
	message.open(w.at("message?uuid=uuid-7&queue=" + dead))
	message.sees("messages read")

	await.Until(t, func() bool { return queue.fact("Messages") == "20,000" }, "the page becomes that of the queue")
	message.sees("Why it failed")
	mouse{queue}.press("uuid-3")
	queue.sees("Why it failed")
	assert.Greater(t, queue.neverWrong(messages), 3, "steps of progress")
	for _, b := range tabs {
		b.neverWrong(messages)
		b.clean()
	}
	await.Until(t, func() bool { return strings.Contains(w.page("api/v1/queues"), `"at_least":0`) }, "no message died")
}
