package browser

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// Every page, light, dark and narrow: axe-core finds nothing, nothing is wider than the window, and
// the picture is in docs/img.
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
	by.press("Count them")
	b.sees("can be replayed")
	ready := value(b, chromedp.Location())
	b.open(w.at("plan?kind=move&uuid=order-871&" + query))
	b.do(chromedp.SendKeys(`//input[@name="to"]`, w.queue))
	by.press("Count them")
	b.sees("can be moved")
	w.healthy.Store(true)
	by.press("Move 1 message to " + w.queue)
	b.sees("1 of 1 moved")
	done := value(b, chromedp.Location())
	w.shows(48)

	for _, p := range []struct{ name, address, sees string }{
		{"queues", w.at(""), "dead letters in"}, {"queue", w.at("queue?" + query), "By age"},
		{"filters", w.at("queue?error=refused&" + query), "Show all"}, {"message", w.at(message), "Headers"},
		{"plan", w.at("plan?kind=replay&" + query), "Canary"}, {"run-ready", ready, "can be replayed"},
		{"run-done", done, "1 of 1 moved"}, {"runs", w.at("runs"), "Planned"},
		{"problem", w.at("queue?queue=nobody.dlq"), "There is no such queue"},
		{"empty", w.at("queue?text=nobody&" + query), "No dead letter matches"},
	} {
		for _, look := range []struct {
			name, scheme string
			width        int64
		}{{"light", "light", 1100}, {"dark", "dark", 1100}, {"narrow", "light", 390}} {
			t.Run(p.name+" "+look.name, func(t *testing.T) {
				b := b.of(t)
				_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
				})
				require.NoError(t, err)
				height := int64(800)
				if p.name == "queue" { // with its ages
					height = 930
				}
				b.do(chromedp.EmulateViewport(look.width, height))
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
				b.picture(p.name + "-" + look.name)
			})
		}
	}
	b.clean()
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
