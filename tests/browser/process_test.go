package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestMain(m *testing.M) { commandtest.Main(m) }

// newQueue is a main queue that nothing consumes, and its dead-letter queue with so many messages
// with bodies of that size. It has no console.
func newQueue(t *testing.T, uri string, messages, bodySize int) *world {
	t.Helper()
	w := &world{Client: rabbit.New(t, uri), t: t, queue: "orders-" + strings.ToLower(watermill.NewShortUUID())}
	deadletter.Fill(t, w.Client, w.queue, messages, bodySize)

	return w
}

// A console that is killed while a page shows a run: the page says so, and recovers when the
// console is back, which tells that the run was interrupted.
func TestConsoleIsKilled(t *testing.T) {
	t.Parallel()
	const messages, soon = 200, 20 * time.Second
	w := newQueue(t, brokertest.URI(t), messages, 0)
	console := commandtest.NewConsole(t, w.URI, w.queue)
	b := newTab(t)
	b.open(console.URL("/plan?kind=replay&rate=5/s&queue=" + w.queue + ".dlq"))
	mouse{b}.press("Count them")
	mouse{b}.press("Replay 200 messages to " + w.queue)
	b.sees("goes on without this page")
	await.Until(t, func() bool { return b.text("#live-run strong") > "4" }, "the run goes on")
	before := b.text("#live-run strong")

	console.Kill()
	killed := time.Now()
	b.sees("No answer from the console for ")
	assert.Less(t, time.Since(killed), soon)
	b.sees("The numbers below are from ")
	assert.GreaterOrEqual(t, b.text("#live-run strong"), before, "the numbers stay")
	assert.True(t, b.is(`document.body.classList.contains("is-stale")`))

	console.Start()
	started := time.Now()
	b.sees("The console stopped during this run.")
	assert.Less(t, time.Since(started), soon)
	assert.Equal(t, "interrupted", b.text(".state"))
	assert.True(t, b.is(`document.getElementById("stale").hidden`))
	mouse{b}.press("Plan the rest")
	b.sees("Replay dead letters")
	b.clean()
}

// Two consoles read one long queue, each for a visitor. One waits for the other. Neither page has
// an error or fewer messages than the queue, and both end with the same numbers.
func TestTwoConsoles(t *testing.T) {
	t.Parallel()
	const messages = 20_000
	w := newQueue(t, brokertest.URI(t), messages, 0)
	var tabs []*tab
	for range 2 {
		console := commandtest.NewConsole(t, w.URI, w.queue)
		b := newTab(t)
		b.watch()
		b.open(console.URL("/queue?queue=" + w.queue + ".dlq"))
		tabs = append(tabs, b)
	}
	for _, b := range tabs {
		await.Until(t, func() bool { return b.fact("Messages") == "20,000" }, "the queue was read")
	}
	mouse{tabs[0]}.press("Refresh")
	mouse{tabs[1]}.press("Refresh")
	for _, b := range tabs {
		await.Until(t, func() bool {
			return b.fact("Messages") == "20,000" && !strings.Contains(b.text("main"), "Reading")
		}, "the queue was read again")
	}
	assert.Equal(t, tabs[0].text("main .numbers .big"), tabs[1].text("main .numbers .big"))
	for _, b := range tabs {
		b.neverWrong(messages)
		b.clean()
	}
	w.Has(w.queue+".dlq", messages)
}

// watch begins to collect the errors and the numbers that the pages of a tab show, each once.
func (b *tab) watch() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `(() => {
			const note = (text) => {
				const all = JSON.parse(sessionStorage.watched || "[]");
				if (all.at(-1) !== text) sessionStorage.watched = JSON.stringify([...all, text]);
			};
			const look = () => {
				for (const e of document.querySelectorAll("[role=alert], #stale:not([hidden])"))
					note("error: " + e.textContent);
				const read = document.querySelector("main")?.textContent.match(/([\d,]+) of ([\d,]+) messages read/);
				if (read) note(read[0]);
				const shown = document.querySelector("main .numbers .big");
				if (shown && !read) note("shown " + shown.textContent);
				const dead = document.querySelector("main")?.textContent.match(/([\d,]+) dead letters in/);
				if (dead) note(dead[0]);
			};
			new MutationObserver(look).observe(document,
				{ childList: true, subtree: true, attributes: true, characterData: true });
		})()`})
	require.NoError(b.t, err)
}

// neverWrong asserts that no page has shown an error, a number of messages other than total, or a
// progress that shrinks. It returns how many steps of progress were seen.
func (b *tab) neverWrong(total int) (steps int) {
	b.t.Helper()
	watched := value(b, chromedp.Evaluate[[]string](`JSON.parse(sessionStorage.watched || "[]")`))
	before := 0
	for _, text := range watched {
		var seen, of int
		plain := strings.ReplaceAll(text, ",", "")
		switch {
		case strings.HasSuffix(text, "messages read"):
			_, err := fmt.Sscanf(plain, "%d of %d", &seen, &of)
			require.NoError(b.t, err, text)
			assert.Contains(b.t, []int{0, total}, of, text)
			if seen > 0 && of > 0 {
				assert.GreaterOrEqual(b.t, seen, before, "the progress shrinks: %q", watched)
			}
			before = seen
			steps++
		case strings.HasPrefix(text, "shown "): // a read has ended
			assert.Equal(b.t, fmt.Sprintf("shown %d", total), plain)
			before = 0
		case strings.HasSuffix(text, "dead letters in"):
			assert.Equal(b.t, fmt.Sprintf("%d dead letters in", total), plain)
		default:
			assert.Fail(b.t, text, "%q", watched)
		}
	}

	return steps
}
