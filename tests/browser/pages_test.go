package browser

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

const axeVersion = "4.14.1"

// axe is axe-core, which finds what people with disabilities stumble over. npm brings it, for this
// test only.
var axe = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "axe")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	pack := exec.Command("npm", "pack", "--silent", "axe-core@"+axeVersion)
	pack.Dir = folder
	if out, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack axe-core: %w: %s", err, out)
	}
	file, err := os.Open(filepath.Join(folder, "axe-core-"+axeVersion+".tgz"))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(unzipped); ; {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("axe-core has no axe.min.js")
		}
		if err != nil {
			return "", err
		}
		if entry.Name == "package/axe.min.js" {
			text, err := io.ReadAll(files)
			return string(text), err
		}
	}
})

// pictures is the folder where pictures of the pages go; empty for none.
var pictures = os.Getenv("PICTURES")

// looks are the screens on which every page is seen. Those with a name have pictures in docs/img.
var looks = []struct {
	name, scheme  string
	width, height int64
}{
	{"light", "light", 1366, 768}, {"dark", "dark", 1366, 768}, {"narrow", "light", 390, 844}, {"", "dark", 390, 844},
	{"", "light", 1920, 1080}, {"", "dark", 1920, 1080},
}

// Every page, on each screen: axe-core finds nothing, and nothing is wider than the window,
// whatever errors say. The pictures are in docs/img.
func TestPages_OwnBroker(t *testing.T) {
	t.Parallel()
	script, err := axe()
	require.NoError(t, err)
	w := newShop(t)
	dead := w.queue + ".dlq"
	b := newTab(t)
	by := mouse{b}

	query := url.Values{"queue": {dead}}.Encode()
	message := "message?" + url.Values{"queue": {dead}, "uuid": {"order-1042"}}.Encode()
	b.open(w.at("plan?kind=replay&error=refused&" + query))
	b.sees("31 of 49 messages would be replayed")
	b.do(chromedp.SendKeys(`//input[@name="limit"]`, "20"))
	by.press("Replay 31 messages to " + w.queue) // which is not what the form says now
	b.sees("20 can be replayed")
	ready := value(b, chromedp.Location())
	b.open(w.at("plan?kind=move&uuid=order-871&" + query))
	b.do(chromedp.SendKeys(`//input[@name="to"]`, w.queue))
	by.press("Count them")
	b.sees("1 can be moved")
	w.healthy.Store(true)
	by.press("Move 1 message to " + w.queue)
	b.sees("1 of 1 moved")
	done := value(b, chromedp.Location())
	w.shows(48)

	b.open(w.at("")) // which reads the queues
	b.sees("too many connections")
	b.open(w.at("plan?kind=replay&canary=5&limit=200&queue=mails.dlq"))
	by.press("Replay 200 messages to mails")
	b.sees("200 of 200 replayed")
	fate := value(b, chromedp.Location())
	b.open(w.at("queue?refresh=now&queue=mails.dlq"))
	b.sees("3,010")
	parked := w.park(query)
	long := url.Values{"queue": {longQueue + ".dlq"}, "uuid": {longQueue + "-9001"}}.Encode()
	for _, p := range []struct{ name, address, sees string }{ // one with a blank in its name has no picture
		{"queues", w.at(""), "12 messages, no consumer"}, {"queue", w.at("queue?" + query), "By age"},
		{"filters", w.at("queue?error=refused&" + query), "Show all"}, {"message", w.at(message), "Headers"},
		{"plan", w.at("plan?kind=replay&" + query), "would be replayed"}, {"run-ready", ready, "20 can be replayed"},
		{"run-done", done, "1 of 1 moved"}, {"runs", w.at("runs"), "Planned"},
		{"problem", w.at("queue?queue=nobody.dlq"), "There is no such queue"},
		{"empty", w.at("queue?text=nobody&" + query), "No dead letter matches"},
		{"long queue", w.at("queue?queue=" + longQueue + ".dlq"), "By age"},
		{"long message", w.at("message?" + long), "Headers"}, {"no queue", w.at("?name=nobody"), "Show all queues"},
		{"parked cause", w.at("queue?" + query + "&fingerprint=" + parked), "waits for the fix of the totals"},
		{"what waits", w.at("waiting?refresh=now&" + query), "Messages that wait for"},
		{"new causes", w.at("queue?since=2h&" + query), "not there before"},
		{"large delete", w.at("plan?kind=purge&queue=mails.dlq"), "Type 3010 to delete"},
		{"a move", w.at("plan?kind=move&" + query), "To the queue"}, {"its fate", fate, "What became of them"},
	} {
		for _, look := range looks {
			t.Run(fmt.Sprintf("%s %s %d", p.name, look.scheme, look.width), func(t *testing.T) {
				b := b.of(t)
				_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
				})
				require.NoError(t, err)
				b.do(chromedp.EmulateViewport(look.width, look.height))
				for range 2 { // a page that was sent before its queue was read has grown since
					b.open(p.address)
					b.sees(p.sees)
				}
				shift := value(b, chromedp.Evaluate[float64](`new Promise((done) => {
					let sum = 0;
					new PerformanceObserver((l) => { for (const e of l.getEntries()) sum += e.value })
						.observe({ type: "layout-shift", buffered: true });
					setTimeout(() => done(sum), 300);
				})`, chromedp.EvalAwaitPromise))
				assert.Zero(t, shift, "the layout shifts")
				b.do(chromedp.EvaluateAsDevTools[chromedp.Void](script))
				found := value(b, chromedp.Evaluate[audit](`axe.run().then(r => ({ passed: r.passes.length,
					violations: r.violations.map(v =>
						v.id + ": " + v.help + ": " + v.nodes.map(n => n.target.join(" ")).join(", ")) }))`,
					chromedp.EvalAwaitPromise))
				assert.Empty(t, found.Violations, "axe-core")
				assert.Greater(t, found.Passed, 10, "rules of axe-core that had something to look at")
				wide := value(b, chromedp.Evaluate[int](`document.documentElement.scrollWidth`))
				assert.LessOrEqual(t, int64(wide), look.width, "the page scrolls sideways")
				if p.name == "queues" {
					tall := value(b, chromedp.Evaluate[int64](`document.documentElement.scrollHeight`))
					assert.LessOrEqual(t, tall, look.height, "eight queues fit the screen")
				}
				if look.name != "" && !strings.Contains(p.name, " ") {
					b.picture(p.name + "-" + look.name)
				}
			})
		}
	}
	b.clean()
}

