package browser

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// gate stands before a console. It passes requests on, answers them itself with a status, cuts the
// connection (drop), or keeps it without an answer (hang).
type gate struct {
	console http.Handler
	mode    atomic.Int64
	live    atomic.Int64
}

const (
	pass = 0
	drop = -1
	hang = -2
)

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Requested-With") == "live" {
		g.live.Add(1)
	}
	switch mode := g.mode.Load(); mode {
	case pass:
		g.console.ServeHTTP(w, r)
	case drop:
		panic(http.ErrAbortHandler)
	case hang:
		<-r.Context().Done()
	default:
		http.Error(w, http.StatusText(int(mode)), int(mode))
	}
}

// gated puts a gate before the console of a world.
func (w *world) gated() *gate {
	w.t.Helper()
	g := &gate{console: w.server.Config.Handler}
	w.server = httptest.NewServer(g)
	w.t.Cleanup(w.server.Close)

	return g
}

// text of an element; empty if there is none.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return value(b, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector)))
}

func (b *tab) is(script string) bool {
	b.t.Helper()
	return value(b, chromedp.Evaluate[bool](script))
}

// runs plans and confirms a replay of n dead letters at a rate, and opens its page.
func (b *tab) runs(w *world, n int, rate string) {
	b.t.Helper()
	by := mouse{b}
	w.die(rabbit.Numbered("order", n)...)
	w.healthy.Store(true)
	b.open(w.at("plan?kind=replay&queue=" + w.queue + ".dlq&rate=" + rate))
	by.press("Count them")
	b.sees("can be replayed")
	by.press(fmt.Sprintf("Replay %d messages to %s", n, w.queue))
	b.sees("goes on without this page")
}

// While a run goes on its page is updated in place: a button that is focused is the same one and
// keeps its focus, and the numbers beside it go on. A screen reader hears some progress, and not
// each number.
func TestUpdatesInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := newTab(t)
	b.runs(w, 150, "5/s")
	b.do(chromedp.Evaluate[chromedp.Void](`
		window.stopButton = [...document.querySelectorAll("button")].find(b => b.textContent === "Stop");
		stopButton.focus();
		window.heard = [];
		new MutationObserver(() => heard.push(document.getElementById("announce").textContent))
			.observe(document.getElementById("announce"), { childList: true, characterData: true, subtree: true });`))
	seen := map[string]bool{}
	began := time.Now()
	await.Until(t, func() bool {
		seen[b.text("#live-run strong")] = true
		return len(seen) >= 5
	}, "the numbers go on")
	assert.True(t, b.is(`stopButton.isConnected && document.activeElement === stopButton`), "the button is the same one")
	assert.Zero(t, value(b, chromedp.Evaluate[int](`document.querySelectorAll("[aria-live] *, main[aria-live], main [aria-live]").length`)),
		"one live region, which is short")

	heard := func() []string { return value(b, chromedp.Evaluate[[]string](`heard`)) }
	await.Until(t, func() bool { return len(heard()) > 0 }, "progress is announced")
	assert.LessOrEqual(t, len(heard()), 1+int(time.Since(began)/(10*time.Second)), "%q", heard())
	for _, text := range heard() {
		assert.Regexp(t, `^running, \d+ of 150$`, text)
	}
	b.do(chromedp.KeyEvent("\r")) // on the button
	b.sees("stopped")
	b.clean()
}

// Whatever changes in a page, the page is the new one afterwards.
func TestUpdatesAreExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page := w.page("")
	before, rest, found := strings.Cut(page, `<main id="main" tabindex="-1">`)
	require.True(t, found)
	_, after, found := strings.Cut(rest, "</main>")
	require.True(t, found)
	var content atomic.Value
	content.Store("")
	console := w.server.Config.Handler
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/static/") {
			console.ServeHTTP(rw, r)
			return
		}
		_, _ = fmt.Fprintf(rw, `%s<main id="main" tabindex="-1"><div id="part" data-part>%s</div></main>%s`, before,
			content.Load(), after)
	}))
	defer server.Close()
	b := newTab(t)
	b.open(server.URL + "/dead-letters/")
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same pages in each run
	for range 100 {
		next := randomHTML(random, 3)
		content.Store(next)
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#stale button").click()`))
		same := fmt.Sprintf(`(() => { const e = document.createElement("div"); e.innerHTML = %q;
			return e.innerHTML === document.getElementById("part").innerHTML })()`, next)
		await.Until(t, func() bool { return b.is(same) }, "the page has become %s", next)
	}
	b.clean()
}

// randomHTML has elements with and without keys, which come, go, move and change.
func randomHTML(random *rand.Rand, depth int) string {
	var all strings.Builder
	for _, n := range random.Perm(8)[:random.IntN(6)] {
		inner := fmt.Sprint("text ", random.IntN(3))
		if depth > 0 {
			inner = randomHTML(random, depth-1)
		}
		switch n {
		case 0, 1, 2:
			fmt.Fprintf(&all, `<div data-key="%d" class="c%d">%s</div>`, n, random.IntN(2), inner)
		case 3:
			fmt.Fprintf(&all, `<a href="?%d">link</a>`, random.IntN(3))
		case 4:
			fmt.Fprintf(&all, `<span class="warn">%s</span>`, inner)
		case 5:
			fmt.Fprintf(&all, `<progress max="9" value="%d"></progress>`, random.IntN(9))
		default:
			fmt.Fprintf(&all, `<span title="%d">%s</span> and`, random.IntN(3), inner)
		}
	}

	return all.String()
}

// The end of a run is announced at once.
func TestEndIsAnnounced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := newTab(t)
	b.runs(w, 20, "4/s")
	await.Until(t, func() bool { return strings.HasPrefix(b.text("#announce"), "done") }, "the end is announced")
	b.clean()
}

