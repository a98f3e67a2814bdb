package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// walker is a hand that also finds a link by the beginning of its accessible name.
type walker interface {
	hand
	follow(label string)
}

func (m mouse) follow(label string) {
	m.t.Helper()
	m.offers(label)
	m.do(chromedp.Click(fmt.Sprintf(`//a[starts-with(@aria-label, %q)]`, label)))
}

func (k keyboard) follow(label string) {
	k.t.Helper()
	k.offers(label)
	k.focus(label, fmt.Sprintf(`!!e.ariaLabel?.startsWith(%q)`, label))
	k.do(chromedp.KeyEvent("\r"))
}

var _, _ walker = mouse{}, keyboard{}

// offers waits for a link whose accessible name begins so.
func (b *tab) offers(label string) {
	b.t.Helper()
	await.Within(b.t, time.Minute, func() bool {
		return b.is(fmt.Sprintf(`!!document.querySelector('a[aria-label^=%q]')`, label))
	},
		"a link %q on the page %s", label, b.text("main"))
}

// fact is what a page says under a name in a list of facts; empty if it does not have it.
func (b *tab) fact(name string) string {
	b.t.Helper()
	return value(b, chromedp.Evaluate[string](fmt.Sprintf(`[...document.querySelectorAll("main dt")]
		.find(e => e.textContent.trim() === %q)?.nextElementSibling.textContent.trim() ?? ""`, name)))
}

// linkTo is the text of the first link that contains a text.
func (b *tab) linkTo(text string) string {
	b.t.Helper()
	return value(b, chromedp.Evaluate[string](fmt.Sprintf(`[...document.querySelectorAll("main a")]
		.find(e => e.textContent.includes(%q))?.textContent.trim() ?? ""`, text)))
}

// From the overview, which an alert links to, three clicks replay a cause. The console reads the
// queue once for that, and the run goes through it twice, first for its canary. The page of the run
// then tells what became of the messages.
func TestFromAlertToReplay_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	for name, c := range map[string]struct {
		walker func(*tab) walker
		first  func(*world, *tab) string // the first link
	}{
		"mouse, by the queue": {func(b *tab) walker { return mouse{b} },
			func(w *world, _ *tab) string { return w.queue + ".dlq" }},
		"keyboard, by the top cause": {func(b *tab) walker { return keyboard{b} },
			func(_ *world, b *tab) string { return b.linkTo("dial tcp") }},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: a console reads all queues of its broker
			w := newWorldOn(t, broker.URI, broker.ManagementURL)
			const handled, again = 15, 2
			ids := append(rabbit.Numbered("order", handled), rabbit.Numbered("stubborn", again)...)
			w.die(append(ids, "permanent-1")...)
			b := newTab(t)
			by := c.walker(b)
			b.open(w.at(""))
			b.sees("dial tcp") // the overview has read the queue
			w.healthy.Store(true)

			by.press(c.first(w, b))
			by.follow("Replay… 17: dial tcp")
			by.press("Replay 17 messages to " + w.queue)
			b.sees("17 of 17 replayed")
			assert.Equal(t, "/dead-letters/run", b.path())
			await.Until(t, func() bool { return b.text(".state") == "done" }, "the run is done")
			w.Has(w.queue+".dlq", again+1)
			await.Until(t, func() bool { return b.fact("Waiting, at most") == "0" }, "none waits any more")
			run := value(b, chromedp.Location())

			by.press("Read the queue now")
			await.Until(t, func() bool { return b.fact("Messages") == "3" }, "the queue was read again")
			b.open(run)
			await.Until(t, func() bool {
				return b.fact("Failed again") == "2" && b.fact("Handled, at least") == "15"
			}, "the page tells what became of the messages")
			b.clean()

			w.server.Close()
			left := drain.All(t, w.Client, w.queue+".dlq")
			require.Equal(t, "permanent-1", rabbit.UUID(left[0]))
			assert.Equal(t, 4, rabbit.Returns(left[0]),
				"one read for the overview, two for the run, one for its result")
		})
	}
}

// A screen reader hears of a run when its state changes, and every ten seconds how far it is. What
// somebody has focused stays so until the end and after it.
func TestWhatAScreenReaderHears(t *testing.T) {
	t.Parallel()
	const messages = 60
	w := newWorld(t)
	b := newTab(t)
	b.runs(w, messages, "5/s")
	b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`
		window.link = [...document.querySelectorAll("#live-run a")].find(e => e.textContent === %q);
		link.focus();
		window.moved = 0;
		document.addEventListener("focusin", () => moved++);
		window.heard = [];
		const region = document.querySelector("[aria-live]");
		new MutationObserver(() => heard.push(region.textContent))
			.observe(region, { childList: true, characterData: true, subtree: true });`, w.queue+".dlq")))
	heard := func() []string { return value(b, chromedp.Evaluate[[]string](`heard`)) }
	done := func() bool {
		all := heard()
		return len(all) > 0 && strings.HasPrefix(all[len(all)-1], "done")
	}
	began := time.Now()
	await.Until(t, done, "the end is announced")
	took := time.Since(began)
	await.Stays(t, 7*time.Second, done, "nothing more is announced") // two updates

	all := heard()
	assert.LessOrEqual(t, len(all), 1+int(took/(10*time.Second)), "%q", all)
	for _, text := range all[:len(all)-1] {
		assert.Regexp(t, `^running, \d+ of 60$`, text)
	}
	assert.True(t, b.is(`link.isConnected && document.activeElement === link && moved === 0`), "the focus has moved")
	b.clean()
}
