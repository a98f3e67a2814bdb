package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// chromium is the path of the browser.
var chromium = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../../scripts/chromium").Output()
	return strings.TrimSpace(string(out)), err
})

// world is a service that fails, with a console.
type world struct {
	*rabbit.Client
	t     *testing.T
	queue string
	// others are further main queues; management is the address of the management API, if the
	// console is to use it.
	others     []string
	management string
	policy     config.Policy
	healthy    atomic.Bool
	handled    atomic.Int64
	dead       atomic.Int64
	server     *httptest.Server
}

// newWorld starts a service and a console for its dead letters.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, brokertest.URI(t), "")
}

// newWorldOn is newWorld on a broker, whose management API the console uses if there is one.
func newWorldOn(t *testing.T, uri, management string) *world {
	t.Helper()
	w := &world{
		Client: rabbit.New(t, uri), t: t, queue: "orders-" + strings.ToLower(watermill.NewShortUUID()),
		management: management,
		policy:     config.Policy{Delays: []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}},
	}
	w.serve()
	w.server = w.console("/dead-letters")

	return w
}

// console serves one more console, below a path.
func (w *world) console(prefix string) *httptest.Server {
	w.t.Helper()
	console, err := dlqweb.New(dlqweb.Config{
		Broker: dlq.Config{URI: w.URI, NoDeliveryLimitPolicy: true, Management: management.API{URL: w.management}},
		Queues: []string{w.queue}, Folder: w.t.TempDir(), Audit: slog.DiscardHandler, Prefix: prefix,
		Authorize: func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return "ada", dlqweb.RoleDelete, nil },
	})
	require.NoError(w.t, err)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", console)
	server := httptest.NewServer(mux)
	w.t.Cleanup(func() {
		server.Close()
		assert.NoError(w.t, console.Close())
	})

	return server
}

// serve runs the service until the test ends.
func (w *world) serve() {
	w.t.Helper()
	conf := amqp.NewDurableQueueConfig(w.URI)
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: w.policy}, Logger: watermill.NopLogger{},
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				w.dead.Add(1)
			}
		},
	})
	require.NoError(w.t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(w.t, err)
	router.AddMiddleware(retrier.Middleware)
	subscriber, err := retrier.NewSubscriber()
	require.NoError(w.t, err)
	ship := func(msg *message.Message) error {
		switch {
		case w.healthy.Load() && !strings.HasPrefix(msg.UUID, "stubborn"):
			w.handled.Add(1)
			return nil
		case strings.HasPrefix(msg.UUID, "permanent"):
			return retry.Permanent(fmt.Errorf("no customer %q", msg.UUID))
		case strings.HasPrefix(msg.UUID, "panic"):
			panic("a negative total")
		default:
			return errors.New("dial tcp 10.0.0.7:443: connection refused")
		}
	}
	queues := append([]string{w.queue}, w.others...)
	for _, queue := range queues {
		router.AddConsumerHandler("ship "+queue, queue, subscriber, ship)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	w.t.Cleanup(func() {
		cancel()
		assert.NoError(w.t, <-ended)
		assert.NoError(w.t, retrier.Close())
		for _, queue := range queues {
			plan, err := retrier.Plan(queue)
			if assert.NoError(w.t, err) {
				w.RemovePlan(plan)
			}
		}
	})
}

// die sends messages, and waits until they are dead letters.
func (w *world) die(ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		w.Publish(w.queue, rabbit.Message(id, `{"order":"`+id+`","items":[{"sku":"A1","n":2}]}`))
	}
	w.Has(w.queue+".dlq", len(ids))
}

func (w *world) at(path string) string { return w.server.URL + "/dead-letters/" + path }

// tab is a page of a browser, and what goes wrong in it.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// newTab opens a browser.
func newTab(t *testing.T) *tab {
	t.Helper()
	path, err := chromium()
	require.NoError(t, err, "no browser: scripts/chromium says why")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1100, 900))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *audits.EventIssueAdded:
			if details := e.Issue.Details.ContentSecurityPolicyIssueDetails; details != nil {
				b.problem("CSP: " + details.ViolatedDirective)
			}
		case *page.EventJavascriptDialogOpening:
			b.problem("a dialog: " + e.Message)
			go func() {
				_, _ = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
			}()
		case *runtime.EventExceptionThrown:
			b.problem("an exception: " + e.ExceptionDetails.Text)
		}
	}))
	_, err = chromedp.Call(ctx, audits.Enable, cdp.Empty{})
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	b.ctx = ctx

	return b
}

func (b *tab) problem(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, text)
}

// clean asserts that nothing went wrong.
func (b *tab) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(b.t, b.problems)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// value is what an action gives.
func value[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, action)
	require.NoError(b.t, err)

	return value
}

func (b *tab) open(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address))
}

// withoutScripts turns JavaScript off.
func (b *tab) withoutScripts() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(b.t, err)
}

// sees waits until a text is on the page.
func (b *tab) sees(text string) {
	b.t.Helper()
	body := ""
	defer func() {
		if b.t.Failed() {
			b.t.Log("the page: ", body)
		}
	}()
	await.Until(b.t, func() bool {
		body, _ = chromedp.Run(b.ctx, chromedp.Text("body"))
		return strings.Contains(body, text)
	}, "the page says %q", text)
}

// path of the page.
func (b *tab) path() string {
	b.t.Helper()
	parsed, err := url.Parse(value(b, chromedp.Location()))
	require.NoError(b.t, err)

	return parsed.Path
}

// named is the XPath of a link, a button or a summary with that text.
func named(text string) string {
	return fmt.Sprintf(`//*[self::a or self::button or self::summary][normalize-space(.)=%q]`, text)
}

// hand is how somebody uses a page.
type hand interface {
	press(text string)
	fill(name, value string)
}

// mouse clicks.
type mouse struct{ *tab }

func (m mouse) press(text string) {
	m.t.Helper()
	m.do(chromedp.WaitVisible(named(text)), chromedp.Click(named(text)))
}

func (m mouse) fill(name, value string) {
	m.t.Helper()
	m.do(chromedp.SendKeys(fmt.Sprintf(`//input[@name=%q]`, name), value))
}

// keyboard has Tab, Enter and letters.
type keyboard struct{ *tab }

// mostTabs is more than a page has that can be focused.
const mostTabs = 200

// focus presses Tab until something is focused, which is then seen to be.
func (k keyboard) focus(what, script string) {
	k.t.Helper()
	for range mostTabs {
		k.do(chromedp.KeyEvent("\t"))
		if !value(k.tab, chromedp.Evaluate[bool](`(() => { const e = document.activeElement; return `+script+` })()`)) {
			continue
		}
		assert.True(k.t, value(k.tab, chromedp.Evaluate[bool](`(() => { const s = getComputedStyle(document.activeElement);
			return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 })()`)),
			"nobody sees that %s is focused", what)
		return
	}
	k.t.Fatalf("no Tab leads to %s", what)
}

func (k keyboard) press(text string) {
	k.t.Helper()
	k.do(chromedp.WaitVisible(named(text)))
	k.focus(text, fmt.Sprintf(`e.matches("a, button, summary") && e.textContent.trim() === %q`, text))
	k.do(chromedp.KeyEvent("\r"))
}

func (k keyboard) fill(name, value string) {
	k.t.Helper()
	k.focus(name, fmt.Sprintf(`e.name === %q`, name))
	k.do(chromedp.KeyEvent(value))
}

var _, _ hand = mouse{}, keyboard{}