// park parks the last cause on the page of a queue.
func (w *world) park(query string) (fingerprint string) {
	w.t.Helper()
	found := regexp.MustCompile(`id="cause-([0-9a-f]{12})"`).FindAllStringSubmatch(w.page("queue?"+query), -1)
	require.NotEmpty(w.t, found)
	fingerprint = found[len(found)-1][1]
	run := w.post("plan", url.Values{"kind": {"park"}, "queue": {w.queue + ".dlq"}, "fingerprint": {fingerprint},
		"note": {"waits for the fix of the totals, ada"}}).Request.URL.Query()
	await.Until(w.t, func() bool { return w.post("confirm", run).StatusCode == http.StatusOK }, "it was counted")
	await.Until(w.t, func() bool { return strings.Contains(w.page("run?"+run.Encode()), "state done") }, "it is parked")

	return fingerprint
}

// post sends a form, and follows where it leads.
func (w *world) post(page string, form url.Values) *http.Response {
	w.t.Helper()
	response, err := http.PostForm(w.at(page), form)
	require.NoError(w.t, err)
	require.NoError(w.t, response.Body.Close())

	return response
}

// audit is what axe-core says of a page.
type audit struct {
	Violations []string `json:"violations"`
	Passed     int      `json:"passed"`
}

// of is the tab for a subtest.
func (b *tab) of(t *testing.T) *tab { return &tab{t: t, ctx: b.ctx} }

// picture makes a picture of the whole page.
func (b *tab) picture(name string) {
	b.t.Helper()
	if pictures == "" {
		return
	}
	answer, err := chromedp.Call(b.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatWebp, Quality: ptr(int64(80)), CaptureBeyondViewport: ptr(false),
	})
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(pictures, "console-"+name+".webp"), answer.Data, 0o644))
}

func ptr[T any](value T) *T { return &value }