// When somebody reads a queue again, its page shows what was read without a reload, and keeps what
// is typed.
func TestQueueShowsANewRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.die("order-1")
	b := newTab(t)
	b.open(w.at("queue?queue=" + w.queue + ".dlq"))
	b.sees("order-1")
	b.do(chromedp.KeyEvent("/"), chromedp.KeyEvent("half"))
	w.Publish(w.queue, rabbit.Message("order-2", "{}"))
	w.Has(w.queue+".dlq", 2)
	w.page("queue?refresh=now&queue=" + w.queue + ".dlq")
	b.sees("order-2")
	assert.True(t, b.is(`document.activeElement.name === "search" && document.activeElement.value.endsWith("half")`))
	b.clean()
}

// A table that was scrolled, and a page that was, stay where they are.
func TestScrollIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.die("order-1")
	b := newTab(t)
	b.do(chromedp.EmulateViewport(760, 240))
	b.open(w.at(""))
	b.sees("1 dead letter in")
	const position = `[document.querySelector(".scroll").scrollLeft, scrollY].join()`
	scrolled := value(b, chromedp.Evaluate[string](`document.querySelector(".scroll").scrollLeft = 90; scrollTo(0, 40); `+position))
	require.Equal(t, "90,40", scrolled)
	w.Publish(w.queue, rabbit.Message("order-2", "{}"))
	b.sees("2 dead letters in")
	assert.Equal(t, scrolled, value(b, chromedp.Evaluate[string](position)))
	b.clean()
}

// A console that does not answer, or not as it should, does not look alive.
func TestConsoleAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode int64
		says string
	}{
		"killed":      {drop, "No answer from the console for "},
		"hangs":       {hang, "No answer from the console for "},
		"signed out":  {http.StatusUnauthorized, "You are signed out. Reload the page to sign in."},
		"forbidden":   {http.StatusForbidden, "You may no longer see this page."},
		"not found":   {http.StatusNotFound, "This page no longer exists."},
		"error":       {http.StatusInternalServerError, "The console has an error."},
		"closed":      {http.StatusServiceUnavailable, "The console is closed, or starts again."},
		"bad gateway": {http.StatusBadGateway, "No answer from the console for "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.gated()
			w.die("order-1")
			b := newTab(t)
			b.open(w.at(""))
			b.sees("1 dead letter in")
			await.Until(t, func() bool { return g.live.Load() > 0 }, "the page asks again")
			g.mode.Store(c.mode)
			b.sees(c.says)
			b.sees("The numbers below are from ")
			assert.True(t, b.is(`document.body.classList.contains("is-stale")`))
			assert.Contains(t, b.text("#announce"), c.says)
			if c.mode < 0 {
				before, announced := b.text("#stale p"), b.text("#announce")
				await.Until(t, func() bool { return b.text("#stale p") != before }, "it counts")
				assert.Equal(t, announced, b.text("#announce"), "it is announced once")
			}

			w.Publish(w.queue, rabbit.Message("order-2", "{}"))
			g.mode.Store(pass)
			b.sees("2 dead letters in")
			assert.False(t, b.is(`document.body.classList.contains("is-stale")`))
			assert.True(t, b.is(`document.getElementById("stale").hidden`))
			b.clean()
		})
	}
}

// The keys do what the help says, unless somebody has turned them off.
func TestKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.die("order-1")
	b := newTab(t)
	press := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	b.open(w.at(""))
	b.sees("1 dead letter in")
	press("?")
	assert.True(t, b.is(`document.getElementById("help").open`))
	press("\x1b")
	assert.False(t, b.is(`document.getElementById("help").open`))
	press("/")
	assert.True(t, b.is(`document.activeElement.name === "name"`))
	press("j") // is typed
	assert.Contains(t, value(b, chromedp.Evaluate[string](`document.activeElement.value`)), "j")
	press("\x1b")
	press("gr")
	b.sees("No runs yet")
	press("gq")
	b.sees("1 dead letter in")
	press("j")
	assert.Equal(t, w.queue+".dlq", value(b, chromedp.Evaluate[string](`document.activeElement.textContent`)))
	press("\r")
	b.sees("Causes")
	assert.Equal(t, "/dead-letters/queue", b.path())

	press("?")
	b.do(chromedp.Click("#use-keys"))
	press("\x1b")
	press("gq")
	press("?")
	assert.False(t, b.is(`document.getElementById("help").open`))
	assert.Equal(t, "/dead-letters/queue", b.path())
	b.clean()
}

// A theme and how times are shown are kept; without JavaScript there are no buttons for them.
func TestChoicesAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.die("order-1")
	b := newTab(t)
	b.open(w.at(""))
	b.sees("1 dead letter in")
	ground := func() string {
		return value(b, chromedp.Evaluate[string](`getComputedStyle(document.body).backgroundColor`))
	}
	b.do(chromedp.Click("#theme"))
	light := ground()
	b.do(chromedp.Click("#theme"))
	dark := ground()
	assert.NotEqual(t, light, dark)
	b.do(chromedp.Click("#times"), chromedp.Click("#times"))
	utc := time.Now().UTC().Format("2006-01-02 ")
	assert.Contains(t, b.text(".sum time"), utc)
	b.open(w.at(""))
	b.sees(utc)
	assert.Equal(t, dark, ground())
	assert.Contains(t, value(b, chromedp.Evaluate[string](`document.querySelector(".sum time").title`)), " UTC\n", "the local time beside it")
	b.clean()

	b = newTab(t)
	b.withoutScripts()
	b.open(w.at(""))
	b.sees("1 dead letter in")
	visible := value(b, chromedp.Text("header"))
	assert.NotContains(t, visible, "Auto")
}
